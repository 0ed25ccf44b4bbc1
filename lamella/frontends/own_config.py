"""A `ModelConfig` enters the config.json that `lamella quantize` writes, and leaves it again: every field by its name, whatever the family."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from lamella.checkpoints.own import METHOD
from lamella.frontends.config import ModelConfig
from lamella.frontends.family import family
from lamella.frontends.fields import LARGEST, Fields

FIELD = "lamella_config"
"""Where config.json holds the configuration."""
CHOSEN = ("packed", "kv_cache")
"""Fields that say how a model is run, or that headers say."""
MOST_LAYERS = 4096
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocabulary", "max_positions")
NAMES = {"Scaling": Mapping[str, Any]}
"""Types whose names stand for texts."""
TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def written(config: ModelConfig) -> dict[str, Any]:
    """The content of config.json for a model whose weights are packed in Lamella's own format."""
    own = {name: value for name, value in asdict(config).items() if name not in CHOSEN}
    return {
        "architectures": [family(config.family).architecture],
        "model_type": config.family,
        "dtype": TYPES[config.dtype],
        FIELD: own,
        "quantization_config": {"quant_method": METHOD},
    }


def read(given: Fields) -> ModelConfig:
    """The configuration that `written` wrote, from the object under FIELD. Raises ConfigError, UnknownArchitectureError."""
    made = cast(ModelConfig, _decoded(ModelConfig, dict(given.values), given, ""))
    family(made.family)
    for name in SIZES:
        size = cast(int, vars(made)[name])
        if not 0 < size <= (MOST_LAYERS if name == "layers" else LARGEST):
            raise given.error(f"field {name} is out of range", "a size that a model has", size)
    if made.layer_kinds and len(made.layer_kinds) != made.layers:
        raise given.error("field layer_kinds does not say what each layer is", f"{made.layers} layers", len(made.layer_kinds))
    if made.dtype not in TYPES:
        raise given.error("field dtype is not an element type", ", ".join(TYPES), made.dtype)
    return made


def _decoded(kind: Any, value: Any, given: Fields, name: str) -> Any:
    """A JSON value as a field of type `kind`. Raises ConfigError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind, value, given, name)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        return _decoded(next(a for a in arguments if a is not NoneType), value, given, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_decoded(arguments[0], each, given, name) for each in cast("list[Any]", value))
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        scaling = cast("dict[str, Any]", value)
        if all(_plain(each) or (isinstance(each, list) and all(map(_number, cast("list[Any]", each)))) for each in scaling.values()):
            return scaling
    elif kind is float and _number(value):
        return float(value)
    elif (kind is int and type(value) is int and 0 <= value <= LARGEST) or (kind in (str, bool) and type(value) is kind):
        return value
    raise given.error(f"field {name} has the wrong type", getattr(kind, "__name__", str(kind)), json.dumps(value))


def _dataclass(kind: Any, value: Any, given: Fields, name: str) -> Any:
    if not isinstance(value, dict):
        raise given.error(f"field {name} is not an object", "a JSON object", json.dumps(value))
    content, hints = cast("dict[str, Any]", value), get_type_hints(kind, localns=NAMES)
    made: dict[str, Any] = {}
    for each in fields(kind):
        if each.name in content and each.name not in CHOSEN:
            made[each.name] = _decoded(hints[each.name], content[each.name], given, each.name)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise given.error(f"field {each.name} is missing")
    strange = next((field for field in content if field not in hints), None)
    if strange is not None:
        raise given.error(f"field {strange} is unknown here", "a checkpoint of this or an earlier version of Lamella")
    return kind(**made)


def _number(value: object) -> bool:
    """Whether this is a finite number."""
    return type(value) in (int, float) and abs(cast(float, value)) < 1e300


def _plain(value: object) -> bool:
    return isinstance(value, str) or type(value) is bool or _number(value)


__all__: Sequence[str] = ("FIELD", "read", "written")

"""A Hugging Face config.json enters; the model's configuration and the defaults of its generation_config.json leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, cast

from lamella.errors import ConfigError, DtypeError, UnknownArchitectureError, nearest
from lamella.frontends.config import ModelConfig

ARCHITECTURES: Mapping[str, str] = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}
"""Known architectures, and the `model_type` that goes with each."""

DTYPES: Mapping[str, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
"""transformers' activation names, and the elementwise op of each."""

SCALINGS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""RoPE scaling kinds that `semantics.rope` computes, and the parameters of each."""

MISTRAL_WINDOW = 4096
"""transformers' default of `sliding_window` for a Mistral config.json that does not mention it."""


@dataclass(frozen=True)
class GenerationDefaults:
    """How the model's makers suggest to sample from it. None: they do not say."""

    eos: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class Fields:
    """Typed reading of one JSON object: each accessor raises ConfigError that names file and field."""

    where: str
    values: Mapping[str, Any]

    def error(self, what: str, expected: str | None = None, got: object = None, remedy: str | None = None) -> ConfigError:
        return ConfigError(what, where=self.where, expected=expected, got=None if got is None else str(got), remedy=remedy)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def count(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._required(name, default)
        if type(value) is not int or value < 1:
            raise self.error(f"field {name} is not a size", "a positive integer", json.dumps(value))
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._required(name, default)
        if type(value) not in (int, float) or not isfinite(value) or value <= 0:
            raise self.error(f"field {name} is out of range", "a positive number", json.dumps(value))
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._required(name, default)
        if type(value) is not bool:
            raise self.error(f"field {name} is not a truth value", "true or false", json.dumps(value))
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.error(f"field {name} is not a text", "a string", json.dumps(value))
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids: none, one, or a list."""
        value = self.values.get(name)
        found = cast(list[Any], value if isinstance(value, list) else [] if value is None else [value])
        if not all(type(i) is int and i >= 0 for i in found):
            raise self.error(f"field {name} holds no token ids", "a non-negative integer or a list of them", json.dumps(value))
        return tuple(found)

    def object(self, name: str) -> Fields:
        """A nested object, empty when absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"field {name} is not an object", "a JSON object", json.dumps(value))
        return Fields(f"{self.where}, {name}", cast(dict[str, Any], value or {}))

    def _required(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            hint = nearest(name, self.values)
            # Every field of a configuration would not be one clear line.
            raise self.error(f"field {name} is missing", remedy=hint if hint.startswith("nearest") else None)
        return default if value is None else value


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises ConfigError when it is malformed, with line and column, or is not an object."""
    try:
        values = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        raise ConfigError(f"malformed JSON at line {error.lineno}, column {error.colno}: {error.msg}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"malformed JSON: {error}", where=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if not isinstance(values, dict):
        raise ConfigError("malformed configuration", where=str(path), expected="a JSON object", got=type(values).__name__)
    return Fields(str(path), cast(dict[str, Any], values))


def read_config(path: Path) -> tuple[ModelConfig, bool]:
    """
    The configuration of one of ARCHITECTURES, and whether it names an element type (else `dtype` stands at `f32`). Fields that
    are absent take transformers' defaults of `LlamaConfig`, save the sizes, which must be there.
    Raises ConfigError, UnknownArchitectureError, DtypeError.
    """
    fields = read_json(path)
    kind = _model_type(fields)
    if fields.has("quantization_config"):
        method = fields.object("quantization_config").values.get("quant_method", "unknown")
        remedy = "use the checkpoint it was made from, or a GGUF file"
        raise DtypeError("a quantized checkpoint cannot be read", where=fields.where, got=f"quantization method {method}", remedy=remedy)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    # Mistral's own default is 8, Llama's is heads: a Mistral file must say.
    kv_heads = fields.count("num_key_value_heads", heads if kind == "llama" else None)
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error("hidden_size is not a multiple of num_attention_heads", f"a multiple of {heads}, or a head_dim", hidden)
    head_dim = fields.count("head_dim", max(1, hidden // heads))
    if heads % kv_heads:
        raise fields.error("num_attention_heads is not a multiple of num_key_value_heads", f"a multiple of {kv_heads}", heads)
    if head_dim % 2:
        raise fields.error("head_dim is odd, RoPE turns pairs", "an even number", head_dim)
    max_positions = fields.count("max_position_embeddings", 2048)
    if kind == "mistral":
        _refuse_window(fields, max_positions)
    activation = fields.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise fields.error(f"unknown activation {activation} in hidden_act", remedy=nearest(activation, ACTIVATIONS))
    theta, scaling = _rope(fields)
    bos = fields.ids("bos_token_id")
    stated = _dtype(fields)
    config = ModelConfig(
        family="llama",
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        rotary_dim=head_dim,
        rope_style="half",
        tied=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False) and kind == "llama",
        mlp_bias=fields.flag("mlp_bias", False) and kind == "llama",
        activation=ACTIVATIONS[activation],
        max_positions=max_positions,
        eos=fields.ids("eos_token_id"),
        bos=bos[0] if bos else None,
        dtype=stated or "f32",
    )
    return config, stated is not None


def read_generation(folder: Path, config: ModelConfig) -> GenerationDefaults:
    """What `generation_config.json` in the folder says; without one, the configuration's end tokens. Raises ConfigError."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return GenerationDefaults(eos=config.eos)
    fields = read_json(path)
    # temperature 0 and top_k 0 mean greedy and unlimited, so neither is a positive number here.
    temperature = 0.0 if fields.values.get("temperature") == 0 else fields.number("temperature") if fields.has("temperature") else None
    top_k = 0 if fields.values.get("top_k") == 0 else fields.count("top_k") if fields.has("top_k") else None
    top_p = fields.number("top_p") if fields.has("top_p") else None
    if top_p is not None and top_p > 1:
        raise fields.error("field top_p is out of range", "a number above 0, at most 1", top_p)
    eos = fields.ids("eos_token_id") or config.eos
    return GenerationDefaults(eos, fields.flag("do_sample", False), temperature, top_k, top_p)


def _model_type(fields: Fields) -> str:
    """`llama` or `mistral`, from `architectures` and `model_type`, which must agree when both are there."""
    names: Any = fields.values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(n, str) for n in cast(list[Any], names)):
        raise fields.error(
            "field architectures is not a list of names", 'such as ["LlamaForCausalLM"]', json.dumps(fields.values["architectures"])
        )
    stated = fields.text("model_type") if fields.has("model_type") else None
    if not names:
        if stated is None:
            raise fields.error("neither architectures nor model_type says what model this is", remedy=nearest("", ARCHITECTURES))
        if stated not in ARCHITECTURES.values():
            remedy = nearest(stated, ARCHITECTURES.values())
            raise UnknownArchitectureError(f"unknown model type {stated}", where=fields.where, remedy=remedy)
        return stated
    architecture = cast(str, names[0])
    if architecture not in ARCHITECTURES:
        remedy = nearest(architecture, ARCHITECTURES)
        raise UnknownArchitectureError(f"unknown architecture {architecture}", where=fields.where, remedy=remedy)
    kind = ARCHITECTURES[architecture]
    if stated is not None and stated != kind:
        raise fields.error(f"architectures and model_type contradict each other: {architecture}", f"model_type {kind}", stated)
    return kind


def _refuse_window(fields: Fields, max_positions: int) -> None:
    """A window that covers the whole context is no window; any other one would change the mathematics."""
    window = fields.values.get("sliding_window", MISTRAL_WINDOW)
    if window is not None and (type(window) is not int or window < max_positions):
        expected = f"null or at least max_position_embeddings ({max_positions})"
        raise fields.error("sliding-window attention is not supported: sliding_window", expected, window)


def _rope(fields: Fields) -> tuple[float, dict[str, int | float | str]]:
    """
    RoPE's base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before); `{}` when unscaled.
    """
    new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
    if new.values and old.values:
        raise fields.error("rope_parameters and rope_scaling are both given", "one of them")
    given = new if new.values else old
    theta = given.number("rope_theta") if given.has("rope_theta") else fields.number("rope_theta", 10000.0)
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in SCALINGS:
        raise given.error(f"unknown RoPE scaling {kind}", remedy=nearest(kind, SCALINGS))
    factor = given.values.get("partial_rotary_factor", fields.values.get("partial_rotary_factor"))
    if factor not in (None, 1, 1.0):
        raise fields.error("this architecture rotates whole heads: partial_rotary_factor", "1", factor)
    if not SCALINGS[kind]:
        return theta, {}
    scaling: dict[str, int | float | str] = {"rope_type": kind}
    for name in SCALINGS[kind]:
        scaling[name] = given.count(name) if name.startswith("original") else given.number(name)
    if kind == "llama3" and given.number("low_freq_factor") >= given.number("high_freq_factor"):
        raise given.error("low_freq_factor is not below high_freq_factor")
    return theta, scaling


def _dtype(fields: Fields) -> str | None:
    """The element type that the configuration names, if any."""
    field = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(field) or fields.text(field) == "auto":
        return None
    name = fields.text(field).removeprefix("torch.")
    if name not in DTYPES:
        raise DtypeError(f"unsupported element type in {field}", where=fields.where, expected=", ".join(DTYPES), got=name)
    return DTYPES[name]

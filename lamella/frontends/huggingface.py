"""A Hugging Face config.json enters; the model's configuration and the defaults of its generation_config.json leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lamella.errors import DtypeError
from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family, family_of
from lamella.frontends.fields import Fields, read_json
from lamella.frontends.own_config import FIELD
from lamella.frontends.own_config import read as read_own
from lamella.frontends.quantization import quantization

DTYPES: Mapping[str, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

OFF: tuple[Any, ...] = (None, False)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("alibi", "use_alibi", "is_encoder_decoder", "add_cross_attention", "parallel_attn", "use_parallel_residual"), OFF),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "qkv_bias", "lm_head_bias", "bias"), OFF),
    **dict.fromkeys(("qk_norm", "use_qk_norm", "qk_layernorm", "use_bidirectional_attention", "use_sliding_window"), OFF),
    **dict.fromkeys(("attention_sinks", "use_attention_sinks", "attention_sink", "num_attention_sinks", "sinks"), (None, False, 0)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "query_pre_attn_scalar", "sliding_window"), (None,)),
    **dict.fromkeys(("logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier"), (None, 1)),
    **dict.fromkeys(("attention_multiplier", "attention_chunk_size", "kv_lora_rank", "rope_local_base_freq"), (None,)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (None, 0)),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"), (None, 0)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), (None, 1)),
    "no_rope_layers": (None, []),
    "is_causal": (None, True),
    "pretraining_tp": (None, 1),
    "position_embedding_type": (None, "rope", "rotary"),
}
"""Fields of some families that change the mathematics, and the values with which they do not, for the families that do not read them."""


@dataclass(frozen=True)
class GenerationDefaults:
    """How the model's makers suggest to sample from it. None: they do not say."""

    eos: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


def read_config(path: Path) -> tuple[ModelConfig, bool]:
    """
    The configuration of a family of the registry, and whether it names an element type (else `dtype` stands at `f32`). Fields that
    are absent take transformers' defaults, save the sizes, which must be there. A quantized checkpoint has the configuration of the model it
    was made from; that it can be read at all is checked.
    Raises ConfigError, UnknownArchitectureError, DtypeError.
    """
    fields = read_json(path)
    found = family_of(fields)
    quantization(fields)
    if fields.has(FIELD):
        return read_own(fields.object(FIELD)), True
    config = found.read(fields)
    refuse_strange(fields, found)
    stated = _dtype(fields)
    return replace(config, dtype=stated or "f32"), stated is not None


def refuse_strange(fields: Fields, found: Family) -> None:
    """Raises ConfigError for a field that changes the mathematics and that the family's reader never asked for."""
    for name, neutral in NEUTRAL.items():
        value = fields.values.get(name)
        if name not in fields.asked and value not in neutral:
            what = f"{name} changes what is computed, and {found.name} models with it are not supported"
            raise fields.error(what, f"{json.dumps(neutral[-1])} or no such field", json.dumps(value))
    if "layer_types" not in fields.asked:
        kinds: Any = fields.values.get("layer_types") or []
        strange = next((kind for kind in cast("list[Any]", kinds) if kind != "full_attention"), None) if isinstance(kinds, list) else kinds
        if strange is not None:
            raise fields.error(f"layer_types: {found.name} layers are all alike here", "full_attention", json.dumps(strange))


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
    min_p = 0.0 if fields.values.get("min_p") == 0 else fields.number("min_p") if fields.has("min_p") else None
    if min_p is not None and min_p > 1:
        raise fields.error("field min_p is out of range", "a number from 0 to 1", min_p)
    eos = fields.ids("eos_token_id") or config.eos
    return GenerationDefaults(eos, fields.flag("do_sample", False), temperature, top_k, top_p, min_p)


def _dtype(fields: Fields) -> str | None:
    """The element type that the configuration names, if any."""
    field = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(field) or fields.text(field) == "auto":
        return None
    name = fields.text(field).removeprefix("torch.")
    if name not in DTYPES:
        raise DtypeError(f"unsupported element type in {field}", where=fields.where, expected=", ".join(DTYPES), got=name)
    return DTYPES[name]

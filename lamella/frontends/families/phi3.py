"""Phi 3 and 3.5: Llama whose checkpoint fuses q, k, v and gate, up; long contexts by LongRoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, window, windows


def read(fields: Fields) -> ModelConfig:
    """Early configurations call LongRoPE `su`, or `yarn` by mistake; the first models were trained on 4096 positions, and do not say so."""
    given: Any = fields.get("rope_scaling")
    if isinstance(given, dict):
        scaling = cast("dict[str, Any]", given)
        if scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
            fields = replace(fields, values={**fields.values, "rope_scaling": {**scaling, "rope_type": "longrope"}})
    if not fields.has("original_max_position_embeddings"):
        fields = replace(fields, values={**fields.values, "original_max_position_embeddings": 4096})
    config = decoder(fields, "phi3", eps_default=1e-5, max_positions=4096, rotary=1.0)
    size = window(fields)
    kinds = windows(fields, config.layers, size, [size > 0] * config.layers)
    return replace(config, fused_qkv="rows", fused_gate=True, layer_kinds=kinds)


PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    read=read,
    tensors={"attn.qkv_proj": "self_attn.qkv_proj", "ffn.gate_up_proj": "mlp.gate_up_proj"},
    compared="fused QKV and gate-up, LongRoPE with either table, partial RoPE, sliding window",
)

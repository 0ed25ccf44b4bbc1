"""Gemma 2: norms before and after each block, soft-capped scores and logits, every other layer with a window."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.families.gemma import gemma
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import window, windows

TENSORS = {
    "attn_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}


def cap(fields: Fields, name: str, default: float) -> float:
    """A soft-cap; 0 where the field is null."""
    return 0.0 if name in fields.values and not fields.has(name) else fields.number(name, default) if default or fields.has(name) else 0.0


def read(fields: Fields) -> ModelConfig:
    """Scores are scaled by the root of `query_pre_attn_scalar`, not of the head size."""
    config = gemma(fields, "gemma2", kv_heads=4)
    return replace(
        config,
        post_norm=True,
        score_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=cap(fields, "attn_logit_softcapping", 50.0),
        logit_cap=cap(fields, "final_logit_softcapping", 30.0),
        layer_kinds=windows(fields, config.layers, window(fields, 4096), [layer % 2 == 0 for layer in range(config.layers)]),
    )


GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    read=read,
    tensors=TENSORS,
    compared="norms before and after, soft-capped scores and logits, alternating windows, prefill and decode past them",
)

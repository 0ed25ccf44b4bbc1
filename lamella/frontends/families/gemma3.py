"""Gemma 3, text: Gemma 2 without soft-caps, with norms on the heads of q and k, and windowed layers that rotate by another base."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import LayerKind, ModelConfig
from lamella.frontends.families.gemma import gemma
from lamella.frontends.families.gemma2 import TENSORS, cap
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import rotation, stated, window, windows

GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0


def read(fields: Fields) -> ModelConfig:
    """Every sixth layer sees everything; `rope_parameters` holds a rotation for either kind (transformers 5)."""
    both = fields.object("rope_parameters")
    nested = "full_attention" in both.values or "sliding_attention" in both.values
    everywhere = both.object("full_attention").values if nested else both.values
    config = gemma(
        replace(fields, values={**fields.values, "rope_parameters": everywhere}),
        "gemma3_text",
        kv_heads=4,
        max_positions=131_072,
        theta=GLOBAL_THETA,
    )
    local = both.object("sliding_attention")
    base = stated([(local, "rope_theta"), (fields, "rope_local_base_freq")], LOCAL_THETA)[2]
    theta, scaling = rotation(fields, local, config.max_positions, config.rotary, base)
    period = fields.count("sliding_window_pattern", 6)
    kinds = windows(fields, config.layers, window(fields, 4096), [(layer + 1) % period > 0 for layer in range(config.layers)])
    return replace(
        config,
        post_norm=True,
        qk_norm="head",
        score_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=cap(fields, "attn_logit_softcapping", 0.0),
        logit_cap=cap(fields, "final_logit_softcapping", 0.0),
        layer_kinds=tuple(LayerKind(kind.window, rope_theta=theta, rope_scaling=scaling) if kind.window else kind for kind in kinds),
    )


GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    read=read,
    tensors=TENSORS,
    compared="norm of each head of q and k, norms before and after, local and global layers with two RoPE bases, one scaled",
)

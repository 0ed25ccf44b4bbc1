"""Mixtral: Mistral whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, mixture, window, windows


def read(fields: Fields) -> ModelConfig:
    """Experts are as wide as `intermediate_size` says; their weights add up to 1 and stay float32."""
    config = decoder(fields, "mixtral", kv_heads=8, eps_default=1e-5, max_positions=4096 * 32, theta=1_000_000.0)
    size = window(fields)
    experts = mixture(fields, config.layers, config.ffn, default=8, choices=2, normalized=True, wide_weights=True)
    return replace(config, experts=experts, layer_kinds=windows(fields, config.layers, size, [size > 0] * config.layers))


MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    read=read,
    tensors={
        "ffn.router": "block_sparse_moe.gate",
        "ffn.experts.gate_proj": "block_sparse_moe.experts.*.w1",
        "ffn.experts.up_proj": "block_sparse_moe.experts.*.w3",
        "ffn.experts.down_proj": "block_sparse_moe.experts.*.w2",
    },
    compared="two of five experts a token, sliding window, prefill and decode past it",
)

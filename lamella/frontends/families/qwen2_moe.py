"""Qwen 1.5 and 2 with mixtures of experts, and beside them an expert that all tokens go through."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.families.qwen3_moe import sparse_layers
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, mixture


def read(fields: Fields) -> ModelConfig:
    """The output projection of attention has no bias."""
    config = decoder(fields, "qwen2_moe", kv_heads=16, max_positions=32768)
    experts = mixture(
        fields,
        config.layers,
        fields.count("moe_intermediate_size", 1408),
        default=60,
        choices=4,
        normalized=fields.flag("norm_topk_prob", False),
    )
    return replace(
        config,
        attention_bias=fields.flag("qkv_bias", True),
        output_bias=False,
        experts=replace(experts, shared=fields.count("shared_expert_intermediate_size", 5632)),
        layer_kinds=sparse_layers(fields, config.layers),
    )


QWEN2_MOE = Family(
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    read=read,
    compared="a shared expert with its gate beside three of seven experts a token, QKV biases, a dense layer among them",
)

"""Qwen 3: Llama with a norm on each head of q and k, and heads of their own size."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.families.qwen2 import upper_windows
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def read(fields: Fields) -> ModelConfig:
    """All heads share one norm weight."""
    config = decoder(fields, "qwen3", head_dim=128, max_positions=32768)
    kinds = tuple(upper_windows(fields, config.layers))
    return replace(config, qk_norm="head", attention_bias=fields.flag("attention_bias", False), layer_kinds=kinds)


QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    read=read,
    compared="norm of each head of q and k, head size apart from hidden / heads, attention biases, windows in the upper layers",
)

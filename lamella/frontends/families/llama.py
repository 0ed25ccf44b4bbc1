"""Llama 2, 3, 3.1, 3.2 and what is built like them: the defaults of every building block."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def read(fields: Fields) -> ModelConfig:
    """Biases are all or none."""
    config = decoder(fields, "llama")
    return replace(config, attention_bias=fields.flag("attention_bias", False), mlp_bias=fields.flag("mlp_bias", False))


LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    read=read,
    compared="grouped heads, attention and MLP biases, head size apart from hidden / heads, RoPE scaling llama3, linear and YaRN",
)

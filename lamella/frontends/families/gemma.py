"""Gemma: norms that scale by 1 + weight, embeddings times the root of their width, GELU, a tied head."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def gemma(fields: Fields, family: str, *, kv_heads: int, max_positions: int = 8192, theta: float = 10000.0) -> ModelConfig:
    """What all generations share."""
    # Gemma's "gelu" is a mistake of the first release: its code always took the tanh approximation.
    name = "hidden_act" if family == "gemma" else "hidden_activation"
    if name == "hidden_act" and fields.get(name) == "gelu":
        fields = replace(fields, values={**fields.values, name: "gelu_pytorch_tanh"})
    config = decoder(
        fields,
        family,
        names={"hidden_act": name},
        activation_default="gelu_pytorch_tanh",
        kv_heads=kv_heads,
        head_dim=256,
        max_positions=max_positions,
        theta=theta,
        tied=True,
    )
    return replace(
        config,
        norm_offset=1.0,
        embed_scale=config.hidden**0.5,
        embed_scale_rounded=True,
        attention_bias=fields.flag("attention_bias", False),
    )


def read(fields: Fields) -> ModelConfig:
    """The first generation."""
    return gemma(fields, "gemma", kv_heads=16)


GEMMA = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    read=read,
    compared="1 + weight norms, embedding scale, tied head, one KV head, head size apart from hidden / heads",
)

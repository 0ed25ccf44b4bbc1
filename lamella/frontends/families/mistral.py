"""Mistral: Llama whose queries see a window."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, window, windows


def read(fields: Fields) -> ModelConfig:
    """Every layer has the window; null is none."""
    config = decoder(fields, "mistral", kv_heads=8, max_positions=4096 * 32)
    size = window(fields, 4096)
    return replace(config, layer_kinds=windows(fields, config.layers, size, [size > 0] * config.layers))


MISTRAL = Family(
    name="mistral", architecture="MistralForCausalLM", read=read, compared="sliding window, prefill and decode past it, head size apart"
)

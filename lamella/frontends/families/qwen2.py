"""Qwen 2 and 2.5: Llama with biases on q, k and v, and windows in the upper layers where they are switched on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamella.frontends.config import LayerKind, ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, window, windows


def upper_windows(fields: Fields, layers: int) -> Sequence[LayerKind]:
    """Windows from layer `max_window_layers` on, if `use_sliding_window`."""
    used = fields.flag("use_sliding_window", False)
    # Where windows are switched off, the field says null, 0 or how large they would be.
    size, first = window(fields, 4096) if used or fields.get("sliding_window") else 0, fields.get("max_window_layers")
    if first is not None and (type(first) is not int or first < 0):
        raise fields.error("field max_window_layers is no number of layers", "0 or more", first)
    first = 28 if first is None else first
    return windows(fields, layers, size if used else 0, [used and size > 0 and layer >= first for layer in range(layers)])


def read(fields: Fields) -> ModelConfig:
    """The output projection has no bias."""
    config = decoder(fields, "qwen2", max_positions=32768)
    return replace(config, attention_bias=True, output_bias=False, layer_kinds=tuple(upper_windows(fields, config.layers)))


QWEN2 = Family(name="qwen2", architecture="Qwen2ForCausalLM", read=read, compared="QKV biases, tied head, windows in the upper layers")

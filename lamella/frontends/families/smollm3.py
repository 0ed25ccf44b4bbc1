"""SmolLM 3: Llama of which every fourth layer knows no positions."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, window, windows


def read(fields: Fields) -> ModelConfig:
    """`no_rope_layers` holds 1 for a layer that rotates."""
    config = decoder(fields, "smollm3", kv_heads=4, max_positions=32768, theta=2_000_000.0, tied=True)
    period = fields.count("no_rope_layer_interval", 4)
    given = fields.choices("no_rope_layers", config.layers, (0, 1))
    rotates = [(layer + 1) % period > 0 for layer in range(config.layers)] if given is None else [flag == 1 for flag in given]
    size = window(fields) if fields.flag("use_sliding_window", False) else 0
    kinds = windows(fields, config.layers, size, [size > 0 and not turns for turns in rotates])
    return replace(
        config,
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        layer_kinds=tuple(replace(kind, rotates=turns) for kind, turns in zip(kinds, rotates, strict=True)),
    )


SMOLLM3 = Family(
    name="smollm3", architecture="SmolLM3ForCausalLM", read=read, compared="layers without RoPE, with windows there, biases, tied head"
)

"""Qwen 3 with mixtures of experts in all layers, or in some."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

from lamella.frontends.config import LayerKind, ModelConfig
from lamella.frontends.families.qwen2 import upper_windows
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder, mixture


def sparse_layers(fields: Fields, layers: int) -> tuple[LayerKind, ...]:
    """Every `decoder_sparse_step`-th layer has experts, save those of `mlp_only_layers`; windows are those of Qwen 2."""
    step = fields.count("decoder_sparse_step", 1)
    given: Any = fields.get("mlp_only_layers") or []
    if not isinstance(given, list) or not all(type(n) is int for n in cast("list[Any]", given)):
        raise fields.error("field mlp_only_layers is no list of layers", "a list of integers", json.dumps(given))
    dense = [number in given or (number + 1) % step != 0 for number in range(layers)]
    return tuple(replace(kind, dense=plain) for kind, plain in zip(upper_windows(fields, layers), dense, strict=True))


def read(fields: Fields) -> ModelConfig:
    """All heads share one norm weight."""
    config = decoder(fields, "qwen3_moe", kv_heads=4, max_positions=32768)
    experts = mixture(
        fields,
        config.layers,
        fields.count("moe_intermediate_size", 768),
        default=128,
        choices=8,
        normalized=fields.flag("norm_topk_prob", False),
    )
    biased = fields.flag("attention_bias", False)
    return replace(config, qk_norm="head", attention_bias=biased, experts=experts, layer_kinds=sparse_layers(fields, config.layers))


QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    read=read,
    compared="three of seven experts a token, weights normalized or not, a dense layer among them, norm of each head of q and k",
)

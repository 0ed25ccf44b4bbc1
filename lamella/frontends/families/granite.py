"""Granite 3: Llama with factors on embeddings, scores, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def read(fields: Fields) -> ModelConfig:
    """`attention_multiplier` stands in place of head_dim^-½, and logits are divided."""
    config = decoder(fields, "granite")
    return replace(
        config,
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        embed_scale=fields.number("embedding_multiplier", 1.0),
        score_scale=fields.number("attention_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0),
    )


GRANITE = Family(
    name="granite", architecture="GraniteForCausalLM", read=read, compared="embedding, attention, residual and logit multipliers, biases"
)

"""Command-R: a parallel block with one layer norm without shift, RoPE on neighbours, scaled logits, a tied head."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def read(fields: Fields) -> ModelConfig:
    """Command-R+ normalizes each head of q and k, with a weight of its own."""
    return replace(
        decoder(fields, "cohere", eps="layer_norm_eps", eps_default=1e-5, max_positions=8192, theta=500_000.0, tied=True),
        norm="layer",
        rope_style="paired",
        attention_bias=fields.flag("attention_bias", False),
        qk_norm="heads" if fields.flag("use_qk_norm", False) else "",
        parallel=True,
        shared_norm=True,
        logit_scale=fields.number("logit_scale", 0.0625),
    )


COHERE = Family(
    name="cohere",
    architecture="CohereForCausalLM",
    read=read,
    compared="parallel block with one norm, LayerNorm without bias, interleaved RoPE, logit scale, norm of each head of q and k, tied head",
)

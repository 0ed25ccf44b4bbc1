"""OLMo 2: norms only after each block, and on all heads of q and of k together."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def read(fields: Fields) -> ModelConfig:
    """RMS norms multiply by their weight in float32, and round once: what `norm_offset` 0 means."""
    config = decoder(fields, "olmo2", eps_default=1e-5)
    bias = fields.flag("attention_bias", False)
    return replace(config, pre_norm=False, post_norm=True, norm_offset=0.0, qk_norm="row", attention_bias=bias)


OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    read=read,
    tensors={"attn_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm"},
    compared="norms after the blocks only, norm of q and k over all heads, grouped heads",
)

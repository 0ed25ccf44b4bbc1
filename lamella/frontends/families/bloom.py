"""BLOOM: ALiBi in place of positions, embeddings normalized, q, k and v fused head by head, a plain MLP."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder

NAMES = {"hidden_size": "n_embed", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "intermediate_size": "n_inner"}
SEQUENCE = 2048
"""Tokens of a text that BLOOM was trained on, where the configuration does not say."""


def read(fields: Fields) -> ModelConfig:
    """Sizes have BLOOM's own names, or the newer ones; every linear has a bias."""
    if fields.flag("apply_residual_connection_post_layernorm", False):
        raise fields.error("apply_residual_connection_post_layernorm changes what is computed, and is not supported", "false", "true")
    newer = {name: own for name, own in NAMES.items() if name == "intermediate_size" or fields.has(own)}
    return replace(
        decoder(
            fields,
            "bloom",
            names={**newer, "max_position_embeddings": "seq_length", "hidden_act": "activation"},
            eps="layer_norm_epsilon",
            eps_default=1e-5,
            activation_default="gelu_new",
            max_positions=SEQUENCE,
            rotates=False,
            tied=True,
        ),
        positions="alibi",
        norm="layer",
        norm_bias=True,
        embed_norm=True,
        attention_bias=True,
        fused_qkv="heads",
        gated=False,
        mlp_bias=True,
    )


BLOOM = Family(
    name="bloom",
    architecture="BloomForCausalLM",
    read=read,
    tensors={
        "embed": "transformer.word_embeddings",
        "embed_norm": "transformer.word_embeddings_layernorm",
        "layers": "transformer.h",
        "attn.qkv_proj": "self_attention.query_key_value",
        "attn.o_proj": "self_attention.dense",
        "ffn.up_proj": "mlp.dense_h_to_4h",
        "ffn.down_proj": "mlp.dense_4h_to_h",
        "final_norm": "transformer.ln_f",
    },
    prefix="transformer.",
    compared="ALiBi of heads that are no power of 2, norm of the embeddings, QKV fused head by head, biases, names without prefix",
)

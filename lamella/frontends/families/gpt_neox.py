"""GPT-NeoX and Pythia: parallel block with two layer norms, partial RoPE, q, k and v fused head by head, a plain MLP."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder

NAMES = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def read(fields: Fields) -> ModelConfig:
    """Every linear has a bias, save the output projection of the model."""
    return replace(
        decoder(fields, "gpt_neox", names=NAMES, eps="layer_norm_eps", eps_default=1e-5, activation_default="gelu", rotary=0.25),
        norm="layer",
        norm_bias=True,
        attention_bias=fields.flag("attention_bias", True),
        fused_qkv="heads",
        gated=False,
        mlp_bias=True,
        parallel=fields.flag("use_parallel_residual", True),
    )


GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    read=read,
    tensors={
        "embed": "gpt_neox.embed_in",
        "layers": "gpt_neox.layers",
        "attn.qkv_proj": "attention.query_key_value",
        "attn.o_proj": "attention.dense",
        "ffn.up_proj": "mlp.dense_h_to_4h",
        "ffn.down_proj": "mlp.dense_4h_to_h",
        "final_norm": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
    },
    buffers=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    compared="parallel block with two LayerNorms and sequential block, partial RoPE, QKV fused head by head, biases, GELU",
)

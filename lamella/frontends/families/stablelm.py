"""StableLM 2: layer norms, a quarter of each head rotates, and norms of the heads of q and k or a parallel block where switched on."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def read(fields: Fields) -> ModelConfig:
    """A parallel block reads one norm."""
    parallel = fields.flag("use_parallel_residual", False)
    return replace(
        decoder(fields, "stablelm", eps="layer_norm_eps", eps_default=1e-5, kv_heads=32, max_positions=4096, rotary=0.25),
        norm="layer",
        norm_bias=True,
        attention_bias=fields.flag("use_qkv_bias", False),
        output_bias=False,
        qk_norm="heads" if fields.flag("qk_layernorm", False) else "",
        qk_norm_tensors="many",
        parallel=parallel,
        shared_norm=parallel,
    )


STABLELM = Family(
    name="stablelm",
    architecture="StableLmForCausalLM",
    read=read,
    tensors={"attn.q_norm": "self_attn.q_layernorm.norms", "attn.k_norm": "self_attn.k_layernorm.norms"},
    compared="partial RoPE, LayerNorm with bias, QKV biases, a LayerNorm for each head of q and k, parallel block with one norm",
)

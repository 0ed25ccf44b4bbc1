"""GPT-2: learned positions, layer norms, fused q, k and v, a plain MLP, and projections stored as [inputs, outputs]."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import LayerKind, ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder

NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
}


def read(fields: Fields) -> ModelConfig:
    """Scores may be scaled by the number of the layer too."""
    config = decoder(
        fields,
        "gpt2",
        names=NAMES,
        eps="layer_norm_epsilon",
        eps_default=1e-5,
        activation_default="gelu_new",
        max_positions=1024,
        rotates=False,
        tied=True,
    )
    scale = config.head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    each = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return replace(
        config,
        positions="learned",
        norm="layer",
        norm_bias=True,
        attention_bias=True,
        fused_qkv="rows",
        gated=False,
        mlp_bias=True,
        transposed=True,
        score_scale=scale,
        layer_kinds=tuple(LayerKind(score_scale=scale / (layer + 1)) for layer in range(config.layers)) if each else (),
    )


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    read=read,
    tensors={
        "embed": "transformer.wte",
        "embed_positions": "transformer.wpe",
        "layers": "transformer.h",
        "attn_norm": "ln_1",
        "attn.qkv_proj": "attn.c_attn",
        "attn.o_proj": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn.up_proj": "mlp.c_fc",
        "ffn.down_proj": "mlp.c_proj",
        "final_norm": "transformer.ln_f",
    },
    prefix="transformer.",
    buffers=(".attn.bias", ".attn.masked_bias"),
    compared="learned positions, transposed and fused projections, LayerNorm with bias, GELU, scores scaled by layer, names without prefix",
)

"""BERT and what is built like it (MiniLM, BGE, E5): an encoder whose tokens see all of their text; learned positions, norms of the sums."""

from __future__ import annotations

from dataclasses import replace

from lamella.frontends.config import ModelConfig
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields
from lamella.frontends.parts import decoder


def bert(fields: Fields, family: str) -> ModelConfig:
    """What all of them share: every linear has a bias. The pooler, which sentence embeddings do not read, is left out."""
    if fields.flag("is_decoder", False):
        raise fields.error("is_decoder: a BERT that generates is not supported", "false", "true")
    kind = fields.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise fields.error(
            f"position_embedding_type changes what is computed, and {family} models with it are not supported", "absolute", kind
        )
    config = decoder(
        fields, family, eps="layer_norm_eps", eps_default=1e-12, activation_default="gelu", max_positions=512, rotates=False, tied=True
    )
    return replace(
        config,
        positions="learned",
        causal=False,
        token_types=fields.count("type_vocab_size", 2),
        norm="layer",
        norm_bias=True,
        embed_norm=True,
        pre_norm=False,
        sum_norm=True,
        attention_bias=True,
        gated=False,
        mlp_bias=True,
    )


def read(fields: Fields) -> ModelConfig:
    """The first of them."""
    return bert(fields, "bert")


BERT = Family(
    name="bert",
    architecture="BertModel",
    read=read,
    tensors={
        "embed": "bert.embeddings.word_embeddings",
        "embed_types": "bert.embeddings.token_type_embeddings",
        "embed_positions": "bert.embeddings.position_embeddings",
        "embed_norm": "bert.embeddings.LayerNorm",
        "layers": "bert.encoder.layer",
        "attn.q_proj": "attention.self.query",
        "attn.k_proj": "attention.self.key",
        "attn.v_proj": "attention.self.value",
        "attn.o_proj": "attention.output.dense",
        "attn_sum_norm": "attention.output.LayerNorm",
        "ffn.up_proj": "intermediate.dense",
        "ffn.down_proj": "output.dense",
        "ffn_sum_norm": "output.LayerNorm",
    },
    prefix="bert.",
    buffers=(
        *("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"),
        *(f"cls.predictions.{name}" for name in ("bias", "decoder.weight", "decoder.bias")),
        *(f"cls.predictions.transform.{name}.{kind}" for name in ("dense", "LayerNorm") for kind in ("weight", "bias")),
    ),
    also=("BertForMaskedLM",),
    compared="encoder: hidden states of ragged batches, mean and first-token pooling; the real all-MiniLM-L6-v2",
)

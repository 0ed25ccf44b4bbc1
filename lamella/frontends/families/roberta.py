"""RoBERTa and XLM-RoBERTa: BERT whose table of positions begins behind the id of padding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lamella.frontends.config import ModelConfig
from lamella.frontends.families.bert import BERT, bert
from lamella.frontends.family import Family
from lamella.frontends.fields import Fields


def read(fields: Fields, family: str) -> ModelConfig:
    """The first token of a text has the row behind that of padding."""
    config = bert(fields, family)
    padding = fields.ids("pad_token_id") or (1,)
    left = config.max_positions - padding[0] - 1
    if left < 1:
        raise fields.error("max_position_embeddings leaves no row behind pad_token_id", f"more than {padding[0] + 1}", config.max_positions)
    return replace(config, position_offset=padding[0] + 1, max_positions=left)


def family(name: str, stem: str) -> Family:
    """Both have the tensors of BERT, under another name."""
    heads = ("bias", "decoder.weight", "decoder.bias", "dense.weight", "dense.bias", "layer_norm.weight", "layer_norm.bias")
    return replace(
        BERT,
        name=name,
        architecture=f"{stem}Model",
        read=partial(read, family=name),
        tensors={part: stored.replace("bert.", "roberta.") for part, stored in BERT.tensors.items()},
        prefix="roberta.",
        buffers=("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids", *(f"lm_head.{part}" for part in heads)),
        also=(f"{stem}ForMaskedLM",),
        compared="encoder: as BERT, positions that begin behind the id of padding",
    )


ROBERTA = family("roberta", "Roberta")
XLM_ROBERTA = family("xlm-roberta", "XLMRoberta")

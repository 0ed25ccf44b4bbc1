"""Level 1: the mathematics of a decoder model, one op per thing a paper would name, on tensors with named dimensions."""

from xdsl.ir import Dialect

from lamella.dialects.transformer.attention import AttentionOp, CacheWriteOp
from lamella.dialects.transformer.elementwise import BINARY, UNARY, AddOp, BinaryOp, MulOp, UnaryOp
from lamella.dialects.transformer.embedding import EmbeddingOp, GatherRowsOp
from lamella.dialects.transformer.linear import LinearOp, SliceColumnsOp
from lamella.dialects.transformer.norm import LayerNormOp, RMSNormOp
from lamella.dialects.transformer.rope import RopeOp, RopeTableOp, RotateOp
from lamella.dialects.transformer.sampling import AdvanceOp, SampleOp
from lamella.dialects.transformer.types import DimsAttr, KVCacheType, dimensions_of, named_tensor
from lamella.dialects.transformer.weight import (
    ConcatRowsOp,
    PairRowsOp,
    ScaleColumnsOp,
    ShiftBiasOp,
    SliceRowsOp,
    TransposeOp,
    WeightOp,
    WeightTransform,
)

Transformer = Dialect(
    "transformer",
    [
        WeightOp,
        PairRowsOp,
        ScaleColumnsOp,
        ShiftBiasOp,
        ConcatRowsOp,
        SliceRowsOp,
        TransposeOp,
        EmbeddingOp,
        GatherRowsOp,
        RMSNormOp,
        LayerNormOp,
        LinearOp,
        SliceColumnsOp,
        RopeOp,
        RopeTableOp,
        RotateOp,
        CacheWriteOp,
        AttentionOp,
        SampleOp,
        AdvanceOp,
        *UNARY.values(),
        *BINARY.values(),
    ],
    [DimsAttr, KVCacheType],
)

__all__ = [
    "BINARY",
    "UNARY",
    "AddOp",
    "AdvanceOp",
    "AttentionOp",
    "BinaryOp",
    "CacheWriteOp",
    "ConcatRowsOp",
    "DimsAttr",
    "EmbeddingOp",
    "GatherRowsOp",
    "KVCacheType",
    "LayerNormOp",
    "LinearOp",
    "MulOp",
    "PairRowsOp",
    "RMSNormOp",
    "RopeOp",
    "RopeTableOp",
    "RotateOp",
    "SampleOp",
    "ScaleColumnsOp",
    "ShiftBiasOp",
    "SliceColumnsOp",
    "SliceRowsOp",
    "Transformer",
    "TransposeOp",
    "UnaryOp",
    "WeightOp",
    "WeightTransform",
    "dimensions_of",
    "named_tensor",
]

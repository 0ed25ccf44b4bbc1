"""Level 1: the mathematics of a decoder model, one op per thing a paper would name, on tensors with named dimensions."""

from xdsl.ir import Dialect

from lamella.dialects.transformer.attention import AttentionOp, CacheWriteOp
from lamella.dialects.transformer.elementwise import BINARY, UNARY, AddOp, BinaryOp, MulOp, ScaleOp, TanhOp, UnaryOp
from lamella.dialects.transformer.embedding import EmbeddingOp, GatherRowsOp
from lamella.dialects.transformer.linear import LinearOp, SliceColumnsOp
from lamella.dialects.transformer.norm import LayerNormOp, RMSNormOp
from lamella.dialects.transformer.rope import RopeOp, RopeTableOp, RotateOp
from lamella.dialects.transformer.sampling import AdvanceOp, SampleOp
from lamella.dialects.transformer.types import DimsAttr, KVCacheType, LayoutAttr, Order, dimensions_of, named_tensor, order_of, ordered
from lamella.dialects.transformer.weight import (
    ConcatRowsOp,
    FlattenOp,
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
        FlattenOp,
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
        ScaleOp,
        *UNARY.values(),
        *BINARY.values(),
    ],
    [DimsAttr, LayoutAttr, KVCacheType],
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
    "FlattenOp",
    "GatherRowsOp",
    "KVCacheType",
    "LayerNormOp",
    "LayoutAttr",
    "LinearOp",
    "MulOp",
    "Order",
    "PairRowsOp",
    "RMSNormOp",
    "RopeOp",
    "RopeTableOp",
    "RotateOp",
    "SampleOp",
    "ScaleColumnsOp",
    "ScaleOp",
    "ShiftBiasOp",
    "SliceColumnsOp",
    "SliceRowsOp",
    "TanhOp",
    "Transformer",
    "TransposeOp",
    "UnaryOp",
    "WeightOp",
    "WeightTransform",
    "dimensions_of",
    "named_tensor",
    "order_of",
    "ordered",
]

"""Level 1: the mathematics of a decoder model, one op per thing a paper would name, on tensors with named dimensions."""

from xdsl.ir import Dialect

from lamella.dialects.packing import PackingAttr
from lamella.dialects.transformer.attention import AttentionOp, CacheWriteOp
from lamella.dialects.transformer.elementwise import BINARY, UNARY, AddOp, BinaryOp, MulOp, ScaleOp, TanhOp, UnaryOp
from lamella.dialects.transformer.embedding import EmbeddingOp, GatherRowsOp
from lamella.dialects.transformer.experts import ExpertsOp, RouteOp
from lamella.dialects.transformer.linear import LinearOp, SliceColumnsOp
from lamella.dialects.transformer.norm import LayerNormOp, RMSNormOp
from lamella.dialects.transformer.quantize import DequantizeOp, GroupMinsOp, GroupScalesOp, PackWeightOp
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
        GroupScalesOp,
        GroupMinsOp,
        PackWeightOp,
        DequantizeOp,
        EmbeddingOp,
        GatherRowsOp,
        RMSNormOp,
        LayerNormOp,
        LinearOp,
        SliceColumnsOp,
        RouteOp,
        ExpertsOp,
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
    [DimsAttr, LayoutAttr, PackingAttr, KVCacheType],
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
    "DequantizeOp",
    "DimsAttr",
    "EmbeddingOp",
    "ExpertsOp",
    "FlattenOp",
    "GatherRowsOp",
    "GroupMinsOp",
    "GroupScalesOp",
    "KVCacheType",
    "LayerNormOp",
    "LayoutAttr",
    "LinearOp",
    "MulOp",
    "Order",
    "PackWeightOp",
    "PackingAttr",
    "PairRowsOp",
    "RMSNormOp",
    "RopeOp",
    "RopeTableOp",
    "RotateOp",
    "RouteOp",
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

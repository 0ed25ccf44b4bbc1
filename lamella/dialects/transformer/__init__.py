"""Level 1: the mathematics of a decoder model, one op per thing a paper would name, on tensors with named dimensions."""

from xdsl.ir import Dialect

from lamella.dialects.packing import PackingAttr
from lamella.dialects.transformer.attention import AttentionOp, CacheWriteOp
from lamella.dialects.transformer.elementwise import BINARY, UNARY, AddOp, BinaryOp, MulOp, ScaleOp, ScaleRowsOp, SigmoidOp, TanhOp, UnaryOp
from lamella.dialects.transformer.embedding import EmbeddingOp, GatherColumnsOp, GatherRowsOp
from lamella.dialects.transformer.experts import ExpertsOp, RouteOp
from lamella.dialects.transformer.linear import LinearOp, SliceColumnsOp
from lamella.dialects.transformer.norm import LayerNormOp, RMSNormOp
from lamella.dialects.transformer.quantize import ByGroupOp, DequantizeOp, GroupMinsOp, GroupScalesOp, PackWeightOp
from lamella.dialects.transformer.quantize_rows import ROW_KINDS, DequantizeRowsOp, QuantizeRowsOp
from lamella.dialects.transformer.rope import RopeOp, RopeRowOp, RopeTableOp, RotateOp, original_length
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
        ByGroupOp,
        GroupScalesOp,
        GroupMinsOp,
        PackWeightOp,
        DequantizeOp,
        QuantizeRowsOp,
        DequantizeRowsOp,
        EmbeddingOp,
        GatherRowsOp,
        GatherColumnsOp,
        RMSNormOp,
        LayerNormOp,
        LinearOp,
        SliceColumnsOp,
        RouteOp,
        ExpertsOp,
        RopeOp,
        RopeTableOp,
        RopeRowOp,
        RotateOp,
        CacheWriteOp,
        AttentionOp,
        SampleOp,
        AdvanceOp,
        ScaleOp,
        ScaleRowsOp,
        *UNARY.values(),
        *BINARY.values(),
    ],
    [DimsAttr, LayoutAttr, PackingAttr, KVCacheType],
)

__all__ = [
    "BINARY",
    "ROW_KINDS",
    "UNARY",
    "AddOp",
    "AdvanceOp",
    "AttentionOp",
    "BinaryOp",
    "ByGroupOp",
    "CacheWriteOp",
    "ConcatRowsOp",
    "DequantizeOp",
    "DequantizeRowsOp",
    "DimsAttr",
    "EmbeddingOp",
    "ExpertsOp",
    "FlattenOp",
    "GatherColumnsOp",
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
    "QuantizeRowsOp",
    "RMSNormOp",
    "RopeOp",
    "RopeRowOp",
    "RopeTableOp",
    "RotateOp",
    "RouteOp",
    "SampleOp",
    "ScaleColumnsOp",
    "ScaleOp",
    "ScaleRowsOp",
    "ShiftBiasOp",
    "SigmoidOp",
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
    "original_length",
]

"""Level 1: the mathematics of a decoder model, one op per thing a paper would name, on tensors with named dimensions."""

from xdsl.ir import Dialect

from lamella.dialects.transformer.attention import AttentionOp, CacheWriteOp
from lamella.dialects.transformer.elementwise import BINARY, UNARY, AddOp, BinaryOp, MulOp, UnaryOp
from lamella.dialects.transformer.embedding import EmbeddingOp, GatherRowsOp
from lamella.dialects.transformer.linear import LinearOp
from lamella.dialects.transformer.norm import RMSNormOp
from lamella.dialects.transformer.rope import RopeOp, RopeTableOp, RotateOp
from lamella.dialects.transformer.sampling import AdvanceOp, SampleOp
from lamella.dialects.transformer.types import DimsAttr, KVCacheType, dimensions_of, named_tensor
from lamella.dialects.transformer.weight import WeightOp

Transformer = Dialect(
    "transformer",
    [
        WeightOp,
        EmbeddingOp,
        GatherRowsOp,
        RMSNormOp,
        LinearOp,
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
    "DimsAttr",
    "EmbeddingOp",
    "GatherRowsOp",
    "KVCacheType",
    "LinearOp",
    "MulOp",
    "RMSNormOp",
    "RopeOp",
    "RopeTableOp",
    "RotateOp",
    "SampleOp",
    "Transformer",
    "UnaryOp",
    "WeightOp",
    "dimensions_of",
    "named_tensor",
]

"""What each op means on torch tensors: tensors and attributes enter, tensors leave. Imports torch and nothing of ours."""

from . import (  # fills the tables
    attention,
    elementwise,
    embedding,
    experts,
    linear,
    norm,
    quantize,
    quantize_rows,
    rope,
    sampling,
    tile,
    weight,
)
from .table import DTYPES, IMPLEMENTATIONS, REDUCTIONS, SCALARS, implements, reduction, scalar

__all__ = [
    "DTYPES",
    "IMPLEMENTATIONS",
    "REDUCTIONS",
    "SCALARS",
    "attention",
    "elementwise",
    "embedding",
    "experts",
    "implements",
    "linear",
    "norm",
    "quantize",
    "quantize_rows",
    "reduction",
    "rope",
    "sampling",
    "scalar",
    "tile",
    "weight",
]

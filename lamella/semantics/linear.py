# pyright: basic
"""Matrix products with checkpoint weights, which lie as [outputs, inputs]."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .table import DTYPES, implements, wide

BATCH = 4
"""Bands of rows a weight is cut into for a product with one row."""


def contract(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x[M, K] @ weight[O, K]ᵀ -> [M, O] float32: operands are widened first, so products are exact and sums are float32."""
    x, weight = wide(x), wide(weight)
    outputs, inputs = weight.shape
    if x.shape[0] != 1 or outputs % BATCH:
        return F.linear(x, weight)
    # One row: MKL's matrix-vector product takes one core of an AMD processor and three times as long as its batched product,
    # which is only fast where the strides of the column say that it is a transposed row.
    column = x.t().expand(BATCH, inputs, 1)
    return torch.bmm(weight.view(BATCH, outputs // BATCH, inputs), column).view(1, outputs)


@implements("transformer.linear")
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: str) -> torch.Tensor:
    """x[N, K], weight[O, K] (, bias[O]) -> [N, O] of `dtype`: accumulated in float32, the bias added there, rounded once."""
    out = contract(x, weight)
    if bias is not None:
        out = out + wide(bias)
    return out.to(DTYPES[dtype])


@implements("transformer.slice_columns")
def slice_columns(x: torch.Tensor, *, start: int, size: int) -> torch.Tensor:
    """x[N, E] -> [N, size]."""
    return x[:, start : start + size].contiguous()

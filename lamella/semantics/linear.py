# pyright: basic
"""Matrix products with checkpoint weights, which lie as [outputs, inputs]."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .table import DTYPES, implements


def contract(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x[M, K] @ weight[O, K]ᵀ -> [M, O] float32: operands are widened first, so products are exact and sums are float32."""
    return F.linear(x.float(), weight.float())


@implements("transformer.linear")
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, dtype: str) -> torch.Tensor:
    """x[N, K], weight[O, K] (, bias[O]) -> [N, O] of `dtype`: accumulated in float32, the bias added there, rounded once."""
    out = contract(x, weight)
    if bias is not None:
        out = out + bias.float()
    return out.to(DTYPES[dtype])

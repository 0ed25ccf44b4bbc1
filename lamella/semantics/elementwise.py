# pyright: basic
"""Elementwise kinds and last-axis reductions as torch functions, and the `transformer` ops made from them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .table import IMPLEMENTATIONS, SCALARS, implements, reduction, scalar, wide

scalar("add")(torch.add)
scalar("sub")(torch.sub)
scalar("mul")(torch.mul)
scalar("div")(torch.div)
scalar("maximum")(torch.maximum)
scalar("minimum")(torch.minimum)
scalar("neg")(torch.neg)
scalar("relu")(torch.relu)
scalar("silu")(F.silu)
scalar("gelu")(F.gelu)
scalar("tanh")(torch.tanh)
scalar("sigmoid")(torch.sigmoid)
scalar("exp")(torch.exp)
scalar("log")(torch.log)
scalar("sqrt")(torch.sqrt)
scalar("rsqrt")(torch.rsqrt)
scalar("square")(torch.square)


@scalar("gelu_tanh")
def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks & Gimpel 2016, the approximation)."""
    return F.gelu(x, approximate="tanh")


@scalar("equal")
def equal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1 where x = y, else 0, in x's type."""
    return (x == y).to(x.dtype)


@scalar("select")
def select(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x where the condition is not 0, else y."""
    return torch.where(condition != 0, x, y)


@reduction("sum")
def sum_last(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis, kept."""
    return x.sum(-1, keepdim=True)


@reduction("mean")
def mean_last(x: torch.Tensor) -> torch.Tensor:
    """Mean over the last axis, kept."""
    return x.mean(-1, keepdim=True)


@reduction("max")
def max_last(x: torch.Tensor) -> torch.Tensor:
    """Largest value of the last axis, kept."""
    return x.amax(-1, keepdim=True)


@reduction("min")
def min_last(x: torch.Tensor) -> torch.Tensor:
    """Smallest value of the last axis, kept."""
    return x.amin(-1, keepdim=True)


def rounded(function: Callable) -> Callable:
    """`function` computed in float32 on floating operands, its result rounded to the first operand's dtype; integers stay as they are."""

    def implementation(*operands: torch.Tensor) -> torch.Tensor:
        if not operands[0].is_floating_point():
            return function(*operands)
        return function(*(x.float() for x in operands)).to(operands[0].dtype)

    return implementation


@implements("transformer.scale")
def scale(x: torch.Tensor, *, factor: float) -> torch.Tensor:
    """x·factor in float32, rounded once to x's dtype."""
    return (wide(x) * factor).to(x.dtype)


@implements("transformer.scale_rows")
def scale_rows(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """x[N, E], factor[N, 1] -> [N, E]: the product in float32, rounded once to x's dtype."""
    return (wide(x) * wide(factor)).to(x.dtype)


for _kind in (
    *("add", "sub", "mul", "div", "maximum"),
    *("silu", "gelu", "gelu_tanh", "relu", "tanh", "sigmoid", "exp", "sqrt", "neg"),
):
    IMPLEMENTATIONS[f"transformer.{_kind}"] = rounded(SCALARS[_kind])

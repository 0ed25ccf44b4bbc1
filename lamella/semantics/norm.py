# pyright: basic
"""Normalizations: rows of activations enter, rows of the same dtype leave."""

from __future__ import annotations

import torch

from .table import implements, wide


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """x[…, E] -> […, heads, E/heads], whose last axis is normalized."""
    return x.unflatten(-1, (heads, -1))


def parameter(vector: torch.Tensor, heads: int, width: int) -> torch.Tensor:
    """A parameter [E/heads], or [E], in float32 as it multiplies what `by_head` makes."""
    return wide(vector) if vector.shape[0] == width else wide(vector).view(heads, -1)


@implements("transformer.rms_norm")
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float, offset: float | None = None, heads: int = 1
) -> torch.Tensor:
    """x[N, E] (, weight[E]) -> [N, E]: x·rsqrt(mean x² + eps) in float32, rounded to x's dtype, times weight (Zhang & Sennrich 2019; Llama).

    Without a weight it is rounded once; with an `offset` too: x·rsqrt(…)·(offset + weight), as Gemma's model code has it. With `heads` the
    mean is that of each head, and the weight is [E/heads], or [E].
    """
    xf = by_head(wide(x), heads)
    normal = xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        scale = parameter(weight, heads, xf.shape[-1])
        normal = normal * (offset + scale) if offset is not None else wide(normal.to(x.dtype)) * scale
    return normal.to(x.dtype).flatten(-2)


@implements("transformer.layer_norm")
def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, eps: float, heads: int = 1
) -> torch.Tensor:
    """x[N, E] (, weight[E] (, bias[E])) -> [N, E]: (x - mean)·rsqrt(variance + eps)·weight + bias in float32, rounded once (Ba et al. 2016).

    With `heads` mean and variance are those of each head, and weight and bias are [E/heads], or [E].
    """
    xf = by_head(wide(x), heads)
    centred = xf - xf.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    for vector, join in ((weight, torch.mul), (bias, torch.add)):
        normal = normal if vector is None else join(normal, parameter(vector, heads, xf.shape[-1]))
    return normal.to(x.dtype).flatten(-2)

# pyright: basic
"""Normalizations: rows of activations enter, rows of the same dtype leave."""

from __future__ import annotations

import torch

from .table import implements, wide


@implements("transformer.rms_norm")
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float, offset: float | None = None) -> torch.Tensor:
    """x[N, E] (, weight[E]) -> [N, E]: x·rsqrt(mean x² + eps) in float32, rounded to x's dtype, times weight (Zhang & Sennrich 2019; Llama).

    Without a weight it is rounded once; with an `offset` too: x·rsqrt(…)·(offset + weight), as Gemma's model code has it.
    """
    xf = wide(x)
    normal = xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)
    if weight is None:
        return normal.to(x.dtype)
    if offset is not None:
        return (normal * (offset + wide(weight))).to(x.dtype)
    return (wide(normal.to(x.dtype)) * wide(weight)).to(x.dtype)


@implements("transformer.layer_norm")
def layer_norm(x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, eps: float) -> torch.Tensor:
    """x[N, E] (, weight[E] (, bias[E])) -> [N, E]: (x - mean)·rsqrt(variance + eps)·weight + bias in float32, rounded once (Ba et al. 2016)."""
    xf = wide(x)
    centred = xf - xf.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    for vector, join in ((weight, torch.mul), (bias, torch.add)):
        normal = normal if vector is None else join(normal, wide(vector))
    return normal.to(x.dtype)

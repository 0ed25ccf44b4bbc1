# pyright: basic
"""Normalizations: rows of activations enter, rows of the same dtype leave."""

from __future__ import annotations

import torch

from .table import implements


@implements("transformer.rms_norm")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """x[N, E], weight[E] -> [N, E]: x·rsqrt(mean x² + eps) in float32, rounded to x's dtype, times weight (Zhang & Sennrich 2019; Llama)."""
    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal.to(x.dtype).float() * weight.float()).to(x.dtype)

# pyright: basic
"""Activations in eight bits: how rows become small numbers with a scale each, and back."""

from __future__ import annotations

import torch

from .table import SCALARS, implements, scalar, wide

LARGEST = {"int8": 127.0, "fp8": 448.0}
"""What the largest magnitude of a row becomes."""
LEAST = 2.0**-100
"""The magnitude that a row has at least, so that zeros are divided by something."""


@scalar("magnitude")
def magnitude(x: torch.Tensor) -> torch.Tensor:
    """|x|, and infinity where x is no number, so that a largest magnitude never forgets one."""
    return torch.where(x.isnan(), float("inf"), x.abs())


def nearest_byte(x: torch.Tensor) -> torch.Tensor:
    """The nearest whole number from -128 to 127, ties to even, as int8; NaN becomes any."""
    return x.round().nan_to_num(nan=0.0).clamp(-128, 127).to(torch.int8)


@implements("transformer.quantize_rows")
def quantize_rows(x: torch.Tensor, *, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x[N, K] -> values[N, K] int8 or float8, scales[N, 1] float32: value · scale is x to the nearest; LLM.int8(), arXiv 2208.07339, row by row.

    The scale is the largest magnitude of a row (at least LEAST) / 127, or / 448; infinite where the row holds an infinity or NaN.
    """
    numbers = wide(x).float()
    scales = SCALARS["magnitude"](numbers).amax(-1, keepdim=True).clamp(min=LEAST) * (1.0 / LARGEST[kind])
    divided = numbers / scales
    return (nearest_byte(divided) if kind == "int8" else divided.to(torch.float8_e4m3fn)), scales


@implements("transformer.dequantize_rows")
def dequantize_rows(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """values[N, K] int8 or float8, scales[N, 1] -> float32 [N, K]: value · scale."""
    return values.float() * scales

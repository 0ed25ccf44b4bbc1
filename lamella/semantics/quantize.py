# pyright: basic
"""Weights in few bits: how floats become packed words with scales, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .table import DTYPES, implements, wide

BITS = {"int4": 4, "int8": 8}
CUTS = 16
"""Ranges that the search for the least squared error tries: from the whole one down in steps of 1/32."""
ROWS = 1 << 22
"""Weights that are worked on at a time: temporaries stay small beside a large weight."""


def shifts(bits: int) -> list[int]:
    """The lowest bit of each number of a word: neighbours lie half a word apart."""
    return [bits * (i // 2) + 16 * (i % 2) for i in range(32 // bits)]


def pack(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """numbers[O, K] without sign, below 2^bits -> words[O, K·bits/32] i32."""
    each = numbers.to(torch.int32).unflatten(1, (-1, 32 // bits))
    words = torch.zeros(each.shape[:2], dtype=torch.int32, device=each.device)
    for i, shift in enumerate(shifts(bits)):
        words |= each[:, :, i] << shift
    return words


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words[O, W] i32 -> numbers[O, W·32/bits] f32, whole and without sign."""
    out = torch.empty((*words.shape, 32 // bits), dtype=torch.float32, device=words.device)
    for i, shift in enumerate(shifts(bits)):
        out[..., i] = (words >> shift) & ((1 << bits) - 1)
    return out.flatten(1)


@implements("transformer.dequantize")
@implements("tile.dequantize")
def dequantize(words: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None = None, *, packing: Mapping[str, Any]) -> torch.Tensor:
    """words[O, W] i32, scales[O, G] (, mins[O, G]) -> w[O, K] f32: scale·(q - zero), or scale·q + min, in float32."""
    bits = BITS[packing["kind"]]
    grouped = unpack(words, bits).unflatten(1, (scales.shape[1], -1))
    if mins is None:
        grouped -= 1 << (bits - 1)
        grouped *= scales.float()[..., None]
    else:
        grouped *= scales.float()[..., None]
        grouped += mins.float()[..., None]
    return grouped.flatten(1)


def _whole(grouped: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, bits: int) -> torch.Tensor:
    """The numbers of weights [O, G, group] by scales and mins [O, G]: the nearest there are."""
    step = torch.where(scales == 0, 1.0, scales)[..., None]
    shifted = grouped / step + (1 << (bits - 1)) if mins is None else (grouped - mins[..., None]) / step
    return shifted.round_().clamp_(0, (1 << bits) - 1)


def _scales(grouped: torch.Tensor, bits: int, affine: bool, dtype: torch.dtype) -> torch.Tensor:
    """Scales of uncut groups, rounded as they are stored."""
    if affine:
        scales = (grouped.amax(-1) - grouped.amin(-1)) / ((1 << bits) - 1)
    else:
        half = 1 << (bits - 1)
        scales = torch.maximum(grouped.amax(-1) / (half - 1), grouped.amin(-1) / -half)
    return scales.to(dtype).float()


def _mins(grouped: torch.Tensor, scales: torch.Tensor, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """Where a range begins that was cut to `scales`: cutting keeps the share of the range below 0."""
    low = grouped.amin(-1)
    width = grouped.amax(-1) - low
    kept = scales * ((1 << bits) - 1) / torch.where(width == 0, 1.0, width)
    return torch.where(width == 0, low, low * kept.clamp(max=1.0)).to(dtype).float()


def _in_bands(function: Callable[..., torch.Tensor], weight: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """`function` on bands of rows, results joined."""
    rows = max(1, ROWS // weight.shape[1])
    return torch.cat([function(*(t[at : at + rows] for t in (weight, *others))) for at in range(0, weight.shape[0], rows)])


@implements("transformer.group_scales")
def group_scales(weight: torch.Tensor, *, packing: Mapping[str, Any], dtype: str, affine: bool = False, clip: bool = False) -> torch.Tensor:
    """w[O, K] -> scales[O, K/group] of `dtype`; with `clip` those of the range, whole or cut, whose squared error is least."""
    bits, group, kind = BITS[packing["kind"]], packing["group"], DTYPES[dtype]

    def band(part: torch.Tensor) -> torch.Tensor:
        grouped = wide(part).unflatten(1, (-1, group))
        whole = _scales(grouped, bits, affine, kind)
        best, least = whole, None
        for cut in range(CUTS if clip else 0):
            scales = (whole * (1 - cut / 32)).to(kind).float()
            mins = _mins(grouped, scales, bits, kind) if affine else None
            numbers = _whole(grouped, scales, mins, bits)
            made = numbers * scales[..., None] + mins[..., None] if mins is not None else (numbers - (1 << (bits - 1))) * scales[..., None]
            error = (made - grouped).square_().sum(-1)
            better = error < least if least is not None else torch.ones_like(error, dtype=torch.bool)
            best, least = torch.where(better, scales, best), torch.where(better, error, error if least is None else least)
        return best.to(kind)

    return _in_bands(band, weight)


@implements("transformer.group_mins")
def group_mins(weight: torch.Tensor, scales: torch.Tensor, *, packing: Mapping[str, Any]) -> torch.Tensor:
    """w[O, K], scales[O, G] -> mins[O, G] of scales' dtype: what 0 stands for."""
    bits, group = BITS[packing["kind"]], packing["group"]

    def band(part: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return _mins(wide(part).unflatten(1, (-1, group)), wide(scale), bits, scales.dtype).to(scales.dtype)

    return _in_bands(band, weight, scales)


@implements("transformer.pack_weight")
def pack_weight(
    weight: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None = None, *, packing: Mapping[str, Any]
) -> torch.Tensor:
    """w[O, K], scales[O, G] (, mins[O, G]) -> words[O, K·bits/32] i32: each weight as the nearest number its group has."""
    bits, group = BITS[packing["kind"]], packing["group"]

    def band(part: torch.Tensor, scale: torch.Tensor, *low: torch.Tensor) -> torch.Tensor:
        grouped = wide(part).unflatten(1, (-1, group))
        return pack(_whole(grouped, wide(scale), wide(low[0]) if low else None, bits).flatten(1), bits)

    return _in_bands(band, weight, scales, *(() if mins is None else (mins,)))

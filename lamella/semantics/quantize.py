# pyright: basic
"""Weights in few bits: how floats become packed numbers with scales, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .table import DTYPES, implements, wide

BITS = {"int4": 4, "int8": 8, "fp8": 8}
FLOATS = {"fp8": torch.float8_e4m3fn}
"""Kinds that are floats: each number is stored as one."""
CUTS = 16
"""Ranges that the search for the least squared error tries: from the whole one down in steps of 1/32."""
ROWS = 1 << 22
"""Weights that are worked on at a time: temporaries stay small beside a large weight."""


def half(group: int) -> int:
    """Columns between the two numbers of four bits that share a byte: a power of two, at most 64, so that both are in one group."""
    return min(64, (group & -group) // 2)


def pack(numbers: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """numbers[O, K] without sign, below 2^bits, in groups of so many columns -> words[O, K·bits/32] i32, as `#transformer.packing` lays them."""
    signed = numbers.to(torch.uint8) ^ (1 << (bits - 1))
    if bits == 4:
        low, high = signed.unflatten(1, (-1, 2, half(group))).unbind(2)
        signed = (low | high << 4).flatten(1)
    return signed.contiguous().view(torch.int32)


def packed_numbers(numbers: torch.Tensor, kind: str, group: int) -> torch.Tensor:
    """numbers[O, K] of a kind, in groups of so many columns -> how they are stored: words i32, or floats of eight bits."""
    return numbers.to(FLOATS[kind]) if kind in FLOATS else pack(numbers, BITS[kind], group)


def unpack(words: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """words[O, W] i32 -> numbers[O, W·32/bits] f32, whole and without sign."""
    found = words.contiguous().view(torch.uint8) ^ (0x88 if bits == 4 else 0x80)
    if bits == 4:
        found = found.unflatten(1, (-1, half(group)))
        found = torch.stack([found & 15, found >> 4], dim=2).flatten(1)
    return found.float()


@implements("transformer.dequantize")
@implements("tile.dequantize")
def dequantize(
    words: torch.Tensor, scales: torch.Tensor, *others: torch.Tensor | None, packing: Mapping[str, Any], by_group: int = 0
) -> torch.Tensor:
    """words[O, W] i32 (fp8: [O, K] f8), scales[O, G] (, mins[O, G]) -> w[O, K] f32: scale·(q - zero), or scale·q + min, in float32.

    Scales and mins of int8 are followed by super_scales[O, G/n] (, super_mins[O, G/n]), which multiply n neighbours each. `by_group` = r: all of these
    are turned, r neighbours of a row side by side: [G/r, O·r], [G/(n·r), O·r].
    """
    scales, mins = whole_factors(scales, *others, by_group=by_group)
    if packing["kind"] in FLOATS:
        return words.float() * scales
    bits = BITS[packing["kind"]]
    grouped = unpack(words, bits, packing["group"]).unflatten(1, (scales.shape[1], -1))
    if mins is None:
        grouped -= 1 << (bits - 1)
        grouped *= scales[..., None]
    else:
        grouped *= scales[..., None]
        grouped += mins[..., None]
    return grouped.flatten(1)


def whole_factors(scales: torch.Tensor, *others: torch.Tensor | None, by_group: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
    """scales[O, G] (, mins[O, G]) (, of int8 super_scales[O, G/n] (, super_mins[O, G/n])) -> float32 scales and mins [O, G], all multiplied."""
    parts = [(group_by_group(t, together=by_group) if by_group else t).float() for t in (scales, *others) if t is not None]
    if scales.dtype == torch.int8:
        own, over = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        parts = [(a.unflatten(1, (b.shape[1], -1)) * b[..., None]).flatten(1) for a, b in zip(own, over, strict=True)]
    return parts[0], parts[1] if len(parts) > 1 else None


def nearest_numbers(grouped: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, kind: str) -> torch.Tensor:
    """The numbers of weights [O, G, group] by scales and mins [O, G]: the nearest there are."""
    step, bits = torch.where(scales == 0, 1.0, scales)[..., None], BITS[kind]
    if kind in FLOATS:
        # What is beyond the largest float would become NaN.
        most = torch.finfo(FLOATS[kind]).max
        return (grouped / step).clamp_(-most, most).to(FLOATS[kind]).float()
    shifted = grouped / step + (1 << (bits - 1)) if mins is None else (grouped - mins[..., None]) / step
    return shifted.round_().clamp_(0, (1 << bits) - 1)


def dequantized(numbers: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, kind: str) -> torch.Tensor:
    """The weights [O, G, group] that numbers stand for."""
    if mins is not None:
        return numbers * scales[..., None] + mins[..., None]
    return (numbers - (0 if kind in FLOATS else 1 << (BITS[kind] - 1))) * scales[..., None]


def range_of(grouped: torch.Tensor, kind: str, affine: bool, kept: float = 1.0) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales [O, G] of weights [O, G, group], and with `affine` their least values: those of the share `kept` of the range of each group.

    Cutting keeps the share of the range below 0. A float of eight bits has a sign, and so no least value.
    """
    if kind in FLOATS:
        return grouped.abs().amax(-1) * (kept / torch.finfo(FLOATS[kind]).max), None
    low, high = grouped.amin(-1), grouped.amax(-1)
    if affine:
        # A group of equal weights is its least value, which no cut may move.
        return (high - low) * (kept / ((1 << BITS[kind]) - 1)), torch.where(high == low, low, low * kept)
    half = 1 << (BITS[kind] - 1)
    return torch.maximum(high / (half - 1), low / -half) * kept, None


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
    kind, group, element = packing["kind"], packing["group"], DTYPES[dtype]

    def band(part: torch.Tensor) -> torch.Tensor:
        grouped = wide(part).unflatten(1, (-1, group))
        whole = range_of(grouped, kind, affine)[0].to(element).float()
        best, least = whole, None
        for cut in range(CUTS if clip else 0):
            scales = (whole * (1 - cut / 32)).to(element).float()
            mins = _mins(grouped, scales, BITS[kind], element) if affine else None
            error = (dequantized(nearest_numbers(grouped, scales, mins, kind), scales, mins, kind) - grouped).square_().sum(-1)
            better = error < least if least is not None else torch.ones_like(error, dtype=torch.bool)
            best, least = torch.where(better, scales, best), torch.where(better, error, error if least is None else least)
        return best.to(element)

    return _in_bands(band, weight)


@implements("transformer.group_mins")
def group_mins(weight: torch.Tensor, scales: torch.Tensor, *, packing: Mapping[str, Any]) -> torch.Tensor:
    """w[O, K], scales[O, G] -> mins[O, G] of scales' dtype: what 0 stands for."""
    bits, group = BITS[packing["kind"]], packing["group"]

    def band(part: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return _mins(wide(part).unflatten(1, (-1, group)), wide(scale), bits, scales.dtype).to(scales.dtype)

    return _in_bands(band, weight, scales)


@implements("transformer.by_group")
def group_by_group(scales: torch.Tensor, *, together: int = 1) -> torch.Tensor:
    """scales[O, G] -> [G/r, O·r]: those of r = `together` neighbouring groups side by side, row after row. Done again it is undone."""
    return scales.unflatten(1, (-1, together)).transpose(0, 1).flatten(1).contiguous()


@implements("transformer.pack_weight")
def pack_weight(
    weight: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None = None, *, packing: Mapping[str, Any]
) -> torch.Tensor:
    """w[O, K], scales[O, G] (, mins[O, G]) -> words[O, K·bits/32] i32, or [O, K] f8: each weight as the nearest number its group has."""
    kind, group = packing["kind"], packing["group"]

    def band(part: torch.Tensor, scale: torch.Tensor, *low: torch.Tensor) -> torch.Tensor:
        numbers = nearest_numbers(wide(part).unflatten(1, (-1, group)), wide(scale), wide(low[0]) if low else None, kind).flatten(1)
        return packed_numbers(numbers, kind, group)

    return _in_bands(band, weight, scales, *(() if mins is None else (mins,)))

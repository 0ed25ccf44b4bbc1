# pyright: basic
"""Rotary position embeddings: positions become cosines and sines, pairs of dimensions of a head are turned by them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from .table import implements


def inverse_frequencies(rotary_dim: int, theta: float, scaling: Mapping, *, long: bool = False) -> torch.Tensor:
    """Angles per position, float32 [rotary_dim/2]: theta^(-2j/rotary_dim) (Su et al. 2021), after the checkpoint's `scaling`.

    `scaling` is `{}`, or holds `rope_type` `linear` (all divided by `factor`) or `llama3` (wavelengths beyond
    original_max_position_embeddings / low_freq_factor divided by `factor`, those below original / high_freq_factor kept, a linear blend
    between: Llama 3.1), `yarn` (interpolated by `factor` below, kept above the dimensions that turn beta_slow and beta_fast times in the
    original length, a ramp between: Peng et al. 2023) or `longrope` (each divided by its short_factor, or with `long` its long_factor:
    Ding et al. 2024). The operations and their order give the float32 numbers of Hugging Face
    transformers. What cosines and sines are multiplied by is `attention_factor`, in `rope_rows`.
    Raises ValueError for any other kind.
    """
    kind = scaling.get("rope_type", "default")
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    frequencies = 1.0 / theta**exponents
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "llama3":
        factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
        original = scaling["original_max_position_embeddings"]
        wavelengths = 2 * math.pi / frequencies
        blend = (original / wavelengths - low) / (high - low)
        slow = frequencies / factor
        between = (1 - blend) * slow + blend * frequencies
        return torch.where(wavelengths > original / low, slow, torch.where(wavelengths < original / high, frequencies, between))
    if kind == "yarn":
        keep = yarn_kept(rotary_dim, theta, scaling)
        return frequencies / scaling["factor"] * (1 - keep) + frequencies * keep
    if kind == "longrope":
        factors = torch.tensor(scaling["long_factor" if long else "short_factor"], dtype=torch.float32)
        return 1.0 / (factors * theta**exponents)
    raise ValueError(f"unknown RoPE scaling kind {kind!r}, expected one of default, linear, llama3, yarn, longrope")


def yarn_kept(rotary_dim: int, theta: float, scaling: Mapping) -> torch.Tensor:
    """YaRN's share of each frequency that stays as it is, float32 [rotary_dim/2], 1 for the fast ones, 0 for the slow ones."""
    original = scaling["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling["beta_fast"]), dimension(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    ramp = (torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    return 1 - ramp.clamp(0, 1)


def rope_rows(positions: torch.Tensor, rotary_dim: int, theta: float, scaling: Mapping, *, long: bool = False) -> torch.Tensor:
    """positions[N] -> float32 [N, rotary_dim]: cos(p·f_j) for all j, then sin(p·f_j), times `scaling`'s attention_factor."""
    angles = positions.float()[:, None] * inverse_frequencies(rotary_dim, theta, scaling, long=long).to(positions.device)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling.get("attention_factor", 1.0)


def rotate_rows(x: torch.Tensor, rows: torch.Tensor, *, heads: int, head_dim: int, rotary_dim: int, style: str) -> torch.Tensor:
    """x[N, heads·head_dim] float32, rows[N, rotary_dim] float32 (cosines, sines) -> [N, heads·head_dim] float32.

    Pair j of each head, (a, b), becomes (a·cos - b·sin, b·cos + a·sin). In style `half` its places are j and j + rotary_dim/2, in style
    `paired` 2j and 2j + 1. Dimensions from rotary_dim on pass through. Raises ValueError for another style.
    """
    out = x.reshape(-1, heads, head_dim).clone()
    half = rotary_dim // 2
    if style == "half":
        first, second = out[..., :half], out[..., half:rotary_dim]
    elif style == "paired":
        first, second = out[..., 0:rotary_dim:2], out[..., 1:rotary_dim:2]
    else:
        raise ValueError(f"unknown RoPE style {style!r}, expected half or paired")
    cos, sin = rows[:, None, :half], rows[:, None, half:]
    a, b = first * cos - second * sin, second * cos + first * sin
    first.copy_(a)
    second.copy_(b)
    return out.reshape(x.shape)


@implements("transformer.rope_table")
def rope_table(*, length: int, rotary_dim: int, theta: float, scaling: Mapping) -> torch.Tensor:
    """-> float32 [length, rotary_dim]; row p holds the cosines, then the sines, of position p.

    Of LongRoPE a table longer than the original length is [2·length, rotary_dim]: rows length + p are those of the long factors.
    """
    rows = rope_rows(torch.arange(length), rotary_dim, theta, scaling)
    if length <= scaling.get("original_max_position_embeddings", length) or scaling["rope_type"] != "longrope":
        return rows
    return torch.cat((rows, rope_rows(torch.arange(length), rotary_dim, theta, scaling, long=True)))


@implements("transformer.rope_row")
def rope_row(positions: torch.Tensor, lengths: torch.Tensor, *, length: int, original: int) -> torch.Tensor:
    """positions[N], lengths[N] i32 -> i32 [N]: position, plus `length` for tokens of texts longer than `original`."""
    return positions + (lengths > original).to(positions.dtype) * length


@implements("transformer.rope")
def rope(
    x: torch.Tensor,
    positions: torch.Tensor,
    lengths: torch.Tensor | None = None,
    *,
    heads: int,
    head_dim: int,
    rotary_dim: int,
    theta: float,
    scaling: Mapping,
    style: str,
) -> torch.Tensor:
    """x[N, heads·head_dim], positions[N] i32 (, lengths[N] i32 of LongRoPE's texts) -> like x: turned in float32, rounded once."""
    rows = rope_rows(positions, rotary_dim, theta, scaling)
    if lengths is not None:
        long = (lengths > scaling["original_max_position_embeddings"])[:, None]
        rows = torch.where(long, rope_rows(positions, rotary_dim, theta, scaling, long=True), rows)
    return rotate_rows(x.float(), rows, heads=heads, head_dim=head_dim, rotary_dim=rotary_dim, style=style).to(x.dtype)


@implements("transformer.rotate")
def rotate(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, *, heads: int, head_dim: int, rotary_dim: int, style: str
) -> torch.Tensor:
    """x[N, heads·head_dim], positions[N] i32 below T, table[T, rotary_dim] float32 -> like x: turned in float32, rounded once."""
    rows = table.index_select(0, positions)
    return rotate_rows(x.float(), rows, heads=heads, head_dim=head_dim, rotary_dim=rotary_dim, style=style).to(x.dtype)

# pyright: basic
"""A float weight and what it multiplies enter; its numbers of a few bits and their scales leave, and how far products are off with them.

Rounding to the nearest minimizes the error of weights. What counts is that of products x·w: where the ranges of groups are searched, errors
count by the second moments of x, and each column (but of int8) takes over what the rounding of those before it did to the products (GPTQ, Frantar et al.
2022, "GPTQ: accurate post-training quantization for generative pre-trained transformers"; least squares as llama.cpp fits its K-quants).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from lamella.semantics.quantize import BITS, FLOATS, dequantize, dequantized, nearest_numbers, packed_numbers, range_of

BLOCK = 2048
"""Columns whose errors are taken over from one to the next: products of all pairs of columns would take more memory than a layer."""
CHUNK = 64
"""Columns that take over errors one by one; those behind them do at the chunk's end, by a product of matrices."""
EXACT = ("int8",)
"""Kinds whose rounding leaves nothing worth taking over: what few tokens say of the columns then costs more than it gains."""
CUTS = 8
"""Ranges that are tried: from the whole one down to half of it."""
REFITS = 1
"""Times that scale and least value are fitted to the numbers they gave, and these made anew."""
DAMPING = 0.3
"""What is added to the second moments of all columns, as a share of their mean: few tokens say little about rare ones."""
BAND = 1 << 19
"""Weights that are worked on at a time."""


@dataclass(frozen=True)
class Recipe:
    """How a weight is quantized: `kind` as in `#transformer.packing`, columns of a group (0: whole rows), whether groups have least values,
    and whether their ranges are searched."""

    kind: str
    group: int = 0
    affine: bool = False
    clip: bool = True


@dataclass(frozen=True)
class Quantized:
    """The parts of a packed weight, as `tile.dequantize` takes them."""

    words: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None
    recipe: Recipe

    @property
    def bytes(self) -> int:
        """In memory."""
        return sum(t.numel() * t.element_size() for t in (self.words, self.scales, self.mins) if t is not None)

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Some rows as the floats they stand for."""
        mins = None if self.mins is None else self.mins[first:last]
        group = self.recipe.group or self.words.shape[1] * (1 if self.recipe.kind in FLOATS else 32 // BITS[self.recipe.kind])
        return dequantize(self.words[first:last], self.scales[first:last], mins, packing={"kind": self.recipe.kind, "group": group})


class Moments:
    """The second moments Σ x·xᵀ of the columns of x, in blocks of at most BLOCK neighbours."""

    def __init__(self, x: torch.Tensor) -> None:
        """x [N, K] float32."""
        self.blocks = [part.T @ part for part in x.split(BLOCK, dim=1)]

    @cached_property
    def importance(self) -> torch.Tensor:
        """[K]: what an error of a weight of each column counts, 1 on average."""
        squares = torch.cat([block.diagonal() for block in self.blocks])
        mean = squares.mean()
        return squares / mean + 1e-3 if mean > 0 else torch.ones_like(squares)

    @cached_property
    def shares(self) -> list[torch.Tensor]:
        """Of each block the upper Cholesky factor of the inverse of its damped moments: row j says what columns behind j take over of its error."""
        found: list[torch.Tensor] = []
        for block in self.blocks:
            damped = block.clone()
            mean = float(block.diagonal().mean())
            damped.diagonal().add_(DAMPING * mean if mean > 0 else 1.0)
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
            found.append(torch.linalg.cholesky(inverse, upper=True))
        return found


def quantize(weight: torch.Tensor, recipe: Recipe, moments: Moments | None = None, dtype: torch.dtype = torch.bfloat16) -> Quantized:
    """weight [O, K] -> its parts; scales and least values are of `dtype`, and numbers are made for them as they were rounded.

    `moments` are those of what the weight multiplies; None: all columns count alike, and none takes over from others.
    """
    columns = weight.shape[1]
    rows = max(1, BAND // columns)
    bands = [_band(weight[at : at + rows].to(torch.float32, copy=True), recipe, moments, dtype) for at in range(0, weight.shape[0], rows)]
    words, scales, mins = zip(*bands, strict=True)
    return Quantized(torch.cat(words), torch.cat(scales), torch.cat(mins) if recipe.affine else None, recipe)


def relative_error(weight: torch.Tensor, made: Quantized, x: torch.Tensor) -> float:
    """‖x·(ŵ - w)ᵀ‖ / ‖x·wᵀ‖ over all outputs of all rows of x; 0 where both are 0."""
    rows = max(1, BAND // weight.shape[1])
    wrong = whole = 0.0
    for at in range(0, weight.shape[0], rows):
        part = weight[at : at + rows].float()
        whole += float((x @ part.T).square().sum(dtype=torch.float64))
        wrong += float((x @ (made.rows(at, at + rows) - part).T).square().sum(dtype=torch.float64))
    return (wrong / whole) ** 0.5 if whole > 0 else 0.0


def _band(weight: torch.Tensor, recipe: Recipe, moments: Moments | None, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Words, scales and (else empty) mins of some rows, which are overwritten."""
    columns, kind = weight.shape[1], recipe.kind
    group = recipe.group or columns
    importance = torch.ones(columns) if moments is None else moments.importance
    if moments is None or not recipe.clip or kind in EXACT:
        grouped = weight.unflatten(1, (-1, group))
        scales, mins = _ranges(grouped, importance.view(-1, group), recipe, dtype)
        numbers = nearest_numbers(grouped, scales, mins, kind).flatten(1)
        return packed_numbers(numbers, kind, recipe.group or columns), scales.to(dtype), torch.empty(0) if mins is None else mins.to(dtype)
    found: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    # Column by column: each is a row in memory.
    turned = weight.T.contiguous()
    for start, shares in _blocks(moments):
        block = turned[start : start + len(shares)]
        for first in range(0, len(shares), CHUNK):
            last = min(first + CHUNK, len(shares))
            errors = torch.empty(last - first, weight.shape[0])
            for column in range(first, last):
                if (start + column) % group == 0:
                    # A group that ends behind the block, or behind the chunk, is searched before its last columns take over errors.
                    at = slice(start + column, start + column + group)
                    found.append(_ranges(turned[at].T[:, None].contiguous(), importance[None, at], recipe, dtype))
                scale, least = found[-1]
                own = block[column][:, None, None]
                number = nearest_numbers(own, scale, least, kind)
                error = (own - dequantized(number, scale, least, kind))[:, 0, 0].div_(shares[column, column])
                block[column + 1 : last].addr_(shares[column, column + 1 : last], error, alpha=-1)
                errors[column - first] = error
                block[column] = number[:, 0, 0]
            block[last:] -= shares[first:last, last:].T @ errors
    scales = torch.cat([scale for scale, _ in found], dim=1)
    least_values = [least for _, least in found if least is not None]
    mins = torch.cat(least_values, dim=1) if least_values else torch.empty(0)
    return packed_numbers(turned.T.contiguous(), kind, group), scales.to(dtype), mins.to(dtype)


def _blocks(moments: Moments) -> list[tuple[int, torch.Tensor]]:
    """The first column of each block, and its shares."""
    starts = [BLOCK * number for number in range(len(moments.blocks))]
    return list(zip(starts, moments.shares, strict=True))


def _ranges(
    grouped: torch.Tensor, importance: torch.Tensor, recipe: Recipe, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and least values [O, G] of weights [O, G, group], rounded to `dtype`, in float32: of the whole range of each group, or with `clip`
    those with the least error, weighted by `importance` [G, group], among cut ranges and what least squares make of them."""
    kind = recipe.kind
    best: list[torch.Tensor | None] = []
    least_error: torch.Tensor | None = None
    for cut in range(CUTS if recipe.clip else 1):
        scales, mins = range_of(grouped, kind, recipe.affine, 1 - cut / (2 * CUTS))
        for again in range(REFITS + 1 if recipe.clip else 1):
            scales = scales.to(dtype).float()
            mins = None if mins is None else mins.to(dtype).float()
            numbers = nearest_numbers(grouped, scales, mins, kind)
            error = (dequantized(numbers, scales, mins, kind) - grouped).square_().mul_(importance).sum(-1)
            if least_error is None:
                best, least_error = [scales, mins], error
            else:
                better = error < least_error
                least_error = torch.where(better, error, least_error)
                best = [None if b is None or n is None else torch.where(better, n, b) for b, n in zip(best, (scales, mins), strict=True)]
            if again < REFITS and recipe.clip:
                scales, mins = _fitted(grouped, numbers, importance, scales, mins, kind)
    scales, mins = best
    assert scales is not None
    return scales, mins


def _fitted(
    grouped: torch.Tensor, numbers: torch.Tensor, importance: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, kind: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scale and least value with the least weighted squares of w - scale·q (- min) for numbers q; as they were where nothing says better."""
    q = numbers if mins is not None else dequantized(numbers, torch.ones_like(scales), None, kind)
    weighted = q * importance
    qq, qw = (weighted * q).sum(-1), (weighted * grouped).sum(-1)
    if mins is None:
        return torch.where(qq > 0, qw / torch.where(qq > 0, qq, 1.0), scales), None
    total, q_sum, w_sum = importance.sum(-1), weighted.sum(-1), (importance * grouped).sum(-1)
    spread = total * qq - q_sum * q_sum
    sound = spread > 1e-6 * total * qq
    fitted = torch.where(sound, (total * qw - q_sum * w_sum) / torch.where(sound, spread, 1.0), scales)
    return fitted, torch.where(sound, (w_sum - fitted * q_sum) / total, mins)

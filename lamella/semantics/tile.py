# pyright: basic
"""The `tile` ops on torch tensors: structured ops whose rounding is explicit (only `cast` rounds)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lamella.semantics.attention import attend, attend_partial, scatter, slots
from lamella.semantics.linear import contract
from lamella.semantics.quantize_rows import nearest_byte
from lamella.semantics.rope import rotate_rows
from lamella.semantics.sampling import sample
from lamella.semantics.table import DTYPES, REDUCTIONS, SCALARS, implements

implements("tile.slots")(slots)
implements("tile.scatter")(scatter)
implements("tile.attend")(attend)
implements("tile.attend_partial")(attend_partial)
implements("tile.rotate")(rotate_rows)
implements("tile.sample")(sample)


@implements("tile.contract")
def contract_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x[M, K], weight[O, K] -> float32 [M, O]: x @ weightᵀ; float32 operands are used as they lie, narrower ones are widened first."""
    return contract(x, weight)


@implements("tile.constant")
def constant(*, value: float, dtype: str | None = None) -> torch.Tensor:
    """-> a rank-0 tensor of `dtype`; by default f32 for a Python float, i32 for an integer."""
    return torch.tensor(value, dtype=DTYPES[dtype or ("f32" if isinstance(value, float) else "i32")])


@implements("tile.map")
def map_elements(*operands: torch.Tensor, kind: str) -> torch.Tensor:
    """The elementwise `kind` on operands that broadcast against each other. Raises KeyError for a kind without meaning."""
    return SCALARS[kind](*operands)


@implements("tile.cast")
def cast(x: torch.Tensor, *, dtype: str) -> torch.Tensor:
    """x in another dtype, rounded to nearest, ties to even; x itself when it has that dtype. Floats become bytes of -128 to 127; NaN becomes any."""
    return nearest_byte(x) if dtype == "i8" and x.is_floating_point() else x.to(DTYPES[dtype])


@implements("tile.reduce")
def reduce_last(x: torch.Tensor, *, kind: str) -> torch.Tensor:
    """x[…, n] -> […, 1] by the reduction `kind`. Raises KeyError for a kind without meaning."""
    return REDUCTIONS[kind](x)


@implements("tile.add_columns")
def add_columns(x: torch.Tensor, *, columns: int) -> torch.Tensor:
    """x[N, C·columns] f32 -> [N, C]: neighbouring columns added."""
    return x.unflatten(1, (-1, columns)).sum(2)


@implements("tile.gather")
def gather(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """table[T, …], rows[N] i32 -> [N, …]. Raises IndexError for a row outside the table."""
    return table.index_select(0, rows)


@implements("tile.reshape")
def reshape(x: torch.Tensor, *, sizes: Sequence[int]) -> torch.Tensor:
    """x in another shape of as many numbers, in order."""
    return x.reshape(tuple(sizes))


@implements("tile.arrivals")
def arrivals(*, counters: int) -> torch.Tensor:
    """-> [counters] i32, zeros: no launch leaves a count."""
    return torch.zeros(counters, dtype=torch.int32)


@implements("tile.contract_partial")
def contract_partial(x: torch.Tensor, weight: torch.Tensor, *, splits: int, chunk: int) -> torch.Tensor:
    """x[M, K], weight[O, K] -> float32 [P, M, O]: the products of each run of `chunk` columns of K."""
    runs = zip(x.split(chunk, 1), weight.split(chunk, 1), strict=True)
    return torch.stack([contract(part, rows) for part, rows in runs])


@implements("tile.contract_merge")
def contract_merge(partial: torch.Tensor, arrivals: torch.Tensor | None = None) -> torch.Tensor:
    """partial[P, M, O] -> float32 [M, O]: the sums of all runs, added in order."""
    total = partial[0]
    for part in partial[1:]:
        total = total + part
    return total


@implements("tile.attend_merge")
def attend_merge(acc: torch.Tensor, largest: torch.Tensor, total: torch.Tensor, arrivals: torch.Tensor | None = None) -> torch.Tensor:
    """acc[N, H, P, D], max[N, H, P], sum[N, H, P] -> float32 [N, H·D]: Σ acc·exp(max - m) / Σ sum·exp(max - m), m = max over P.

    Rows in which every chunk is empty are 0.
    """
    top = largest.amax(-1, keepdim=True)
    empty = top == float("-inf")
    weights = torch.exp(largest - top.masked_fill(empty, 0))
    mixed = (acc * weights[..., None]).sum(-2) / (total * weights).sum(-1, keepdim=True)
    return mixed.masked_fill(empty, 0).reshape(acc.shape[0], -1)


@implements("tile.top_partial")
def top_partial(logits: torch.Tensor, *, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """logits[R, V] f32 -> best[R, P] f32, index[R, P] i32: each chunk of ceil(V / P) logits' largest and its least index; NaN is -inf."""
    rows, width = logits.shape
    chunk = -(-width // splits)
    padded = torch.full((rows, splits * chunk), float("-inf"), device=logits.device)
    padded[:, :width] = torch.where(logits.isnan(), float("-inf"), logits)
    chunks = padded.view(rows, splits, chunk)
    index = chunks.argmax(-1) + torch.arange(splits, device=logits.device) * chunk
    return chunks.amax(-1), index.clamp(max=width - 1).to(torch.int32)


@implements("tile.sample_top")
def sample_top(
    logits: torch.Tensor, best: torch.Tensor, index: torch.Tensor, temperature: torch.Tensor, *parameters: torch.Tensor
) -> torch.Tensor:
    """As `tile.sample`; at temperature 0 the token is the index of the first of the largest `best`. -> [R] i32."""
    greedy = index.gather(-1, best.argmax(-1, keepdim=True))[:, 0]
    if bool((temperature == 0).all()):
        return greedy
    return torch.where(temperature == 0, greedy, sample(logits, temperature, *parameters))

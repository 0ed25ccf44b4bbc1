# pyright: basic
"""The `tile` ops on torch tensors: structured ops whose rounding is explicit (only `cast` rounds)."""

from __future__ import annotations

import torch

from lamella.semantics.attention import attend, gather_part, scatter, sequence_of, slots
from lamella.semantics.linear import contract
from lamella.semantics.rope import rotate_rows
from lamella.semantics.sampling import sample
from lamella.semantics.table import DTYPES, REDUCTIONS, SCALARS, implements

implements("tile.slots")(slots)
implements("tile.scatter")(scatter)
implements("tile.attend")(attend)
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
    """x in another dtype, rounded to nearest, ties to even; x itself when it has that dtype."""
    return x.to(DTYPES[dtype])


@implements("tile.reduce")
def reduce_last(x: torch.Tensor, *, kind: str) -> torch.Tensor:
    """x[…, n] -> […, 1] by the reduction `kind`. Raises KeyError for a kind without meaning."""
    return REDUCTIONS[kind](x)


@implements("tile.gather")
def gather(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """table[T, …], rows[N] i32 -> [N, …]. Raises IndexError for a row outside the table."""
    return table.index_select(0, rows)


def chunk_lengths(context_len: torch.Tensor, splits: int, tile: int) -> torch.Tensor:
    """context_len[B] -> int64 [B]: tokens in each of `splits` chunks of a context, a multiple of `tile`, at least one tile."""
    share = (context_len.long() + splits - 1) // splits
    return ((share + tile - 1) // tile).clamp(min=1) * tile


@implements("tile.attend_partial")
def attend_partial(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    splits: int,
    tile: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `attend`, per chunk of the context: acc[N, H, P, D], max[N, H, P], sum[N, H, P], all float32, P = splits.

    Chunk p of a sequence covers positions [p·l, (p+1)·l), l = ceil(ceil(context/P) / tile) · tile. Over the visible positions of a chunk
    with scores s = scale·q·k: max = max s, sum = Σ exp(s - max), acc = Σ exp(s - max)·v (Flash-Decoding, Dao et al. 2023). A chunk with
    none has max = -inf, sum = 0, acc = 0; so have padding tokens. Each token gathers its own keys: meant for few queries a sequence.
    """
    tokens, device, block = q.shape[0], q.device, cache.shape[3]
    starts, context = query_start.long(), context_len.long()
    sequence = sequence_of(query_start, tokens)
    padding = sequence >= context.shape[0]
    sequence = sequence.masked_fill(padding, 0)
    limit = context[sequence].masked_fill(padding, 0)
    last = context[sequence] - starts[1:][sequence] + torch.arange(tokens, device=device)

    span = max(1, -(-int(limit.max()) // block))
    time = torch.arange(span * block, device=device)
    unused = (time >= limit[:, None])[:, None, :, None]
    blocks = block_table[sequence, :span]
    keys = gather_part(cache, blocks, 0).float().masked_fill(unused, 0)
    values = gather_part(cache, blocks, 1).float().masked_fill(unused, 0)

    queries = q.float().reshape(tokens, kv_heads, heads // kv_heads, head_dim).masked_fill(padding[:, None, None, None], 0)
    scores = ((queries * scale) @ keys.transpose(-1, -2)).reshape(tokens, heads, 1, -1)
    chunk = time // chunk_lengths(context, splits, tile)[sequence][:, None]
    visible = (time <= last[:, None]) & (time < limit[:, None])
    member = (chunk[:, None, :] == torch.arange(splits, device=device)[:, None]) & visible[:, None, :]
    scores = scores.masked_fill(~member[:, None], float("-inf"))
    largest = scores.amax(-1)
    weights = torch.exp(scores - largest.masked_fill(largest.isinf(), 0)[..., None])
    acc = weights.reshape(tokens, kv_heads, -1, span * block) @ values
    return acc.reshape(tokens, heads, splits, head_dim), largest, weights.sum(-1)


@implements("tile.attend_merge")
def attend_merge(acc: torch.Tensor, largest: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """acc[N, H, P, D], max[N, H, P], sum[N, H, P] -> float32 [N, H·D]: Σ acc·exp(max - m) / Σ sum·exp(max - m), m = max over P.

    Rows in which every chunk is empty are 0.
    """
    top = largest.amax(-1, keepdim=True)
    weights = torch.exp(largest - top.masked_fill(top.isinf(), 0))
    mixed = (acc * weights[..., None]).sum(-2) / (total * weights).sum(-1, keepdim=True)
    return mixed.masked_fill(top.isinf(), 0).reshape(acc.shape[0], -1)

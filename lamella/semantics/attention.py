# pyright: basic
"""The paged cache and attention over it, for a ragged batch: no loop over sequences, and nothing read from blocks nobody owns.

A cache is [blocks, 2, Hkv, S, D]: block, key or value, KV head, slot in block, head dimension. Block 0 is the null block.
"""

from __future__ import annotations

import torch

from .table import implements

TILE = 64
"""Fewest queries worth sharing one gathered copy of a sequence's keys."""


def sequence_of(query_start: torch.Tensor, tokens: int) -> torch.Tensor:
    """query_start[B+1] -> int64 [tokens]: the sequence of each token; B for padding tokens."""
    rows = torch.arange(tokens, dtype=query_start.dtype, device=query_start.device)
    return torch.searchsorted(query_start[1:].contiguous(), rows, right=True)


def slots(positions: torch.Tensor, query_start: torch.Tensor, block_table: torch.Tensor, *, block: int) -> torch.Tensor:
    """positions[N], query_start[B+1], block_table[B, M] -> i32 [N]: block·S + offset of each token; padding rows -> 0, in the null block.

    Raises IndexError where a token's position lies beyond its row of the block table.
    """
    sequence = sequence_of(query_start, positions.shape[0])
    padding = sequence >= block_table.shape[0]
    position = positions.long().masked_fill(padding, 0)
    owned = block_table[sequence.masked_fill(padding, 0), position // block].long() * block + position % block
    return owned.masked_fill(padding, 0).to(torch.int32)


def scatter(values: torch.Tensor, cache: torch.Tensor, places: torch.Tensor, *, part: int) -> torch.Tensor:
    """values[N, Hkv·D] into slots places[N] of the cache's keys (part 0) or values (part 1), in place; returns the cache."""
    block = cache.shape[3]
    rows = values.reshape(values.shape[0], cache.shape[2], cache.shape[4]).to(cache.dtype)
    place = places.long()
    cache[place // block, part, :, place % block] = rows
    return cache


@implements("transformer.cache_write")
def cache_write(
    cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """k, v [N, Hkv·D] into the cache, in place, at the slots of their tokens; returns the cache."""
    places = slots(positions, query_start, block_table, block=cache.shape[3])
    return scatter(v, scatter(k, cache, places, part=0), places, part=1)


def gather_part(cache: torch.Tensor, blocks: torch.Tensor, part: int) -> torch.Tensor:
    """cache, blocks[…, M] -> […, Hkv, M·S, D]: a copy of the keys (part 0) or values (part 1) of rows of block numbers."""
    _, parts, kv_heads, block, head_dim = cache.shape
    heads = torch.arange(kv_heads, device=cache.device)[:, None]
    index = (blocks.long()[..., None, :] * parts + part) * kv_heads + heads
    rows = cache.reshape(-1, block * head_dim).index_select(0, index.reshape(-1))
    return rows.reshape(*blocks.shape[:-1], kv_heads, blocks.shape[-1] * block, head_dim)


def attend(
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
) -> torch.Tensor:
    """q[N, H·D], cache, block_table[B, M], query_start[B+1], context_len[B] -> float32 [N, H·D]; rows of padding tokens are 0.

    Query i of a sequence with Q queries sees the cache positions t <= context_len - Q + i; query head h reads KV head h // (H / Hkv).
    softmax(scale·q·k)·v in float32. Queries are cut into tiles of one sequence each, so memory is tiles·T keys and N·H·T scores,
    T being the longest context of the step. Slots at or beyond a sequence's context are zeroed, keys and values, before any product.
    """
    device, tokens, block = q.device, q.shape[0], cache.shape[3]
    out = torch.zeros(tokens, heads, head_dim, dtype=torch.float32, device=device)
    starts, context = query_start.long(), context_len.long()
    lengths = starts[1:] - starts[:-1]
    longest = int(lengths.max())
    if longest == 0:
        return out.reshape(tokens, heads * head_dim)

    # Tiles: `width` consecutive queries of one sequence each, the last of a sequence partly filled.
    width = min(longest, max(TILE, -(-tokens // lengths.shape[0])))
    counts = (lengths + width - 1) // width
    sequence = torch.repeat_interleave(torch.arange(lengths.shape[0], device=device), counts)
    ordinal = torch.arange(sequence.shape[0], device=device) - (counts.cumsum(0) - counts)[sequence]
    offset = ordinal[:, None] * width + torch.arange(width, device=device)
    row = starts[sequence][:, None] + offset
    real = offset < lengths[sequence][:, None]

    # Keys and values of each tile's sequence, cut at the longest context, zeroed beyond its own.
    limit = context[sequence]
    span = -(-int(limit.max()) // block)
    blocks = block_table[sequence, :span]
    shortest = int(limit.min())
    time = torch.arange(span * block, device=device)
    unused = (time[shortest:] >= limit[:, None])[:, None, :, None]
    keys, values = gather_part(cache, blocks, 0), gather_part(cache, blocks, 1)
    keys[:, :, shortest:].masked_fill_(unused, 0)
    values[:, :, shortest:].masked_fill_(unused, 0)

    # Queries as [tile, KV head, group·width, D], so that one product serves a whole group of query heads.
    tiles, group = sequence.shape[0], heads // kv_heads
    queries = q.float().reshape(tokens, kv_heads, group, head_dim)[row.clamp(max=tokens - 1)]
    queries = queries.permute(0, 2, 3, 1, 4).reshape(tiles, kv_heads, group * width, head_dim)
    scores = (queries * scale) @ keys.float().transpose(-1, -2)
    scores = scores.reshape(tiles, kv_heads, group, width, span * block)
    last = limit[:, None] - lengths[sequence][:, None] + offset
    hidden = time > last[..., None]
    scores.masked_fill_(hidden[:, None, None], float("-inf"))
    weights = scores.softmax(-1).reshape(tiles, kv_heads, group * width, span * block)
    mixed = (weights @ values.float()).reshape(tiles, heads, width, head_dim).transpose(1, 2)
    out[row[real]] = mixed[real]
    return out.reshape(tokens, heads * head_dim)


@implements("transformer.attention")
def attention(
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
) -> torch.Tensor:
    """`attend`, rounded once to q's dtype."""
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale}
    return attend(q, cache, block_table, query_start, context_len, **sizes).to(q.dtype)

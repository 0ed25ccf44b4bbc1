# pyright: basic
"""The paged cache and attention over it, for a ragged batch: no loop over sequences, and nothing read from blocks nobody owns.

A cache is [blocks, 2, Hkv, S, D]: block, key or value, KV head, slot in block, head dimension. Block 0 is the null block. One of float8
comes with scales [blocks, 2, Hkv, S, 1]; at level 1, where it is one value, the four bytes of a scale follow each head: [blocks, 2, Hkv, S, D + 4].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch

from .table import implements

FLOAT8 = torch.float8_e4m3fn
SCALE_BYTES = 4
"""Of the float32 scale of a head in a cache of float8."""
SMALLEST = 2.0**-100
"""The magnitude from which on a head has a scale of its own: a head of zeros is divided by something, too."""
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
    """values[N, Hkv·D], or by heads [N·Hkv, D], into slots places[N] of the cache's keys (part 0) or values (part 1), in place; returns the cache."""
    block = cache.shape[3]
    rows = values.reshape(places.shape[0], cache.shape[2], cache.shape[4]).to(cache.dtype)
    place = places.long()
    as_bytes(cache)[place // block, part, :, place % block] = as_bytes(rows)
    return cache


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """A tensor of float8, which torch cannot index everywhere, as bytes; others as they are."""
    return x.view(torch.uint8) if x.dtype == FLOAT8 else x


def by_heads(x: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x[N, H·D] -> numbers of float8 [N, H, D] and scales float32 [N, H, 1]: what `transformer.cache_write` rounds, step by step.

    A scale is the largest magnitude of a head (at least SMALLEST) / 448, the largest float8; a number is x / scale, to the nearest, ties to even.
    """
    rows = x.float().unflatten(1, (heads, -1))
    largest = torch.maximum(rows.abs().amax(-1, keepdim=True), torch.tensor(SMALLEST, device=x.device))
    scales = largest * (1.0 / torch.finfo(FLOAT8).max)
    return (rows / scales).to(FLOAT8), scales


@implements("transformer.cache_write")
def cache_write(
    cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """k, v [N, Hkv·D] into the cache, in place, at the slots of their tokens; returns the cache. One of float8 is [blocks, 2, Hkv, S, D + 4]."""
    places = slots(positions, query_start, block_table, block=cache.shape[3])
    if cache.dtype == FLOAT8:
        k, v = (torch.cat([part.view(torch.uint8) for part in by_heads(x, cache.shape[2])], dim=-1).view(FLOAT8) for x in (k, v))
    return scatter(v, scatter(k, cache, places, part=0), places, part=1)


@dataclass(frozen=True)
class QueryTiles:
    """The queries of a ragged step, cut into tiles [X] of up to `width` consecutive ones of one sequence; the last of each is partly filled.

    So that the keys a tile needs are gathered once, and no loop over sequences is.
    """

    sequence: torch.Tensor
    """int64 [X]."""
    rows: torch.Tensor
    """int64 [X, width]: the tokens; where `real` is false, any token."""
    real: torch.Tensor
    """bool [X, width]: whether there is such a query."""
    limit: torch.Tensor
    """int64 [X]: length of the sequence's context."""
    own: torch.Tensor
    """int64 [X]: queries of the sequence."""
    last: torch.Tensor
    """int64 [X, width]: the last position of the context that the query sees."""
    count: int
    """Real queries: they are tokens 0 to count - 1, in this order."""

    @classmethod
    def cut(cls, query_start: torch.Tensor, context_len: torch.Tensor, tokens: int) -> QueryTiles | None:
        """The tiles of a step of `tokens`, padding included; None where no sequence has a query."""
        starts, context = query_start.long(), context_len.long()
        lengths = starts[1:] - starts[:-1]
        longest = int(lengths.max())
        if longest == 0:
            return None
        width = min(longest, max(TILE, -(-tokens // lengths.shape[0])))
        counts = (lengths + (width - 1)) // width
        sequence = torch.repeat_interleave(counts)
        ordinal = torch.arange(sequence.shape[0], device=starts.device) - (counts.cumsum(0) - counts)[sequence]
        offset = ordinal[:, None] * width + torch.arange(width, device=starts.device)
        own, limit = lengths[sequence][:, None], context[sequence]
        rows = (starts[sequence][:, None] + offset).clamp(max=tokens - 1)
        return cls(sequence, rows, offset < own, limit, own[:, 0], limit[:, None] - own + offset, int(starts[-1]))

    def origin(self, window: int, tile: int) -> torch.Tensor:
        """int64 [X]: the first position that any query of the sequence sees, rounded down to a multiple of `tile`; 0 without a window."""
        first = (self.limit - self.own - window + 1).clamp(min=0) if window else torch.zeros_like(self.limit)
        return first // tile * tile

    def queries(self, q: torch.Tensor, kv_heads: int, head_dim: int, scale: float) -> torch.Tensor:
        """q[N, H·D] -> float32 [X, Hkv, group·width, D], scaled, so that one product serves a whole group of query heads."""
        tiles, width = self.rows.shape
        rows = (q.float() * scale).index_select(0, self.rows.reshape(-1))
        grouped = rows.reshape(tiles, width, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        return grouped.reshape(tiles, kv_heads, -1, head_dim)

    def per_token(self, x: torch.Tensor) -> torch.Tensor:
        """x[X, Hkv, P, group·width, …] -> [queries, H, P, …], in the order of tokens."""
        tiles, kv_heads, chunks, _, *rest = x.shape
        width = self.rows.shape[1]
        parts = x.reshape(tiles, kv_heads, chunks, -1, width, *rest).movedim(4, 1).transpose(3, 4)
        rows = parts.reshape(tiles * width, -1, chunks, *rest)
        return rows if self.count == rows.shape[0] else rows[self.real.reshape(-1)]


def gather_units(cache: torch.Tensor, units: torch.Tensor, size: int, scales: torch.Tensor | None = None) -> torch.Tensor:
    """cache, units[X, P, U] -> float32 [X, 2, Hkv, P, U·size, D]: the keys and values of units of `size` slots, times their `scales`, if any.

    Unit number block·(S / size) + i of the cache is slots [i·size, (i+1)·size) of a block; `size` divides S.
    """
    _, parts, kv_heads, block, head_dim = cache.shape
    per_block = block // size
    heads = torch.arange(parts * kv_heads, device=cache.device).view(-1, 1, 1)
    index = (units // per_block)[:, None] * (parts * kv_heads) + heads
    if per_block > 1:
        index = index * per_block + (units % per_block)[:, None]
    rows = as_bytes(cache).reshape(-1, size * head_dim).index_select(0, index.reshape(-1)).view(cache.dtype)
    found = rows.float().reshape(units.shape[0], parts, kv_heads, units.shape[1], -1, head_dim)
    return found if scales is None else found.mul_(gather_units(scales, units, size))


def parts_of(cache: torch.Tensor, others: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The operands behind `context_len` as scales and sinks: those of a cache of float8 come first."""
    scales, others = (others[0], others[1:]) if cache.dtype == FLOAT8 else (None, others)
    return scales, others[0] if others else None


def slopes(heads: int, alibi: float) -> torch.Tensor:
    """float32 [H], ALiBi's (arXiv 2108.12409, and the authors' code for other numbers than powers of 2): what a head adds to a score for
    each position that the key lies after the query.

    Of 2^k heads h: 2^(-a(h + 1) / 2^k), a = `alibi` (8 in the paper). Heads beyond the largest power of 2 take every other slope of twice as many.
    """
    near = 1 << (heads.bit_length() - 1)
    exponents = [alibi * (h + 1) / near if h < near else alibi * (2 * (h - near) + 1) / (2 * near) for h in range(heads)]
    return torch.tensor([2.0**-exponent for exponent in exponents])


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    *others: torch.Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    **modifiers: float,
) -> torch.Tensor:
    """q[N, H·D], cache, block_table[B, M], query_start[B+1], context_len[B] (, scales) (, sinks[H]) -> float32 [N, H·D]; rows of padding
    tokens are 0. A cache of float8 has scales.

    Query i of a sequence with Q queries sees the cache positions t <= context_len - Q + i; query head h reads KV head h // (H / Hkv).
    softmax(scale·q·k)·v in float32, after the `modifiers` of `attend_partial`. Memory is tiles·T keys and N·H·T scores, T being the longest
    context of the step.
    Slots at or beyond a sequence's context are zeroed, keys and values, before any product.
    """
    tokens = q.shape[0]
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale, **modifiers}
    acc, _, total = attend_partial(q, cache, block_table, query_start, context_len, *others, **sizes, splits=1, tile=cache.shape[3])
    return (acc / total.masked_fill(total == 0, 1)[..., None]).reshape(tokens, heads * head_dim)


def attend_partial(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    *others: torch.Tensor | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    splits: int,
    tile: int,
    window: int = 0,
    score_cap: float = 0.0,
    alibi: float = 0.0,
    bidirectional: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `attend`, per chunk of the context: acc[N, H, P, D], max[N, H, P], sum[N, H, P], all float32, P = splits.

    Chunks take turns: chunk p of a sequence covers positions [o + (p + i·P)·tile, o + (p + i·P + 1)·tile) for i = 0, 1, …, where o is the first
    position that a query of the sequence sees, rounded down to a multiple of tile: 0 where there is no `window`. Over the visible positions of a chunk
    with scores s = scale·q·k: max = max s, sum = Σ exp(s - max), acc = Σ exp(s - max)·v (Flash-Decoding, Dao et al. 2023). A chunk with
    none has max = -inf, sum = 0, acc = 0; so have padding tokens. Chunks that are empty for all take no work.

    A `window` leaves the last that many of the positions a query sees, `bidirectional` shows it all of its sequence. A `score_cap` c makes
    c·tanh(s / c) of a score s; `alibi` then adds the head's slope times (t - the query's position). `sinks` are scores that the first chunk
    has without a value: its maximum and sum include them.
    """
    tokens, device, block = q.shape[0], q.device, cache.shape[3]
    scales, sinks = parts_of(cache, others)
    acc = torch.zeros(tokens, heads, splits, head_dim, dtype=torch.float32, device=device)
    largest = torch.full((tokens, heads, splits), float("-inf"), device=device)
    total = torch.zeros(tokens, heads, splits, device=device)
    tiles = QueryTiles.cut(query_start, context_len, tokens)
    if tiles is None:
        return acc, largest, total

    # Chunks are made of units: slots that lie side by side in the cache and in a tile.
    origin = tiles.origin(window, tile)
    pieces = (tiles.limit - origin + tile - 1) // tile
    chunks, turns = min(splits, int(pieces.max())), -(-int(pieces.max()) // splits)
    unit = gcd(tile, block)
    firsts = origin[:, None, None] + (torch.arange(chunks, device=device)[:, None] + torch.arange(turns, device=device) * splits) * tile
    starts = (firsts[..., None] + torch.arange(0, tile, unit, device=device)).flatten(2)
    column = (starts // block).clamp_(max=block_table.shape[1] - 1)
    units = block_table[tiles.sequence[:, None, None], column].long()
    if unit < block:
        units = units * (block // unit) + starts % block // unit

    # Keys and values [X, Hkv, chunks, longest, D], zeroed beyond the context, and scores [X, Hkv, chunks, group·width, longest].
    time = (firsts[..., None] + torch.arange(tile, device=device)).flatten(2)
    longest = turns * tile
    both = gather_units(cache, units, unit, scales)
    whole = int(((tiles.limit - origin) // tile).min())
    full = min(chunks, max(0, whole - (turns - 1) * splits))  # chunks that lie within every context
    unused = unused_positions(time[:, full:], tiles.limit)
    both[:, :, :, full:].masked_fill_(unused[:, None, None, ..., None], 0)
    keys, values = both.unbind(1)
    scores = tiles.queries(q, kv_heads, head_dim, scale)[:, :, None] @ keys.transpose(-1, -2)
    if score_cap:
        scores = torch.tanh(scores / score_cap) * score_cap
    distance = time[:, :, None] - tiles.last[:, None, :, None]
    beyond = unused_positions(time, tiles.limit)[:, :, None].expand_as(distance) if bidirectional else distance > 0
    hidden = beyond | (distance <= -window) if window else beyond
    count, width = tiles.rows.shape
    by_query = scores.view(count, kv_heads, chunks, -1, width, longest)
    if alibi:
        by_query += slopes(heads, alibi).to(device).view(kv_heads, 1, -1, 1, 1) * distance[:, None, :, None]
    by_query.masked_fill_(hidden[:, None, :, None], float("-inf"))
    top = scores.amax(-1)
    if sinks is not None:
        sunk = sinks.float().view(kv_heads, -1, 1).expand(-1, -1, width).reshape(kv_heads, -1)
        top[:, :, 0] = torch.maximum(top[:, :, 0], sunk)
    weights = torch.exp(scores - top.masked_fill(top == float("-inf"), 0)[..., None])

    acc[: tiles.count, :, :chunks] = tiles.per_token(weights @ values)
    largest[: tiles.count, :, :chunks] = tiles.per_token(top)
    sums = weights.sum(-1)
    if sinks is not None:
        sums[:, :, 0] += torch.exp(sunk - top[:, :, 0])
    total[: tiles.count, :, :chunks] = tiles.per_token(sums)
    return acc, largest, total


def unused_positions(time: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """time[X, P, T], limit[X] -> bool [X, P, T]: where no context is."""
    return time >= limit[:, None, None]


@implements("transformer.attention")
def attention(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    **modifiers: float,
) -> torch.Tensor:
    """`attend`, rounded once to q's dtype; a cache of float8 is [blocks, 2, Hkv, S, D + 4]."""
    others = (sinks,)
    if cache.dtype == FLOAT8:
        others = (cache[..., head_dim:].contiguous().view(torch.float32), sinks)
        cache = cache[..., :head_dim].contiguous()
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale, **modifiers}
    return attend(q, cache, block_table, query_start, context_len, *others, **sizes).to(q.dtype)

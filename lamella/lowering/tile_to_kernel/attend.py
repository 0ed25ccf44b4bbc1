"""The attend skeleton: online softmax over the paged cache, whole or in chunks of the context, and the merge of chunks.

FlashAttention (arXiv 2205.14135) over blocks named by a table (arXiv 2309.06180); chunks as in Flash-Decoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import element_type_of, python_int, shape_of
from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.score_modifiers import ScoreModifiers
from lamella.dialects.tile import AttendOp, AttendPartialOp, FusedOp, ScheduleAttr
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.tile_to_kernel.attend_chunks import LOG2_E, QueryRows, Rows, merge_last, store_partial
from lamella.lowering.tile_to_kernel.cache_tiles import KEYS, VALUES, CacheTile, CacheTiles, Loaded
from lamella.lowering.tile_to_kernel.emitter import Emitter, source_of
from lamella.lowering.tile_to_kernel.scalars import tanh


def lower_attend(fused: FusedOp, name: str, schedule: ScheduleAttr, longest_query: int) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """Programs over (query tiles, key/value heads, sequences × chunks); the heads that share keys are rows of one program.

    Raises PassError for partial results that nothing merges.
    """
    op = next(o for o in fused.body.block.ops if isinstance(o, AttendOp | AttendPartialOp))
    e = Emitter(fused, name, schedule, num_stages=schedule.get("stages"))
    b = e.b
    splits = python_int(op.splits) if isinstance(op, AttendPartialOp) else 1
    queries, block_r, block_t = schedule.get("queries"), schedule.get("rows"), schedule.get("tile")
    heads, kv_heads, dim = python_int(op.heads), python_int(op.kv_heads), python_int(op.head_dim)
    group = heads // kv_heads
    sequences = shape_of(op.block_table)[0]
    block_d = max(16, 1 << max(0, dim - 1).bit_length())
    tiles = -(-longest_query // queries)
    with b.source(source_of(op)):
        # The last queries see the most: they start first.
        tile = b.named("tile", b.sub(tiles - 1, b.program_id(0))) if tiles > 1 else b.constant(0)
        kv_head = b.named("kv_head", b.program_id(1))
        part = b.program_id(2)
        sequence = b.named("sequence", b.floordiv(part, splits) if sequences > 1 else b.constant(0))
        chunk = b.mod(part, splits) if sequences > 1 else part
        start, length = _queries_of(e, op, sequence)
        context = b.named("context", b.load(e.pointers[op.context_len], sequence))

        queries_of = QueryRows(b, tile, kv_head, start, length, queries, group)
        r = queries_of.at(b.arange(block_r))
        position = b.named("position", b.add(r.query, b.sub(context, length)))
        d = b.arange(block_d)
        d_mask = None if block_d == dim else b.lt(d, dim)
        place = r.place(b, d, d_mask, dim)

        # Positions of this chunk, up to the last one that some query of the tile may see.
        modifiers = ScoreModifiers.of(op)
        last = b.add(b.sub(context, length), b.minimum(b.mul(b.add(tile, 1), queries), length))
        last = context if modifiers.bidirectional else last
        first_query = b.add(b.sub(context, length), b.mul(tile, queries))
        origin = _origin(b, op, b.sub(context, length), block_t)
        low = _first_seen(b, op, first_query)
        if splits > 1:
            # Chunks take turns, a tile each: where the first one lies does not depend on the context, and none is more than a tile longer than another.
            turn = chunk
            if tiles > 1 and op.window is not None:
                turn = _first_turn(b, b.floordiv(b.sub(low, origin), block_t), chunk, splits)
            low = b.add(b.mul(turn, block_t), origin)
        step = splits * block_t
        high = b.where(b.lt(b.mul(tile, queries), length), last, low) if tiles > 1 or sequences > 1 else last

        cache = CacheTiles(e, op, block_t, sequence, kv_head, d, d_mask, turned=longest_query > 1 and splits == 1)
        slope = _slopes(b, r.head, heads, modifiers.alibi) if modifiers.alibi else None
        scoring = Scoring(b, op, modifiers, position, slope)
        best = b.named("best", b.full((block_r,), -math.inf, f32))
        total = b.named("total", b.full((block_r,), 0.0, f32))
        acc = b.named("acc", b.full((block_r, block_d), 0.0, f32))
        state = best, total, acc
        if longest_query == 1 or splits > 1:
            # What earlier steps left in the cache is there before the launches before this one end.
            # A table that all first tiles lie in need not wait for the context: the key of what nobody sees is not read.
            inside = op.window is None and step <= shape_of(op.block_table)[1] * shape_of(op.cache)[3]
            first = cache.at(low, high, inside=inside)
            old = b.named("old", b.lt(first.t, b.sub(context, length)))
            early = [first.load(which, old, settled=True) for which in (KEYS, VALUES)]
            q = b.named("q", e.emit(op.q, place))
            late = [first.load(which, b.ge(first.t, b.sub(context, length))) for which in (KEYS, VALUES)]
            keys, values = (early[which].unless(late[which], old, b) for which in (KEYS, VALUES))
            state = _attend_tile(scoring, q, first, keys, values, _with_sinks(e, op, r, chunk if splits > 1 else None, state))
            low = b.add(low, step)
        else:
            q = b.named("q", e.emit(op.q, place))
            best, total, acc = state = _with_sinks(e, op, r, None, state)
            if op.window is None:
                # What the first query of the tile sees, all of them see: nothing is masked there.
                all_see = b.add(b.add(b.sub(context, length), b.mul(tile, queries)), 1)
                all_see = context if modifiers.bidirectional else all_see
                whole = b.named("whole", b.minimum(b.mul(b.floordiv(all_see, block_t), block_t), high))
                with b.for_(low, whole, block_t, init=state, num_stages=schedule.get("stages")) as loop:
                    seen_by_all = cache.at(loop.index)
                    best, total, acc = loop.values
                    loop.yields(*_attend_tile(scoring, q, seen_by_all, seen_by_all.load(KEYS), None, (best, total, acc), masked=False))
                best, total, acc = loop.results
                state, low = (best, total, acc), whole
        with b.for_(low, high, step, init=state, num_stages=schedule.get("stages")) as loop:
            following = cache.at(loop.index, high)
            best, total, acc = loop.values
            loop.yields(*_attend_tile(scoring, q, following, following.load(KEYS), None, (best, total, acc)))
        best, total, acc = loop.results
        if isinstance(op, AttendPartialOp):
            store_partial(e, op, (best, total, acc), r, chunk, d, d_mask)
            program = b.add(b.mul(b.add(b.mul(sequence, tiles), tile), kv_heads), kv_head)
            merge_last(e, op, queries_of, program, b.sub(last, origin), block_t)
        else:
            if longest_query > 1:
                # Where the rows go is worked out again, from lengths that are read again: it would take registers through the loops.
                again = QueryRows(b, tile, kv_head, *_queries_of(e, op, sequence, cache="cg"), queries, group)
                place = again.at(b.arange(block_r)).place(b, d, d_mask, dim)
            e.define(op.result, place, b.named("mixed", b.div(acc, b.expand(total, 1))))
    if isinstance(op, AttendOp):
        for item in e.stores:
            e.store(item, place)
    return b.finish(), (tiles, kv_heads, sequences * splits)


def _queries_of(e: Emitter, op: AttendOp | AttendPartialOp, sequence: SSAValue, cache: str | None = None) -> tuple[SSAValue, SSAValue]:
    """The first query of a sequence, and how many it has in this step."""
    b = e.b
    start = b.named("start", b.load(e.pointers[op.query_start], sequence, cache=cache))
    return start, b.named("length", b.sub(b.load(e.pointers[op.query_start], b.add(sequence, 1), cache=cache), start))


@dataclass(frozen=True)
class Scoring:
    """What becomes of the products of queries and keys: scores, as exponents of 2."""

    b: KernelBuilder
    op: AttendOp | AttendPartialOp
    modifiers: ScoreModifiers
    position: SSAValue
    """Of each row's query."""
    slope: SSAValue | None
    """Of each row's head, times log2(e)."""

    @property
    def factor(self) -> float | None:
        """What a product is multiplied by to be a score, where that is all: the largest product is then the largest score."""
        scale = self.op.scale.value.data * LOG2_E
        return None if self.modifiers.score_cap or self.slope is not None or scale <= 0 else scale

    def scores(self, products: SSAValue, t: SSAValue) -> SSAValue:
        """The products [rows, T] scaled, capped and biased; none is masked yet."""
        b, scale, cap = self.b, self.op.scale.value.data, self.modifiers.score_cap
        scaled = b.mul(tanh(b, b.mul(products, scale / cap)), cap * LOG2_E) if cap else b.mul(products, scale * LOG2_E)
        if self.slope is None:
            return scaled
        distance = b.cast(b.sub(b.expand(t, 0), b.expand(self.position, 1)), f32)
        return b.add(scaled, b.mul(distance, b.expand(self.slope, 1)))

    def seen(self, at: CacheTile) -> SSAValue | None:
        """Which of the tile's positions each row sees; None: all."""
        b, window = self.b, self.modifiers.window
        there = None if at.t_mask is None else b.expand(at.t_mask, 0)
        if self.modifiers.bidirectional:
            return there
        t, position = b.expand(at.t, 0), b.expand(self.position, 1)
        seen = b.le(t, position)
        seen = b.and_(seen, b.gt(t, b.sub(position, window))) if window else seen
        return seen if there is None else b.and_(seen, there)


def _attend_tile(
    scoring: Scoring,
    q: SSAValue,
    at: CacheTile,
    keys: Loaded,
    values: Loaded | None,
    state: tuple[SSAValue, SSAValue, SSAValue],
    *,
    masked: bool = True,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """One step of online softmax: the state (maximum, sum, accumulator) after a tile of positions.

    `values` None: loaded when they are needed. Not `masked`: all rows see the whole tile.
    """
    b, op, (best, total, acc) = scoring.b, scoring.op, state
    # Numbers of float8 are multiplied as q's, in which they are exact; what else is in the cache meets numbers of its own type.
    element = element_type(q.type) if op.scales is not None else element_type_of(op.cache)
    products = b.dot(q, keys.widened(element, b))
    products = products if keys.scale is None else b.mul(products, b.expand(keys.scale, 0))
    # A factor by itself waits for the exponents, where it is one instruction with the subtraction.
    scores = b.named("scores", products if scoring.factor is not None else scoring.scores(products, at.t))
    factor = scoring.factor or 1.0
    seen = scoring.seen(at) if masked else None
    if seen is not None:
        scores = b.named("scores", b.where(seen, scores, -math.inf))
    new_best = base = b.named("new_best", b.maximum(best, b.mul(b.reduce(scores, "max", 1), factor)))
    if seen is not None:
        # A row that has seen nothing keeps -inf; its exponent must not become -inf - -inf.
        base = b.named("base", b.where(b.eq(new_best, -math.inf), 0.0, new_best))
    shrink = b.named("shrink", b.exp2(b.sub(best, base)))
    p = b.named("p", b.exp2(b.sub(b.mul(scores, factor), b.expand(base, 1))))
    new_total = b.named("new_total", b.add(b.mul(total, shrink), b.reduce(p, "sum", 1)))
    found = at.load(VALUES) if values is None else values
    new_acc = found.mixed(p, element, b.mul(acc, b.expand(shrink, 1)), b)
    return new_best, new_total, b.named("new_acc", new_acc)


def _slopes(b: KernelBuilder, head: SSAValue, heads: int, alibi: float) -> SSAValue:
    """ALiBi's slope of each head (`semantics.attention.slopes`), times log2(e)."""
    near = 1 << (heads.bit_length() - 1)
    number = b.cast(head, f32)
    exponent = b.mul(b.add(number, 1.0), -alibi / near)
    if heads > near:
        between = b.mul(b.add(b.mul(b.sub(number, float(near)), 2.0), 1.0), -alibi / (2 * near))
        exponent = b.where(b.lt(head, near), exponent, between)
    return b.named("slope", b.mul(b.exp2(exponent), LOG2_E))


def _with_sinks(
    e: Emitter, op: AttendOp | AttendPartialOp, r: Rows, chunk: SSAValue | None, state: tuple[SSAValue, SSAValue, SSAValue]
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The state before the first tile where each row's head has a sink: that score has been seen, in the first chunk, and its value is 0."""
    if op.sinks is None:
        return state
    b, (best, total, acc) = e.b, state
    sink = b.mul(b.cast(b.load(e.pointers[op.sinks], r.head, r.real, 0.0), f32), LOG2_E)
    one = b.full(shape(total), 1.0, f32)
    if chunk is not None:
        first = b.broadcast(b.eq(chunk, 0), shape(total))
        sink, one = b.where(first, sink, best), b.where(first, one, total)
    return b.named("best", sink), b.named("total", one), acc


def _origin(b: KernelBuilder, op: AttendOp | AttendPartialOp, position: SSAValue, tile: int) -> SSAValue:
    """Where the chunks of a sequence start: the first position that its first query, at `position`, sees, in whole tiles."""
    first = _first_seen(b, op, position)
    return first if op.window is None else b.named("origin", b.mul(b.floordiv(first, tile), tile))


def _first_turn(b: KernelBuilder, tile: SSAValue, chunk: SSAValue, splits: int) -> SSAValue:
    """The number of the first tile of chunk `chunk` at or behind number `tile`."""
    behind = b.maximum(b.sub(tile, chunk), 0)
    return b.add(chunk, b.mul(b.floordiv(b.add(behind, splits - 1), splits), splits))


def _first_seen(b: KernelBuilder, op: AttendOp | AttendPartialOp, position: SSAValue) -> SSAValue:
    """The first position that a query at or after `position` sees."""
    zero = b.constant(0)
    return zero if op.window is None else b.maximum(zero, b.add(b.sub(position, op.window.value.data), 1))

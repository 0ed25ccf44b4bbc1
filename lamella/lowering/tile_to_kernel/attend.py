"""The attend skeleton: online softmax over the paged cache, whole or in chunks of the context, and the merge of chunks.

FlashAttention (arXiv 2205.14135) over blocks named by a table (arXiv 2309.06180); chunks as in Flash-Decoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects.builtin import BFloat16Type, Float16Type, f32, i64
from xdsl.ir import Attribute, SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.messages import subject
from lamella.dialects.score_modifiers import ScoreModifiers
from lamella.dialects.tile import AttendMergeOp, AttendOp, AttendPartialOp, FusedOp, ScheduleAttr
from lamella.errors import PassError
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.tile_to_kernel.divided_grid import by_the_last
from lamella.lowering.tile_to_kernel.emitter import Emitter, python_int, source_of
from lamella.lowering.tile_to_kernel.places import Place
from lamella.lowering.tile_to_kernel.scalars import tanh

LOG2_E = math.log2(math.e)

MERGED_ELEMENTS = 4096
"""Elements of partial results that each warp of the merging program holds at once: 128 a thread."""


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
        low = _first_seen(b, op, b.constant(0), first_query)
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
            _store_partial(e, op, (best, total, acc), r, chunk, d, d_mask)
            program = b.add(b.mul(b.add(b.mul(sequence, tiles), tile), kv_heads), kv_head)
            _merge_last(e, op, queries_of, program, b.sub(last, origin), block_t)
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


KEYS, VALUES = 0, 1
"""The two halves of a block of the cache."""


@dataclass(frozen=True)
class Loaded:
    """Keys [D, T] or values [T, D] as they lie in a cache, and of float8 the scale of each of the T."""

    which: int
    block: SSAValue
    scale: SSAValue | None

    def unless(self, other: Loaded, mask: SSAValue, b: KernelBuilder) -> Loaded:
        """These where `mask` is true, `other` elsewhere."""
        name = ("keys", "values")[self.which]
        block = b.named(name, b.where(b.expand(mask, self.which), self.block, other.block))
        if self.scale is None or other.scale is None:
            return Loaded(self.which, block, None)
        return Loaded(self.which, block, b.named(f"scale_of_{name}", b.where(mask, self.scale, other.scale)))

    def widened(self, element: Attribute, b: KernelBuilder) -> SSAValue:
        """The numbers in `element`, in which those of float8 are exact."""
        if self.scale is None:
            return self.block
        # From f16 to bf16 there is only a slow instruction for one number; from f32 one for two.
        wide = b.cast(self.block, f32) if isinstance(element, BFloat16Type) else self.block
        return b.cast(wide, element)

    def mixed(self, p: SSAValue, element: Attribute, acc: SSAValue, b: KernelBuilder) -> SSAValue:
        """`acc` with these values added, times probabilities p [rows, T] and their scales."""
        if self.scale is None:
            return b.dot(b.cast(p, element), self.block, acc)
        scale, values = self.scale, self.widened(element, b)
        if not isinstance(element, Float16Type):
            return b.dot(b.cast(b.mul(p, b.expand(scale, 0)), element), values, acc)
        # Probabilities times scales would vanish in f16: scales are taken relative to the tile's largest, which multiplies the sums.
        top = b.named("top_scale", b.maximum(b.reduce(scale, "max", 0), SMALLEST_SCALE))
        products = b.dot(b.cast(b.mul(p, b.expand(b.div(scale, top), 0)), element), values)
        return b.add(acc, b.mul(products, top))


SMALLEST_SCALE = 2.0**-120
"""What scales of a tile are divided by at least."""


@dataclass(frozen=True)
class CacheTiles:
    """Where a program reads the cache: its sequence and key/value head, `size` positions at a time."""

    e: Emitter
    op: AttendOp | AttendPartialOp
    size: int
    sequence: SSAValue
    kv_head: SSAValue
    d: SSAValue
    d_mask: SSAValue | None
    turned: bool
    """Whether keys are loaded as they lie, [T, D], and turned: with many queries that leaves more registers, with one it costs a copy."""

    def at(self, first: SSAValue, high: SSAValue | None = None, *, inside: bool = False) -> CacheTile:
        """The positions from `first` on, below `high` where that is given: their blocks are looked up in the table, which has entries
        for all of them where they lie `inside`."""
        b, op = self.e.b, self.op
        t = b.named("t", b.add(b.arange(self.size), first))
        t_mask = None if high is None else b.lt(t, high)
        block_size = shape_of(op.cache)[3]
        entry = b.add(b.mul(self.sequence, shape_of(op.block_table)[1]), b.floordiv(t, block_size))
        there = None if inside else t_mask
        block = b.load(self.e.pointers[op.block_table], entry, there, None if there is None else 0)
        number = b.named("number", b.cast(block, i64))
        return CacheTile(self, t, t_mask, number, b.cast(b.mod(t, block_size), i64))


@dataclass(frozen=True)
class CacheTile:
    """Positions of a sequence, which of them are there (None: all), and the block and slot of each."""

    tiles: CacheTiles
    t: SSAValue
    t_mask: SSAValue | None
    number: SSAValue
    slot: SSAValue

    def load(self, which: int, mask: SSAValue | None = None, *, settled: bool = False) -> Loaded:
        """Keys [D, T] or values [T, D] of the positions, 0 where `mask` is false; `settled` as for `kernel.load`."""
        e, op, b = self.tiles.e, self.tiles.op, self.tiles.e.b
        turned = which == KEYS and self.tiles.turned
        across, along = (0, 1) if which == KEYS and not turned else (1, 0)
        block_size, dim = shape_of(op.cache)[3], python_int(op.head_dim)
        cell = b.add(b.mul(b.add(b.mul(self.number, 2), which), python_int(op.kv_heads)), b.cast(self.tiles.kv_head, i64))
        slot = b.add(b.mul(cell, block_size), self.slot)
        offsets = b.add(b.expand(b.mul(slot, dim), across), b.expand(b.cast(self.tiles.d, i64), along))
        there, d_mask = b.all_of(self.t_mask, mask), self.tiles.d_mask
        both = b.all_of(None if there is None else b.expand(there, across), None if d_mask is None else b.expand(d_mask, along))
        name = ("keys" if which == KEYS else "values") if mask is None else f"{'old' if settled else 'new'}_{('keys', 'values')[which]}"
        block = b.named(name, b.load(e.pointers[op.cache], offsets, both, None if both is None else 0.0, settled=settled))
        block = b.trans(block) if turned else block
        if op.scales is None:
            return Loaded(which, block, None)
        scale = b.load(e.pointers[op.scales], slot, there, None if there is None else 0.0, settled=settled)
        return Loaded(which, block, b.named(f"scale_of_{name}", scale))


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


@dataclass(frozen=True)
class Rows:
    """Rows of a program of attention: the query, token and head of each, and whether there is such a query."""

    query: SSAValue
    token: SSAValue
    head: SSAValue
    real: SSAValue

    def place(self, b: KernelBuilder, d: SSAValue, d_mask: SSAValue | None, dim: int) -> Place:
        """The columns `d` of the heads of these rows."""
        rows, row_mask = b.named("rows", b.expand(self.token, 1)), b.named("real", b.expand(self.real, 1))
        columns = b.add(b.mul(b.expand(self.head, 1), dim), b.expand(d, 0))
        return Place(rows, columns, row_mask, None if d_mask is None else b.expand(d_mask, 0))


@dataclass(frozen=True)
class QueryRows:
    """The rows of one program: `queries` queries from tile `tile` of a sequence, times the `group` heads that share a key/value head."""

    b: KernelBuilder
    tile: SSAValue
    kv_head: SSAValue
    start: SSAValue
    length: SSAValue
    queries: int
    group: int

    def at(self, r: SSAValue) -> Rows:
        """The rows of numbers `r`, a vector."""
        b = self.b
        if self.queries == 1:
            query, of_group = b.broadcast(self.tile, shape(r)), r
        else:
            query, of_group = b.add(b.mul(self.tile, self.queries), b.floordiv(r, self.group)), b.mod(r, self.group)
        query = b.named("query", query)
        head = b.named("head", b.add(b.mul(self.kv_head, self.group), of_group))
        real = b.lt(query, self.length)
        if self.queries * self.group != shape(r)[0]:
            real = b.and_(real, b.lt(r, self.queries * self.group))
        return Rows(query, b.add(query, self.start), head, real)


def _store_partial(
    e: Emitter,
    op: AttendPartialOp,
    state: tuple[SSAValue, SSAValue, SSAValue],
    r: Rows,
    chunk: SSAValue,
    d: SSAValue,
    d_mask: SSAValue | None,
) -> None:
    """Leaves this program's chunk in memory."""
    b, (best, total, acc) = e.b, state
    heads, dim, splits = python_int(op.heads), python_int(op.head_dim), python_int(op.splits)
    pointer = {item.value: item.pointer for item in e.stores}
    cell = b.named("cell", b.add(b.mul(b.add(b.mul(r.token, heads), r.head), splits), chunk))
    b.store(pointer[op.max], cell, b.mul(best, 1.0 / LOG2_E), r.real)
    b.store(pointer[op.sum], cell, total, r.real)
    mask = b.all_of(b.expand(r.real, 1), None if d_mask is None else b.expand(d_mask, 0))
    b.store(pointer[op.acc], b.add(b.mul(b.expand(cell, 1), dim), b.expand(d, 0)), acc, mask)


def _merge_last(e: Emitter, partial: AttendPartialOp, queries: QueryRows, program: SSAValue, seen: SSAValue, block_t: int) -> None:
    """The last of the programs that share `program` puts the chunks of all on their common maximum, adds and normalizes them.

    Chunks without a tile of the `seen` positions are not read.
    """
    op = next((o for o in e.block.ops if isinstance(o, AttendMergeOp)), None)
    if op is None or op.arrivals is None:
        raise PassError("partial results without a counted merge", where=subject(e.fused))
    b, arrivals = e.b, e.pointers[op.arrivals]
    heads, dim, splits = python_int(partial.heads), python_int(partial.head_dim), python_int(partial.splits)
    pointer = {item.value: item.pointer for item in e.stores}
    block_d, rows = 1 << max(0, dim - 1).bit_length(), 1 << max(0, queries.queries * queries.group - 1).bit_length()
    block_r = min(rows, max(1, e.schedule.get("warps") * MERGED_ELEMENTS // (splits * block_d)))
    with b.source(source_of(op)), by_the_last(e, arrivals, program, splits), b.for_(0, rows, block_r) as loop, e.scope():
        r = queries.at(b.add(b.arange(block_r), loop.index))
        p, d = b.arange(splits), b.arange(block_d)
        d_mask = None if block_d == dim else b.lt(d, dim)
        there = b.named("there", b.expand(b.lt(b.mul(p, block_t), b.maximum(seen, 1)), 1))
        cell = b.named("cells", b.mul(b.add(b.mul(r.token, heads), r.head), splits))
        # Columns of all heads side by side: threads share them out, and each adds up the chunks of its own. What takes longest is asked for first.
        width = block_r * block_d
        c = b.arange(width)
        of, column = queries.at(b.add(b.floordiv(c, block_d), loop.index)), b.mod(c, block_d)
        mask = b.expand(of.real if d_mask is None else b.and_(of.real, b.lt(column, dim)), 0)
        columns = b.add(b.mul(b.add(b.mul(of.token, heads), of.head), splits * dim), column)
        offsets = b.add(b.expand(columns, 0), b.expand(b.mul(p, dim), 1))
        acc = b.named("parts", b.load(pointer[partial.acc], offsets, b.and_(mask, there), 0.0, cache="cg"))
        b.barrier()  # or the compiler waits for what follows before it asks for those
        real = b.and_(b.expand(r.real, 0), there)
        cells = b.add(b.expand(cell, 0), b.expand(p, 1))
        best = b.where(there, b.load(pointer[partial.max], cells, real, 0.0, cache="cg"), -math.inf)
        total = b.load(pointer[partial.sum], cells, real, 1.0, cache="cg")
        weight = b.named("weight", b.exp(b.sub(best, b.expand(b.reduce(best, "max", 0), 0))))
        whole = b.named("whole", b.reduce(b.mul(weight, total), "sum", 0))
        spread = b.reshape(b.broadcast(b.expand(weight, 2), (splits, block_r, block_d)), (splits, width))
        mixed = b.reshape(b.reduce(b.mul(acc, spread), "sum", 0), (block_r, block_d))
        mixed = b.div(mixed, b.expand(whole, 1))
        place = r.place(b, d, d_mask, dim)
        e.define(op.result, place, b.named("mixed", mixed))
        for item in e.stores:
            if item.value.owner is not partial:
                e.store(item, place)


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
    zero = b.constant(0)
    if op.window is None:
        return zero
    return b.named("origin", b.mul(b.floordiv(_first_seen(b, op, zero, position), tile), tile))


def _first_turn(b: KernelBuilder, tile: SSAValue, chunk: SSAValue, splits: int) -> SSAValue:
    """The number of the first tile of chunk `chunk` at or behind number `tile`."""
    behind = b.maximum(b.sub(tile, chunk), 0)
    return b.add(chunk, b.mul(b.floordiv(b.add(behind, splits - 1), splits), splits))


def _first_seen(b: KernelBuilder, op: AttendOp | AttendPartialOp, low: SSAValue, position: SSAValue) -> SSAValue:
    """The first position from `low` on that a query at or after `position` sees."""
    return low if op.window is None else b.maximum(low, b.add(b.sub(position, op.window.value.data), 1))

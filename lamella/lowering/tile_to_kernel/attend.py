"""The attend skeleton: online softmax over the paged cache, whole or in chunks of the context, and the merge of chunks.

FlashAttention (arXiv 2205.14135) over blocks named by a table (arXiv 2309.06180); chunks as in Flash-Decoding.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.kernel.types import shape
from lamella.dialects.tile import AttendMergeOp, AttendOp, AttendPartialOp, FusedOp, ScheduleAttr
from lamella.lowering.tile_to_kernel.emitter import Emitter, Place, python_int, source_of

LOG2_E = math.log2(math.e)


def lower_attend(fused: FusedOp, name: str, schedule: ScheduleAttr, longest_query: int) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """Programs over (query tiles, key/value heads, sequences × chunks); the heads that share keys are rows of one program."""
    op = next(o for o in fused.body.block.ops if isinstance(o, AttendOp | AttendPartialOp))
    e = Emitter(fused, name, schedule, num_stages=schedule.get("stages"))
    b = e.b
    splits = python_int(op.splits) if isinstance(op, AttendPartialOp) else 1
    queries, block_r, block_t = schedule.get("queries"), schedule.get("rows"), schedule.get("tile")
    heads, kv_heads, dim = python_int(op.heads), python_int(op.kv_heads), python_int(op.head_dim)
    group = heads // kv_heads
    sequences, table_width = shape_of(op.block_table)
    block_size = shape_of(op.cache)[3]
    block_d = max(16, 1 << max(0, dim - 1).bit_length())
    tiles = -(-longest_query // queries)
    element = element_type_of(op.cache)
    with b.source(source_of(op)):
        tile = b.named("tile", b.program_id(0)) if tiles > 1 else b.constant(0)
        kv_head = b.named("kv_head", b.program_id(1))
        part = b.program_id(2)
        sequence = b.named("sequence", b.floordiv(part, splits) if sequences > 1 else b.constant(0))
        chunk = b.mod(part, splits) if sequences > 1 else part
        start = b.named("start", b.load(e.pointers[op.query_start], sequence))
        length = b.named("length", b.sub(b.load(e.pointers[op.query_start], b.add(sequence, 1)), start))
        context = b.named("context", b.load(e.pointers[op.context_len], sequence))

        r = b.arange(block_r)
        query = b.named("query", b.add(b.mul(tile, queries), b.floordiv(r, group)))
        head = b.named("head", b.add(b.mul(kv_head, group), b.mod(r, group)))
        real = b.lt(query, length)
        if queries * group != block_r:
            real = b.and_(real, b.lt(r, queries * group))
        rows = b.named("rows", b.expand(b.add(query, start), 1))
        row_mask = b.named("real", b.expand(real, 1))
        position = b.named("position", b.add(query, b.sub(context, length)))
        d = b.arange(block_d)
        d_mask = None if block_d == dim else b.lt(d, dim)
        head_columns = b.mul(b.expand(head, 1), dim)
        columns = b.add(head_columns, b.expand(d, 0))
        place = Place(rows, columns, row_mask, None if d_mask is None else b.expand(d_mask, 0))
        q = b.named("q", e.emit(op.q, place))

        # Positions of this chunk, up to the last one that some query of the tile may see.
        last = b.add(b.sub(context, length), b.minimum(b.mul(b.add(tile, 1), queries), length))
        low = b.constant(0)
        high = last
        if splits > 1:
            per_chunk = b.floordiv(b.add(context, splits - 1), splits)
            per_chunk = b.mul(b.floordiv(b.add(per_chunk, block_t - 1), block_t), block_t)
            low = b.mul(chunk, per_chunk)
            high = b.minimum(b.add(low, per_chunk), last)
        high = b.where(b.lt(b.mul(tile, queries), length), high, low) if tiles > 1 or sequences > 1 else high

        scale = python_float(op) * LOG2_E
        cache = e.pointers[op.cache]
        wide_head, wide_d = b.cast(kv_head, i64), b.cast(d, i64)
        best = b.named("best", b.full((block_r,), -math.inf, f32))
        total = b.named("total", b.full((block_r,), 0.0, f32))
        acc = b.named("acc", b.full((block_r, block_d), 0.0, f32))
        with b.for_(low, high, block_t, init=[best, total, acc], num_stages=schedule.get("stages")) as loop:
            best, total, acc = loop.values
            t = b.named("t", b.add(b.arange(block_t), loop.index))
            t_mask = b.lt(t, high)
            entry = b.add(b.mul(sequence, table_width), b.floordiv(t, block_size))
            number = b.named("number", b.cast(b.load(e.pointers[op.block_table], entry, t_mask, 0), i64))
            slot = b.cast(b.mod(t, block_size), i64)

            def address(which: int, number: SSAValue = number, slot: SSAValue = slot) -> SSAValue:
                cell = b.add(b.mul(b.add(b.mul(number, 2), which), kv_heads), wide_head)
                return b.mul(b.add(b.mul(cell, block_size), slot), dim)

            keys_mask = b.all_of(b.expand(t_mask, 0), None if d_mask is None else b.expand(d_mask, 1))
            keys = b.named("keys", b.load(cache, b.add(b.expand(address(0), 0), b.expand(wide_d, 1)), keys_mask, 0.0))
            scores = b.mul(b.dot(q, keys), scale)
            seen = b.and_(b.le(b.expand(t, 0), b.expand(position, 1)), b.expand(t_mask, 0))
            scores = b.named("scores", b.where(seen, scores, -math.inf))
            new_best = b.named("new_best", b.maximum(best, b.reduce(scores, "max", 1)))
            # A row that has seen nothing keeps -inf; its exponent must not become -inf - -inf.
            base = b.named("base", b.where(b.eq(new_best, -math.inf), 0.0, new_best))
            shrink = b.named("shrink", b.exp2(b.sub(best, base)))
            p = b.named("p", b.exp2(b.sub(scores, b.expand(base, 1))))
            new_total = b.add(b.mul(total, shrink), b.reduce(p, "sum", 1))
            values_mask = b.all_of(b.expand(t_mask, 1), None if d_mask is None else b.expand(d_mask, 0))
            values = b.named("values", b.load(cache, b.add(b.expand(address(1), 1), b.expand(wide_d, 0)), values_mask, 0.0))
            new_acc = b.dot(b.cast(p, element), values, b.mul(acc, b.expand(shrink, 1)))
            loop.yields(new_best, new_total, new_acc)
        best, total, acc = loop.results
        if isinstance(op, AttendPartialOp):
            _store_partial(e, op, (best, total, acc), rows, head, chunk, d, (row_mask, real, d_mask))
        else:
            e.define(op.result, place, b.named("mixed", b.div(acc, b.expand(total, 1))))
    if isinstance(op, AttendOp):
        for item in e.stores:
            e.store(item, place)
    return b.finish(), (tiles, kv_heads, sequences * splits)


def _store_partial(
    e: Emitter,
    op: AttendPartialOp,
    state: tuple[SSAValue, SSAValue, SSAValue],
    rows: SSAValue,
    head: SSAValue,
    chunk: SSAValue,
    d: SSAValue,
    masks: tuple[SSAValue, SSAValue, SSAValue | None],
) -> None:
    b, (best, total, acc), (row_mask, real, d_mask) = e.b, state, masks
    heads, dim, splits = python_int(op.heads), python_int(op.head_dim), python_int(op.splits)
    pointer = {item.value: item.pointer for item in e.stores}
    row = b.add(b.mul(rows, heads), b.expand(head, 1))
    cell = b.add(b.mul(row, splits), chunk)
    flat = b.reshape(cell, shape(cell)[:1])
    b.store(pointer[op.max], flat, b.mul(best, 1.0 / LOG2_E), real)
    b.store(pointer[op.sum], flat, total, real)
    mask = b.all_of(row_mask, None if d_mask is None else b.expand(d_mask, 0))
    b.store(pointer[op.acc], b.add(b.mul(cell, dim), b.expand(d, 0)), acc, mask)


def python_float(op: AttendOp | AttendPartialOp) -> float:
    """The factor of the scores."""
    return op.scale.value.data


def lower_merge(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """One program a token and head: the chunks' results on their common maximum, added and normalized."""
    op = next(o for o in fused.body.block.ops if isinstance(o, AttendMergeOp))
    e = Emitter(fused, name, schedule)
    b = e.b
    tokens, heads, splits, dim = shape_of(op.acc)
    block_p, block_d = schedule.get("splits"), 1 << max(0, dim - 1).bit_length()
    with b.source(source_of(op)):
        head = b.named("head", b.program_id(0))
        token = b.named("token", b.program_id(1)) if tokens > 1 else b.constant(0)
        p, d = b.arange(block_p), b.arange(block_d)
        p_mask = None if block_p == splits else b.lt(p, splits)
        d_mask = None if block_d == dim else b.lt(d, dim)
        cell = b.named("cell", b.add(b.mul(b.add(b.mul(token, heads), head), splits), p))
        largest = b.load(e.pointers[op.max], cell, p_mask, -math.inf)
        weight = b.named("weight", b.exp(b.sub(largest, b.reduce(largest, "max", 0))))
        total = b.reduce(b.mul(weight, b.load(e.pointers[op.sum], cell, p_mask, 0.0)), "sum", 0)
        mask = b.all_of(None if p_mask is None else b.expand(p_mask, 1), None if d_mask is None else b.expand(d_mask, 0))
        acc = b.load(e.pointers[op.acc], b.add(b.mul(b.expand(cell, 1), dim), b.expand(d, 0)), mask, 0.0)
        mixed = b.div(b.reduce(b.mul(acc, b.expand(weight, 1)), "sum", 0), total)
    place = Place(token, b.add(b.mul(head, dim), d), None, d_mask)
    e.define(op.result, place, b.named("mixed", mixed))
    for item in e.stores:
        e.store(item, place)
    return b.finish(), (heads, tokens, 1)

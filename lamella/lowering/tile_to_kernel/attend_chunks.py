"""Chunks of a split context: the sums of each go in; what a program leaves in memory, and their merge by the last program, leave (Flash-Decoding)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.ir import SSAValue

from lamella.dialects.attributes import python_int
from lamella.dialects.kernel.types import shape
from lamella.dialects.messages import subject
from lamella.dialects.tile import AttendMergeOp, AttendPartialOp
from lamella.errors import PassError
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.tile_to_kernel.divided_grid import by_the_last
from lamella.lowering.tile_to_kernel.emitter import Emitter, source_of
from lamella.lowering.tile_to_kernel.places import Place

LOG2_E = math.log2(math.e)

MERGED_ELEMENTS = 4096
"""Elements of partial results that each warp of the merging program holds at once: 128 a thread."""


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


def store_partial(
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


def merge_last(e: Emitter, partial: AttendPartialOp, queries: QueryRows, program: SSAValue, seen: SSAValue, block_t: int) -> None:
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

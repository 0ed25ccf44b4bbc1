"""The row skeleton: a program takes one row (or a block of a vector's numbers) of every value its region stores."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import FusedOp, ScheduleAttr
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.emitter import Emitter, Place


def lower(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """The kernel of a row region and its grid."""
    e = Emitter(fused, name, schedule)
    count = max(store_rows(s.value) for s in e.stores)
    block = schedule.get("rows")
    rows, mask = row_block(e, count, block)
    for item in e.stores:
        if len(shape_of(item.value)) == 1:
            e.store(item, Place(rows, None, mask))
            continue
        width = shape_of(item.value)[-1]
        if width <= e.chunk:
            e.store(item, e.whole(rows, mask, width))
            continue
        first = Place(rows, None, mask)
        e.stage([item.value], first)
        with e.b.for_(0, width, e.chunk) as loop, e.scope():
            e.store(item, e.columns(rows, mask, loop.index, e.chunk, width))
    return e.b.finish(), (-(-count // block), 1, 1)


def store_rows(value: SSAValue) -> int:
    """Rows of a stored value."""
    return shape_of(value)[0]


def row_block(e: Emitter, count: int, block: int) -> tuple[Operand, SSAValue | None]:
    """This program's rows and their mask: a scalar where it has one."""
    b = e.b
    if block == 1:
        return (0 if count == 1 else b.named("row", b.program_id(0))), None
    rows = b.named("rows", b.add(b.mul(b.program_id(0), block), b.arange(block)))
    return rows, None if count % block == 0 else b.lt(rows, count)

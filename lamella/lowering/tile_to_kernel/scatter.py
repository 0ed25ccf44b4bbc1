"""A scatter of a region enters, at the place where a program has its values; their stores into the paged cache leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import ScatterOp
from lamella.lowering.kernel_builder import KernelBuilder, Operand
from lamella.lowering.quotients import quotient, remainder
from lamella.lowering.tile_to_kernel.places import Place

if TYPE_CHECKING:
    from lamella.lowering.tile_to_kernel.emitter import Emitter


def store_scattered(e: Emitter, op: ScatterOp, pointer: SSAValue, place: Place, source: str) -> None:
    """Stores what `op` scatters of the rows and columns of `place`; `source` is what the lines say of their origin."""
    b, block, dim = e.b, e.emit(op.values, place), shape_of(op.cache)[4]
    rows, width = shape_of(op.values)
    if width == 1 or rows != shape_of(op.slots)[0]:
        _store_heads(e, op, pointer, place, block, source)
        return
    slots = e.along_rows(op.slots, place)
    assert place.cols is not None
    with b.source(source):
        slot = b.cast(slots, i64)
        head, offset = b.cast(quotient(b, place.cols, dim), i64), b.cast(remainder(b, place.cols, dim), i64)
        address = b.named("address", b.add(b.mul(_row(b, op, slot, head), dim), offset))
        b.store(pointer, address, block, b.all_of(place.row_mask, place.col_mask))


def _store_heads(e: Emitter, op: ScatterOp, pointer: SSAValue, place: Place, block: SSAValue, source: str) -> None:
    """Stores heads that are rows of their own, of one number or several."""
    b, heads, dim = e.b, shape_of(op.cache)[2], shape_of(op.cache)[4]
    token = place if heads == 1 else Place(b.floordiv(place.rows, heads), None, place.row_mask)
    slots = e.along_rows(op.slots, token)
    with b.source(source):
        slot = b.cast(slots, i64)
        row = _row(b, op, slot, 0 if heads == 1 else b.cast(b.mod(place.rows, heads), i64))
        if dim == 1:
            b.store(pointer, b.named("address", row), block, place.row_mask)
            return
        assert place.cols is not None
        address = b.named("address", b.add(b.mul(row, dim), b.cast(place.cols, i64)))
        b.store(pointer, address, block, b.all_of(place.row_mask, place.col_mask))


def _row(b: KernelBuilder, op: ScatterOp, slot: SSAValue, head: Operand) -> SSAValue:
    """The number of a head of a slot among all of the cache."""
    _, _, heads, size, _ = shape_of(op.cache)
    cell = b.add(b.mul(b.floordiv(slot, size), 2), op.part.value.data)
    return b.add(b.mul(b.add(b.mul(cell, heads), head), size), b.mod(slot, size))

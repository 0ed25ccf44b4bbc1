"""How each op of a region is computed in a kernel at a place: the table that an emitter asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import Float8E4M3FNType, f32, i8, i32
from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects.attributes import element_type_of, python_int, python_value, shape_of
from lamella.dialects.kernel.types import shape
from lamella.dialects.messages import subject
from lamella.dialects.tile import (
    AddColumnsOp,
    AddRowsOp,
    CastOp,
    ColumnsOp,
    ConstantOp,
    DequantizeOp,
    GatherColumnsOp,
    GatherOp,
    MapOp,
    ReduceOp,
    ReshapeOp,
    RotateOp,
    SlotsOp,
    SwapPairsOp,
)
from lamella.errors import PassError, nearest
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.places import INT32_ELEMENTS, Place, swapped_pairs
from lamella.lowering.tile_to_kernel.round_float8 import rounded_float8
from lamella.lowering.tile_to_kernel.round_int8 import rounded_int8
from lamella.lowering.tile_to_kernel.scalars import SCALAR_RULES
from lamella.lowering.tile_to_kernel.unpacked_number import unpacked_number

if TYPE_CHECKING:
    from lamella.lowering.tile_to_kernel.emitter import Emitter


def _constant(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, ConstantOp)
    value = python_value(op.value)
    assert isinstance(value, int | float)
    return e.b.constant(value, element_type_of(op.result))


def _map(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, MapOp)
    rule = SCALAR_RULES.get(op.kind.data)
    if rule is None:
        raise PassError(f"no scalar rule {op.kind.data}", where=subject(op), remedy=nearest(op.kind.data, SCALAR_RULES))
    rank = len(shape_of(op.result))
    operands: list[SSAValue] = []
    for value in op.inputs:
        along_rows = rank == 1 and place.cols is None
        operands.append(e.along_rows(value, place) if along_rows and shape_of(value) else e.emit(value, place))
    return rule(e.b, *operands)


def _cast(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, CastOp)
    value, element = e.emit(op.input, place), element_type_of(op.result)
    if isinstance(element, Float8E4M3FNType):
        return rounded_float8(e.b, e.b.cast(value, f32))
    return rounded_int8(e.b, e.b.cast(value, f32)) if element == i8 else e.b.cast(value, element)


def _reduce(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, ReduceOp)
    return e.reduce(op, place)


def _gather(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, GatherOp)
    if not isinstance(op.table, BlockArgument):
        raise PassError("a gather reads a table that this kernel computes", where=subject(op))
    rows = e.along_rows(op.rows, place)
    sizes, pointer = shape_of(op.table), e.pointers[op.table]
    if len(sizes) == 1:
        return e.b.load(pointer, rows, place.row_mask)
    there = Place(rows, place.cols, place.row_mask, place.col_mask)
    offsets, mask = e.offsets(sizes, there)
    return e.b.load(pointer, offsets, mask)


def _gather_columns(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """x is emitted at the columns that are read from memory; its reductions stay those of whole rows, which know no order."""
    assert isinstance(op, GatherColumnsOp)
    columns = e.emit(op.columns, place)
    return e.emit(op.x, e.elsewhere(place, columns))


def _swap_pairs(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, SwapPairsOp) and place.cols is not None
    return e.emit(op.x, e.elsewhere(place, swapped_pairs(e.b, place.cols)))


def _columns(e: Emitter, op: Operation, place: Place) -> SSAValue:
    assert isinstance(op, ColumnsOp) and place.cols is not None
    return e.b.cast(place.cols, i32)


def _reshape(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """Memory knows no shape: the input is read as if it had that of the result."""
    assert isinstance(op, ReshapeOp)
    if not isinstance(op.input, BlockArgument):
        raise PassError("a reshape of a value that this kernel computes", where=subject(op))
    return e.load(op.input, shape_of(op.result), place)


def _add_rows(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """Neighbouring rows, read from memory, widened and added in order."""
    assert isinstance(op, AddRowsOp)
    if not isinstance(op.x, BlockArgument):
        raise PassError("a sum of rows that this kernel computes", where=subject(op))
    b, rows = e.b, python_int(op.rows)
    total: SSAValue | None = None
    for number in range(rows):
        there = Place(b.add(b.mul(place.rows, rows), number), place.cols, place.row_mask, place.col_mask)
        part = b.cast(e.load(op.x, shape_of(op.x), there), f32)
        total = part if total is None else b.add(total, part)
    assert total is not None
    return total


def _add_columns(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """Neighbouring columns, each where it is computed, added in order."""
    assert isinstance(op, AddColumnsOp) and place.cols is not None
    b, columns = e.b, python_int(op.columns)
    first = b.mul(place.cols, columns)
    return reduce(b.add, [e.emit(op.x, e.elsewhere(place, b.add(first, number))) for number in range(columns)])


def _slots(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """The sequence of a token is the number of sequences that end at or before it; past the last one it is padding."""
    assert isinstance(op, SlotsOp)
    b, block = e.b, python_int(op.block)
    sequences, blocks = shape_of(op.block_table)
    starts, table = e.pointers[op.query_start], e.pointers[op.block_table]
    rows = b.cast(place.rows, i32) if isinstance(place.rows, SSAValue) else b.constant(place.rows, i32)
    if sequences == 1:
        sequence: Operand = 0
        real = b.lt(rows, b.load(starts, 1))
    else:
        size = 1 << max(0, sequences - 1).bit_length()
        index = b.arange(size)
        ends = b.load(starts, b.add(index, 1), b.lt(index, sequences) if size != sequences else None, INT32_ELEMENTS)
        rank = len(shape(rows))
        for _ in range(rank):
            ends = b.expand(ends, 0)
        here = b.expand(rows, rank) if rank else rows
        passed = b.where(b.le(ends, here), 1, 0)
        sequence = b.named("sequence", b.reduce(passed, "sum", rank))
        real = b.lt(sequence, sequences)
    mask = b.all_of(real, place.row_mask)
    position = e.along_rows(op.positions, place)
    entry = b.add(b.mul(sequence, blocks), b.floordiv(position, block))
    number = b.load(table, entry, mask, 0)
    return b.where(real, b.add(b.mul(number, block), b.mod(position, block)), 0)


def _rotate(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """At a place of loaded values: the partner column is read too. A contraction's columns come as pairs and never reach this rule."""
    assert isinstance(op, RotateOp)
    b, dim, rotary = e.b, python_int(op.head_dim), python_int(op.rotary_dim)
    assert place.cols is not None
    d = b.mod(place.cols, dim)
    half = rotary // 2
    if op.style.data == "paired":
        first, angle = b.eq(b.mod(d, 2), 0), b.floordiv(d, 2)
        partner = b.where(first, b.add(place.cols, 1), b.sub(place.cols, 1))
    else:
        first, angle = b.lt(d, half), b.mod(d, half)
        partner = b.where(first, b.add(place.cols, half), b.sub(place.cols, half))
    turns = b.lt(d, rotary)
    mask = b.all_of(place.col_mask, turns if rotary < dim else None)
    x = e.emit(op.x, place)
    other = e.emit(op.x, Place(place.rows, partner, place.row_mask, mask))
    cos = e.emit(op.rows, Place(place.rows, angle, place.row_mask, mask))
    sin = e.emit(op.rows, Place(place.rows, b.add(angle, half), place.row_mask, mask))
    turned = b.add(b.mul(x, cos), b.mul(b.where(first, b.neg(other), other), sin))
    return b.where(turns, turned, x) if rotary < dim else turned


RULES: Mapping[type[Operation], Callable[[Emitter, Operation, Place], SSAValue]] = {
    ConstantOp: _constant,
    MapOp: _map,
    CastOp: _cast,
    ReduceOp: _reduce,
    GatherOp: _gather,
    GatherColumnsOp: _gather_columns,
    ColumnsOp: _columns,
    SwapPairsOp: _swap_pairs,
    DequantizeOp: unpacked_number,
    ReshapeOp: _reshape,
    AddColumnsOp: _add_columns,
    AddRowsOp: _add_rows,
    SlotsOp: _slots,
    RotateOp: _rotate,
}

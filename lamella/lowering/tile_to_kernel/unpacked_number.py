"""A place in a packed weight enters, where no contraction takes whole words apart; the numbers there leave as floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from lamella.dialects.tile import DequantizeOp
from lamella.lowering.tile_to_kernel.packed_places import byte_of, signed_number
from lamella.lowering.tile_to_kernel.places import Place

if TYPE_CHECKING:
    from lamella.lowering.tile_to_kernel.emitter import Emitter


def unpacked_number(e: Emitter, op: Operation, place: Place) -> SSAValue:
    """Each number by itself, where no contraction takes whole words apart: its byte, its word, its place in it, its group."""
    assert isinstance(op, DequantizeOp)
    b, packing = e.b, op.packing
    assert place.cols is not None
    if packing.floats:
        return b.mul(b.cast(e.emit(op.words, place), f32), factor(e, op, place, op.scales, None))
    byte, bit = byte_of(b, place.cols, packing)
    at = Place(place.rows, b.floordiv(byte, 4), place.row_mask, place.col_mask)
    signed = signed_number(b, e.emit(op.words, at), b.add(b.mul(b.mod(byte, 4), 8), bit), packing.bits)
    scale = factor(e, op, place, op.scales, op.super_scales)
    if op.mins is None:
        return b.mul(b.cast(signed, f32), scale)
    return b.add(b.mul(b.cast(b.add(signed, packing.zero), f32), scale), factor(e, op, place, op.mins, op.super_mins))


def factor(e: Emitter, op: DequantizeOp, place: Place, value: SSAValue, over: SSAValue | None) -> SSAValue:
    """The scale or least value of each column, times what lies `over` it, if anything does."""
    b, group = e.b, op.packing.group.data

    def at(columns: int) -> Place:
        assert place.cols is not None
        cols = b.floordiv(place.cols, columns)
        if not op.together:
            return Place(place.rows, cols, place.row_mask, place.col_mask)
        rows = place.rows if isinstance(place.rows, SSAValue) else b.constant(int(place.rows))
        if op.together > 1:
            rows = b.add(b.mul(rows, op.together), b.mod(cols, op.together))
            cols = b.floordiv(cols, op.together)
        return Place(cols, rows, place.col_mask, place.row_mask)

    own = b.cast(e.emit(value, at(group)), f32)
    return own if over is None else b.mul(own, b.cast(e.emit(over, at(group * op.per_super)), f32))

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
    group = Place(place.rows, b.floordiv(place.cols, packing.group.data), place.row_mask, place.col_mask)
    if op.by_group is not None:
        rows = place.rows if isinstance(place.rows, SSAValue) else b.constant(int(place.rows))
        group = Place(b.floordiv(place.cols, packing.group.data), rows, place.col_mask, place.row_mask)
    if packing.floats:
        return b.mul(b.cast(e.emit(op.words, place), f32), b.cast(e.emit(op.scales, group), f32))
    byte, bit = byte_of(b, place.cols, packing)
    at = Place(place.rows, b.floordiv(byte, 4), place.row_mask, place.col_mask)
    signed = signed_number(b, e.emit(op.words, at), b.add(b.mul(b.mod(byte, 4), 8), bit), packing.bits)
    scale = b.cast(e.emit(op.scales, group), f32)
    if op.mins is None:
        return b.mul(b.cast(signed, f32), scale)
    return b.add(b.mul(b.cast(b.add(signed, packing.zero), f32), scale), b.cast(e.emit(op.mins, group), f32))

"""Packed weights, and rows in eight bits, as what they stand for; how rows get there."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lamella.dialects import tile
from lamella.dialects.attributes import element_type_of
from lamella.dialects.tile import ReduceOp
from lamella.dialects.transformer import DequantizeOp, QuantizeRowsOp
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder

LARGEST, LEAST = {"int8": 127.0, "fp8": 448.0}, 2.0**-100
"""What the largest magnitude of a row becomes, and the magnitude that it has at least."""


def dequantize(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The same at level 2."""
    assert isinstance(op, DequantizeOp)
    return [b.add(tile.DequantizeOp.of(operands, op.packing, by_group=op.together, loc=b.loc))]


def quantize_rows(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """`semantics.quantize_rows`, op by op."""
    assert isinstance(op, QuantizeRowsOp)
    x = b.float32(operands[0])
    largest = b.add(ReduceOp("max", b.map("magnitude", x), loc=b.loc))
    scales = b.map("mul", b.map("maximum", largest, LEAST), 1.0 / LARGEST[op.kind.data])
    scales.name_hint = "row_scales"
    return [b.cast(b.map("div", x, scales), element_type_of(op.values)), scales]


def dequantize_rows(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """Values times the scale of their row. A linear looks through it."""
    values, scales = operands
    return [b.map("mul", b.float32(values), scales)]


RULES: dict[str, Rule] = {
    "transformer.dequantize": dequantize,
    "transformer.quantize_rows": quantize_rows,
    "transformer.dequantize_rows": dequantize_rows,
}
"""By op name."""

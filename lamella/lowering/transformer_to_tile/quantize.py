"""Packed weights as what they stand for."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lamella.dialects import tile
from lamella.dialects.transformer import DequantizeOp
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder


def dequantize(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The same at level 2."""
    assert isinstance(op, DequantizeOp)
    return [b.add(tile.DequantizeOp.of(operands, op.packing, by_group=op.by_group is not None, loc=b.loc))]


RULES: dict[str, Rule] = {"transformer.dequantize": dequantize}
"""By op name."""

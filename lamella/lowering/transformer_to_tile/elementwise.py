"""Elementwise ops: one map in float32, rounded to the result's type; integers stay integers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import attributes_of, element_name, element_type_of
from lamella.dialects.elementwise import Elementwise, LastAxisReduction
from lamella.dialects.tile import ReduceOp
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder


def elementwise(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """`transformer.KIND a, b` becomes `cast(map KIND (cast a, cast b))`."""
    assert isinstance(op, Elementwise)
    element = element_type_of(op.results[0])
    integer = element_name(element).startswith("i")
    values = operands if integer else [b.float32(v) for v in operands]
    return [b.cast(b.map(op.kind, *values), element)]


def last_axis_reduction(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """A reduction of the last axis becomes `cast(reduce KIND (cast x))`."""
    assert isinstance(op, LastAxisReduction)
    reduced = b.add(ReduceOp(op.kind, b.float32(operands[0]), loc=b.loc))
    return [b.cast(reduced, element_type_of(op.results[0]))]


def advance(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """x + 1 on indices."""
    return [b.map("add", operands[0], 1)]


def scale(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """`cast(map mul (cast x, factor))`."""
    factor = attributes_of(op)["factor"]
    assert isinstance(factor, float)
    return [b.cast(b.map("mul", b.float32(operands[0]), factor), element_type_of(op.results[0]))]


def scale_rows(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """`cast(map mul (cast x, cast factor))`, the factor a column."""
    x, factor = (b.float32(v) for v in operands)
    return [b.cast(b.map("mul", x, factor), element_type_of(op.results[0]))]


RULES: dict[str, Rule] = {"transformer.advance": advance, "transformer.scale": scale, "transformer.scale_rows": scale_rows}

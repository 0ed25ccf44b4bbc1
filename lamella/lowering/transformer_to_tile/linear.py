"""Linear layers as contractions with rounding, and table look-ups as gathers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import element_type_of
from lamella.dialects.tile import CastOp, DequantizeOp, GatherColumnsOp, MapOp
from lamella.dialects.transformer import DequantizeRowsOp
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder


def linear(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round(x @ weightᵀ + bias), accumulated in float32. Of quantized rows the values are multiplied, and the scales multiply the sums."""
    x, weight, *bias = operands
    if isinstance(op.operands[0].owner, DequantizeRowsOp):
        assert isinstance(x.owner, MapOp)
        numbers, scales = x.owner.inputs
        assert isinstance(numbers.owner, CastOp)
        y = b.map("mul", b.contract(numbers.owner.input, weight), scales)
    else:
        y = b.contract(x, weight)
    for vector in bias:
        y = b.map("add", y, b.float32(vector))
    return [b.cast(y, element_type_of(op.results[0]))]


def embedding(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The table's rows named by the tokens; of a packed table the rows of its parts, which are then unpacked."""
    tokens, table = operands
    packed = table.owner
    if not isinstance(packed, DequantizeOp):
        return [b.cast(b.gather(table, tokens), element_type_of(op.results[0]))]
    rows = b.add(DequantizeOp.of([b.gather(part, tokens) for part in packed.operands], packed.packing, loc=b.loc))
    return [b.cast(rows, element_type_of(op.results[0]))]


def gather_rows(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """Rows of an activation."""
    x, rows = operands
    return [b.gather(x, rows)]


def gather_columns(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """Columns of an activation."""
    x, columns = operands
    return [b.add(GatherColumnsOp(x, columns, loc=b.loc))]


RULES: dict[str, Rule] = {
    "transformer.linear": linear,
    "transformer.embedding": embedding,
    "transformer.gather_rows": gather_rows,
    "transformer.gather_columns": gather_columns,
}

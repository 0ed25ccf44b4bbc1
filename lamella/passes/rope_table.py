"""RoPE by formula enters; one shared table of cosines and sines, and rotations by its rows, leave."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from lamella.dialects import signature
from lamella.dialects.attributes import element_of
from lamella.dialects.transformer import RopeOp, RopeRowOp, RopeTableOp, RotateOp, original_length


@dataclass(frozen=True)
class RopeTable(ModulePass):
    """Compute cosines and sines once for the positions 0 … length-1, in a table that all ropes with the same frequencies share.

    Before:
        %q2 = transformer.rope %q, %positions {heads = 4, head_dim = 16, rotary_dim = 16, style = "half", theta = 1.0e+04, scaling = {}}
        %k2 = transformer.rope %k, %positions {heads = 2, …}
    After `rope-table{length=2048}`, the table first in the function:
        %table = transformer.rope_table {length = 2048, rotary_dim = 16, theta = 1.0e+04, scaling = {}} : tensor<2048x16xf32>
        %q2 = transformer.rotate %q, %positions, %table {heads = 4, head_dim = 16, rotary_dim = 16, style = "half"}
        %k2 = transformer.rotate %k, %positions, %table {heads = 2, …}

    LongRoPE has two sets of frequencies. Up to the original length the table has the first; a longer one has both, and
        %row = transformer.rope_row %positions, %lengths {length = 2048, original = 1024} : (tensor<?xi32, …>, tensor<?xi32, …>) -> tensor<?xi32, …>
    stands in place of the positions.

    Expects positions below `length` at run time. Leaves no rope.
    """

    name = "rope-table"

    length: int

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.length < 1:
            raise PassFailedException(f"length is {self.length}, expected at least 1")
        for function in op.ops:
            tables: dict[tuple[Attribute, ...], SSAValue] = {}
            rows: dict[tuple[SSAValue, ...], SSAValue] = {}
            for rope in [inner for inner in function.walk() if isinstance(inner, RopeOp)]:
                key = (rope.rotary_dim, rope.theta, rope.scaling)
                if key not in tables:
                    tables[key] = insert_table(rope, self.length)
                Rewriter.replace_op(rope, rotation(rope, tables[key], self.rows(rope, rows)))
            if not tables and isinstance(function, FuncOp):
                signature.note_idle(function, [{"pass": "rope-table", "reason": "no transformer.rope"}])

    def rows(self, rope: RopeOp, known: dict[tuple[SSAValue, ...], SSAValue]) -> SSAValue:
        """The rows of the table that `rope` turns by: its positions, or of a table of two sets of frequencies what its lengths choose."""
        original = original_length(rope.scaling)
        if rope.lengths is None or original is None or self.length <= original:
            return rope.positions
        key = (rope.positions, rope.lengths)
        if key not in known:
            made = RopeRowOp(*key, length=self.length, original=original)
            made.result.name_hint = "rope_row"
            Rewriter.insert_op(made, InsertPoint.before(rope))
            known[key] = made.result
        return known[key]


def insert_table(rope: RopeOp, length: int) -> SSAValue:
    """The table of `rope`'s frequencies, inserted first in its block."""
    block = rope.parent_block()
    assert block is not None and element_of(rope.positions) == "i32"
    table = RopeTableOp(length, rotary_dim=rope.rotary_dim.value.data, theta=rope.theta, scaling=rope.scaling)
    table.result.name_hint = "rope_table"
    Rewriter.insert_op(table, InsertPoint.at_start(block))
    return table.result


def rotation(rope: RopeOp, table: SSAValue, rows: SSAValue) -> RotateOp:
    """`rope` with `rows` of `table`; the location and other discardable attributes stay."""
    rotate = RotateOp(
        rope.x,
        rows,
        table,
        heads=rope.heads.value.data,
        head_dim=rope.head_dim.value.data,
        rotary_dim=rope.rotary_dim.value.data,
        style=rope.style.data,
    )
    rotate.attributes.update(rope.attributes)
    return rotate

"""What a lowering rule sees: the op, its operands already at level 2, and a builder of tile ops that tags their location."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.tile import CastOp, ConstantOp, ContractOp, GatherOp, MapOp, ReduceOp, ReshapeOp


@dataclass
class TileBuilder:
    """Appends tile ops to a block; every op carries the location of the op being lowered."""

    block: Block
    loc: str | None = None
    scales: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """The scales of each cache of float8, as it is after each write."""

    def add(self, op: Operation, hint: str | None = None) -> SSAValue:
        """The first result of `op`, appended to the block."""
        self.block.add_op(op)
        if hint:
            op.results[0].name_hint = hint
        return op.results[0]

    def map(self, kind: str, *operands: SSAValue | float) -> SSAValue:
        """`kind` of the operands; Python numbers become constants."""
        values = [v if isinstance(v, SSAValue) else self.add(ConstantOp(v)) for v in operands]
        return self.add(MapOp(kind, values, loc=self.loc))

    def cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        """`value` in the element type; `value` itself when it has it already."""
        return value if element_type_of(value) == element else self.add(CastOp(value, element, loc=self.loc))

    def float32(self, value: SSAValue) -> SSAValue:
        """`value` in float32, in which all arithmetic runs."""
        return self.cast(value, f32)

    def mean(self, value: SSAValue) -> SSAValue:
        """The mean over the last axis, kept with size 1."""
        return self.map("mul", self.add(ReduceOp("sum", value, loc=self.loc)), 1.0 / shape_of(value)[-1])

    def reshape(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        """`value` in another shape of as many numbers; `value` itself when it has that shape."""
        return value if shape_of(value) == shape else self.add(ReshapeOp(value, shape, loc=self.loc))

    def gather(self, table: SSAValue, rows: SSAValue) -> SSAValue:
        """Rows of a table."""
        return self.add(GatherOp(table, rows, loc=self.loc))

    def contract(self, x: SSAValue, weight: SSAValue) -> SSAValue:
        """x @ weightᵀ in float32."""
        return self.add(ContractOp(x, weight, loc=self.loc))


Rule: TypeAlias = Callable[[Operation, Sequence[SSAValue], TileBuilder], Sequence[SSAValue]]
"""From an op and its lowered operands to the values that replace its results."""

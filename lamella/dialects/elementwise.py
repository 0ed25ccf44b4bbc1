"""What marks an op of any dialect as elementwise or as a reduction: lowerings read `kind` and the operands, nothing else."""

from __future__ import annotations

from xdsl.ir import Operation

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})
"""Kinds whose two operands may change places."""


class Elementwise(Operation):
    """Mixin for ops that apply the scalar function `kind` to corresponding elements of operands of one type, in float32, rounding once."""

    @property
    def kind(self) -> str:
        """The key of `semantics.SCALARS`: the op's name without its dialect."""
        return kind_of(type(self))


class LastAxisReduction(Operation):
    """Mixin for ops that reduce the last axis of their one operand by `kind`, in float32, and keep it with size 1, rounding once."""

    @property
    def kind(self) -> str:
        """The key of `semantics.REDUCTIONS`: the op's name without its dialect."""
        return kind_of(type(self))


def kind_of(op: type[Operation]) -> str:
    """`silu` for `transformer.silu`."""
    return op.name.partition(".")[2]

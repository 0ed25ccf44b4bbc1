"""What a kernel under construction computes and leaves: the places of blocks, and the values that are stored there."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.tile import ScatterOp
from lamella.lowering.kernel_builder import KernelBuilder, Operand

INT32_ELEMENTS = 2**31 - 1
"""Offsets into larger matrices have 64 bits."""


@dataclass(frozen=True, eq=False)
class Place:
    """The rows and columns a block covers, with masks where it sticks out.

    One row: `rows` is a scalar and `cols` a vector. Several: `rows` is [R,1] and `cols` [1,C] (or [R,C], when each row has columns of its
    own). Vectors along the rows have no `cols`. Two places are the same only when they are the same object.
    """

    rows: Operand
    cols: SSAValue | None
    row_mask: SSAValue | None = None
    col_mask: SSAValue | None = None


@dataclass(frozen=True)
class Store:
    """Something a region leaves behind: a value in its buffer, or the rows of a scatter in the cache."""

    value: SSAValue
    pointer: SSAValue
    scatter: ScatterOp | None = None
    swapped: bool = False
    """Whether the middle two of each four pairs of columns change places."""

    @property
    def owner(self) -> Operation | None:
        """The op whose place decides where the store happens."""
        if self.scatter is not None:
            return self.scatter
        return self.value.owner if isinstance(self.value.owner, Operation) else None


def swapped_pairs(b: KernelBuilder, cols: SSAValue) -> SSAValue:
    """Where `swap_pairs` takes the numbers of some columns from, and moves them to: the second and the third bit of each change places."""
    differ = b.mod(b.xor(b.floordiv(cols, 2), b.floordiv(cols, 4)), 2)
    return b.named("swapped", b.xor(cols, b.mul(differ, 6)))

"""A function on buffers goes in; from which launch to which each buffer is live, and what dies with each launch, comes out.

Time is counted in launches: op i that touches buffers is instant i. A range is closed at both ends, from the first access to the last;
what the function returns lives on. Views count as their root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import func, memref
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr, MemRefType
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.messages import subject
from lamella.errors import IRError

VIEWS = (
    memref.SubviewOp,
    memref.CastOp,
    memref.ReinterpretCastOp,
    memref.ExpandShapeOp,
    memref.CollapseShapeOp,
    memref.MemorySpaceCastOp,
)
"""Ops whose result is (part of) their first operand's memory."""


@dataclass(frozen=True)
class LiveRange:
    """Buffer `root` of `size` bytes is live from launch `first` to launch `last`, both included."""

    root: SSAValue
    first: int
    last: int
    size: int


def buffer_bytes(value: SSAValue) -> int:
    """Bytes of a buffer of static shape."""
    return prod(shape_of(value)) * ELEMENT_BYTES[element_of(value)]


def root_of(value: SSAValue) -> SSAValue:
    """The allocation, view of the arena, handle or argument whose memory `value` is."""
    while isinstance(owner := value.owner, Operation):
        if isinstance(owner, memref.ViewOp) and not isinstance(owner.source, BlockArgument):
            value = owner.source
        elif isinstance(owner, VIEWS):
            value = owner.operands[0]
        else:
            return value
    return value


def launches(function: func.FuncOp) -> list[Operation]:
    """The ops that access buffers, in order: neither views, allocations and handles, nor the return."""
    out: list[Operation] = []
    for op in function.body.block.ops:
        if isinstance(op, (*VIEWS, memref.ViewOp, func.ReturnOp)):
            continue
        if any(isinstance(v.type, MemRefType) for v in op.operands):
            out.append(op)
    return out


def live_ranges(function: func.FuncOp) -> list[LiveRange]:
    """The range of each allocation (or view of the arena) that is accessed, in the order of first access."""
    order = launches(function)
    first: dict[SSAValue, int] = {}
    last: dict[SSAValue, int] = {}
    for index, op in enumerate(order):
        for operand in op.operands:
            if isinstance(operand.type, MemRefType):
                root = root_of(operand)
                first.setdefault(root, index)
                last[root] = index
    terminator = function.body.block.last_op
    for value in terminator.operands if terminator is not None else ():
        root = root_of(value)
        if isinstance(root.type, MemRefType):
            first.setdefault(root, len(order))
            last[root] = len(order)
    return [
        LiveRange(root, start, last[root], buffer_bytes(root))
        for root, start in first.items()
        if isinstance(root, OpResult) and isinstance(root.op, memref.AllocOp | memref.ViewOp)
    ]


def offset_of(view: SSAValue) -> int:
    """The offset in the arena of a view. Raises IRError when it is not a constant."""
    owner = view.owner
    assert isinstance(owner, memref.ViewOp)
    shift = owner.byte_shift.owner
    if not isinstance(shift, ConstantOp) or not isinstance(shift.value, IntegerAttr):
        raise IRError(f"{subject(owner)}: the offset is not a constant")
    return shift.value.value.data


def dead_ranges(function: func.FuncOp) -> list[Sequence[tuple[int, int]]]:
    """For each launch of a planned function, the arena ranges (offset, bytes) whose last access it is."""
    out: list[list[tuple[int, int]]] = [[] for _ in launches(function)]
    for live in live_ranges(function):
        if live.last < len(out):
            out[live.last].append((offset_of(live.root), live.size))
    return [sorted(ranges) for ranges in out]

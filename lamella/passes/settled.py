"""A step on buffers goes in; for each launch, the inputs that no launch of the step has written yet come out: they may be read early."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects import host
from lamella.dialects.tile import FusedOp

HANDLES = frozenset({"host.weight", "host.constant", "transformer.weight", "transformer.rope_table"})
"""Handles of storage that no launch writes."""


def is_immutable(value: SSAValue) -> bool:
    """Whether no launch of a step writes this storage: a weight or a constant, but not counters, which are 0 only between launches."""
    owner = value.owner
    if not isinstance(owner, Operation):
        return False
    return owner.name in HANDLES and not (isinstance(owner, host.ConstantOp) and owner.op.data == "tile.arrivals")


def settled_inputs(function: func.FuncOp) -> dict[FusedOp, tuple[bool, ...]]:
    """For each region and each of its inputs: whether it holds what it held when the step began, until the region's launch ends.

    That is so for weights and constants, and for an argument of the function that neither an earlier region nor this one writes. Steps
    follow each other without overlap, so such an input may be read before the launches of the step that come before have ended.
    """
    written: set[SSAValue] = set()
    out: dict[FusedOp, tuple[bool, ...]] = {}
    for op in function.body.block.ops:
        if isinstance(op, FusedOp):
            written.update(op.outs)
            out[op] = tuple(is_immutable(value) or (is_argument(value) and value not in written) for value in op.ins)
    return out


def is_argument(value: SSAValue) -> bool:
    """Whether `value` is a buffer that the function was given: tensors say nothing of storage."""
    return isinstance(value, BlockArgument) and isinstance(value.type, MemRefType)

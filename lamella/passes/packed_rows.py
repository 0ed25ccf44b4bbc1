"""A weight of a linear enters, packed or not; the same with its rows moved leaves: rows of words, scales and least values move alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from xdsl.ir import Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects.messages import location
from lamella.dialects.transformer import DequantizeOp, WeightTransform


def parts_of(value: SSAValue) -> Sequence[SSAValue]:
    """What holds the rows of a weight: itself, or words, scales and least values, in two levels or one."""
    return tuple(value.owner.operands) if isinstance(value.owner, DequantizeOp) else (value,)


def move_rows(value: SSAValue, move: Callable[[SSAValue], WeightTransform], before: Operation) -> SSAValue:
    """The weight `value` with its rows moved, made in front of the op `before`; `move` makes the op that moves rows of one tensor.

    Before:
        %w = transformer.dequantize %words, %scales {packing = …}
        move(%w)
    After:
        %0 = transformer.pair_rows %words {…}
        %1 = transformer.pair_rows %scales {…}
        %2 = transformer.dequantize %0, %1 {packing = …}
    """
    moved: list[SSAValue] = []
    for part in parts_of(value):
        op = move(part)
        Rewriter.insert_op(op, InsertPoint.before(before))
        moved.append(op.results[0])
    packed = value.owner
    assert not isinstance(packed, DequantizeOp) or packed.by_group is None, "rows move before lay-scales"
    if not isinstance(packed, DequantizeOp):
        return moved[0]
    made = DequantizeOp.of(moved, packed.packing, like=moved[0].type, loc=location(packed) or None)
    Rewriter.insert_op(made, InsertPoint.before(before))
    return made.result


def serves_only(use: Use, ops: Collection[Operation]) -> bool:
    """Whether `use` is that of a weight by one of `ops` (not as their x), or by what unpacks it for them alone."""
    if isinstance(use.operation, DequantizeOp):
        return all(serves_only(other, ops) for other in use.operation.result.uses)
    return use.operation in ops and use.index > 0

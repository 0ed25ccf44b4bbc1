"""Values that no step changes: which ops compute on weights and tables alone, and who else reads a weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue, Use
from xdsl.traits import Pure

from lamella.dialects.attributes import element_of
from lamella.dialects.messages import subject
from lamella.dialects.transformer import ConcatRowsOp, DequantizeOp, RopeTableOp, WeightOp, WeightTransform
from lamella.dialects.transformer.types import TransformerOp

FLOATS = ("f32", "f16", "bf16")


def is_constant(owner: object) -> bool:
    """Whether the owner of a value names data that is there before the first step: a weight or a table."""
    return isinstance(owner, WeightOp | RopeTableOp)


def is_computation(op: Operation) -> bool:
    """Whether `op`, on constants, can run at load time: pure, and from some tensors to one of floats, or a transform of weights.

    What undoes a packing is none: folded, it would bring back the floats that the packing saves.
    """
    if isinstance(op, WeightTransform | DequantizeOp):
        return isinstance(op, WeightTransform)
    pure = isinstance(op, TransformerOp) and op.has_trait(Pure) and bool(op.operands) and len(op.results) == 1
    return pure and isinstance(op.results[0].type, TensorType) and element_of(op.results[0]) in FLOATS


def carried(value: SSAValue) -> list[WeightOp] | None:
    """The weights whose rows `value` holds, changed by weight transforms or not; None where some come from anything else."""
    owner = value.owner
    if isinstance(owner, WeightOp):
        return [owner]
    if not isinstance(owner, WeightTransform):
        return None
    parts = [carried(operand) for operand in (owner.operands if isinstance(owner, ConcatRowsOp) else owner.operands[:1])]
    return None if None in parts else [weight for part in parts for weight in part or ()]


def handles(module: ModuleOp) -> dict[str, list[WeightOp]]:
    """All handles of a module by the weight they name."""
    found: dict[str, list[WeightOp]] = {}
    for op in module.walk():
        if isinstance(op, WeightOp):
            found.setdefault(op.weight_name.data, []).append(op)
    return found


def readers(weights: Iterable[WeightOp]) -> Iterator[Use]:
    """Every use of the weights by an op that runs in a step, through the transforms that carry their rows."""
    values: list[SSAValue] = [weight.result for weight in weights]
    while values:
        for use in values.pop().uses:
            if not isinstance(use.operation, WeightTransform):
                yield use
            elif use.index == 0 or isinstance(use.operation, ConcatRowsOp):
                values.append(use.operation.results[0])


def origin(value: SSAValue) -> str:
    """Where a value comes from, for a message."""
    owner = value.owner
    return subject(owner) if isinstance(owner, Operation) else "an argument"

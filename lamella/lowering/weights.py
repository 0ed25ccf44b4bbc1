"""`@transform_weights` goes in; what the manifest says of each weight it makes leaves: sources, and the ops between as a body."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from lamella.dialects import signature
from lamella.dialects.attributes import attributes_of, element_of, shape_of
from lamella.dialects.transformer import WeightOp
from lamella.lowering.body import Body
from lamella.runtime.manifest import SourceSpec, WeightSpec


def made_weights(module: ModuleOp) -> dict[str, WeightSpec]:
    """The weights that the module's `@transform_weights` makes, by name; none where it has no such function.

    Each is described on its own, so that the runtime needs to hold no more than one and its sources at a time.
    """
    function = signature.transforms(module)
    if function is None:
        return {}
    names, values = signature.output_names(function), signature.return_of(function).operands
    specs: dict[str, WeightSpec] = {}
    for name, value in zip(names, values, strict=True):
        ops = needed(value)
        weights = [op for op in ops if isinstance(op, WeightOp)]
        sources = tuple(SourceSpec(op.weight_name.data, element_of(op.result), shape_of(op.result)) for op in weights)
        specs[name] = WeightSpec(element_of(value), shape_of(value), sources, body(weights, ops, value))
    return specs


def needed(value: SSAValue) -> list[Operation]:
    """The ops that `value` depends on, each after its operands; the order follows from the expression alone, not from what is beside it."""
    found: dict[Operation, None] = {}
    pending = [value.owner]
    while pending:
        op = pending[-1]
        assert isinstance(op, Operation)
        missing = [operand.owner for operand in op.operands if operand.owner not in found]
        pending.extend(reversed(missing))
        if not missing:
            found[op] = None
            pending.pop()
    return list(found)


def body(weights: list[WeightOp], ops: list[Operation], value: SSAValue) -> Body:
    """The body that takes `weights` and yields `value`; `ops` are all it depends on, in order."""
    ids: dict[SSAValue, int] = {op.result: number for number, op in enumerate(weights)}
    lines: list[list[object]] = []
    for op in ops:
        if op.results[0] in ids:
            continue
        operands = [ids[operand] for operand in op.operands]
        ids[op.results[0]] = len(ids)
        lines.append([op.name, operands, attributes_of(op), [ids[op.results[0]]]])
    return {"args": len(weights), "ops": lines, "yields": [ids[value]]}

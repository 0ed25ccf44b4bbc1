"""Groups become `tile.fused` ops: the last step of `fuse-regions`."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.ir import Block, Operation, Region, SSAValue

from lamella.dialects.messages import location
from lamella.dialects.tile import FusedOp, YieldOp
from lamella.passes.region_graph import HANDLES, Group, RegionGraph


def outline(graph: RegionGraph) -> None:
    """Replaces the body of the graph's function by handles, one `tile.fused` a group in a legal order, and the terminator."""
    block = graph.function.body.block
    terminator = block.last_op
    assert isinstance(terminator, func.ReturnOp)
    ordered = graph.schedule()
    for op in reversed([op for op in block.ops if op.name in HANDLES]):
        op.detach()
        assert block.first_op is not None
        block.insert_op_before(op, block.first_op)
    for group in ordered:
        fused = region_of(group)
        block.insert_op_before(fused, terminator)


def region_of(group: Group) -> FusedOp:
    """Moves the ops of a group into a new region and its outside users to the region's results."""
    inside = set(group.ops)
    inputs: dict[SSAValue, None] = {}
    for op in group.ops:
        for value in op.operands:
            if value.owner not in inside:
                inputs.setdefault(value)
    outputs = [r for op in group.ops for r in op.results if any(use.operation not in inside for use in r.uses)]
    body = Block(arg_types=[v.type for v in inputs])
    argument = dict(zip(inputs, body.args, strict=True))
    for value, inner in argument.items():
        inner.name_hint = value.name_hint or "arg"
    for op in group.ops:
        op.detach()
        body.add_op(op)
        for index, value in enumerate(op.operands):
            if value in argument:
                op.operands[index] = argument[value]
    body.add_op(YieldOp(outputs))
    fused = FusedOp(list(inputs), [], [v.type for v in outputs], Region(body), ledger=group.ledger, loc=common_location(group.ops))
    for inner, outer in zip(outputs, fused.res, strict=True):
        outer.name_hint = inner.name_hint
        inner.replace_uses_with_if(outer, lambda use: use.operation.parent is not body)
    return fused


def common_location(ops: list[Operation]) -> str | None:
    """The longest common prefix, in whole components, of the locations of some ops: `layers.3.attn` for q, k and v."""
    places = [location(op).split(".") for op in ops if location(op)]
    common: list[str] = []
    for parts in zip(*places, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) or None

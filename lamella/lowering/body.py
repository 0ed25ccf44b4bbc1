"""From IR to the body form: a block or a function goes in, its ops as a JSON list leave, for the manifest and for `runtime.evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import func
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from lamella.dialects.attributes import attributes_of
from lamella.dialects.messages import subject
from lamella.dialects.tile import FusedOp
from lamella.errors import PassError

Body = dict[str, Any]
"""`{"args": 3, "ops": [[name, [operand ids], {attributes}, [result ids]], …], "yields": [ids]}`."""


def export_body(block: Block) -> Body:
    """The ops of a region's block. Ids number the block's arguments first, then results in order.

    Raises PassError for an operand from outside of the block or an op that itself holds regions.
    """
    ids: dict[SSAValue, int] = {argument: i for i, argument in enumerate(block.args)}
    ops, yields = _export(block, ids, len(ids))
    return {"args": len(block.args), "ops": ops, "yields": yields}


def is_handle(op: Operation) -> bool:
    """Whether `op` names storage outside the program: a weight, a table made by an op of level 1 without operands, counters."""
    return not op.operands and not op.regions and len(op.results) == 1 and op.name.startswith(("transformer.", "tile.arrivals"))


def handle_name(op: Operation) -> str:
    """A weight's name; the op's own name without its dialect for a table, such as `rope_table`."""
    name = op.properties.get("name")
    return name.data if isinstance(name, StringAttr) else op.name.rpartition(".")[2]


def handles_of(function: func.FuncOp) -> list[Operation]:
    """The handles of a function on tensors, in order."""
    return [op for op in function.body.block.ops if is_handle(op)]


def export_function(function: func.FuncOp) -> tuple[Body, list[str]]:
    """A function of level 1 or 2 as one body, and the names of its handles.

    The body takes the function's arguments, then one tensor a handle; regions are inlined; it yields what the function returns.
    Two handles of one name (a weight in two layouts, say) stay two arguments: `handles_of` tells them apart.
    Raises PassError for a function on buffers.
    """
    block = function.body.block
    handles = handles_of(function)
    arguments: list[SSAValue] = [*block.args, *(op.results[0] for op in handles)]
    ids = {argument: i for i, argument in enumerate(arguments)}
    ops, yields = _export(block, ids, len(ids))
    return {"args": len(arguments), "ops": ops, "yields": yields}, [handle_name(op) for op in handles]


def _export(block: Block, ids: dict[SSAValue, int], following: int) -> tuple[list[list[Any]], list[int]]:
    """The ops and yielded ids of a block; `ids` gains its values, numbered from `following`."""
    ops: list[list[Any]] = []
    for op in block.ops:
        if op.results and op.results[0] in ids:
            continue
        operands = _numbers(op, op.operands, ids)
        if op.has_trait(IsTerminator):
            return ops, operands
        if isinstance(op, FusedOp):
            following = _inline(op, operands, ids, following, ops)
            continue
        if op.regions:
            raise PassError("has regions of its own, which a body cannot hold", where=subject(op))
        results = list(range(following, following + len(op.results)))
        following += len(results)
        ids.update(zip(op.results, results, strict=True))
        ops.append([op.name, operands, attributes_of(op), results])
    raise PassError("a block without terminator", where=subject(block.last_op) if block.last_op else None)


def _inline(op: FusedOp, operands: Sequence[int], ids: dict[SSAValue, int], following: int, ops: list[list[Any]]) -> int:
    """Appends the ops of a region on tensors; its arguments are its inputs, its results what it yields. Returns the next free id."""
    if op.outs:
        raise PassError("a region on buffers cannot be inlined", where=subject(op), expected="tensors")
    inner: dict[SSAValue, int] = dict(zip(op.body.block.args, operands, strict=True))
    nested, yields = _export(op.body.block, inner, following)
    ops.extend(nested)
    ids.update(zip(op.results, yields, strict=True))
    return following + sum(len(results) for _, _, _, results in nested)


def _numbers(op: Operation, values: Sequence[SSAValue], ids: dict[SSAValue, int]) -> list[int]:
    missing = next((i for i, v in enumerate(values) if v not in ids), None)
    if missing is not None:
        raise PassError(f"operand {missing} comes from outside of the body", where=subject(op))
    return [ids[v] for v in values]

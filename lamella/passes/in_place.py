"""A region's body goes in; whether one of its inputs may share a buffer with one of its outputs comes out, with the reason.

A buffer may be overwritten by the region that reads it only if every read has the same grid index as the write: programs run in any
order. What a grid index covers depends on the region:

* with a contraction, a program owns a tile of the contraction's result. Its epilogue reads other operands at the elements it writes,
  its prologue reads whole rows that other programs read too;
* without one, a program owns whole rows, so it may also reduce them, as long as all values it yields have the same rows;
* attention, sampling and moves of rows read where they please.

Even a read at the right index comes too late when it serves a result that is stored after the overwriting one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import (
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    CastOp,
    ContractOp,
    MapOp,
    ReduceOp,
    SampleOp,
    SampleTopOp,
    ScatterOp,
    TopPartialOp,
    YieldOp,
)

POINTWISE = (MapOp, CastOp)
SCATTERED_READS = (AttendOp, AttendPartialOp, AttendMergeOp, SampleOp, SampleTopOp, TopPartialOp)


@dataclass(frozen=True)
class Reads:
    """Everything a region computes from one argument: element by element, or row by row after a reduction."""

    elements: frozenset[SSAValue]
    rows: frozenset[SSAValue]


def updated_argument(value: SSAValue) -> BlockArgument | None:
    """The block argument that a chain of scatters ending in `value` updates; None when `value` is no scatter into an argument."""
    if not isinstance(value.owner, ScatterOp):
        return None
    while isinstance(owner := value.owner, ScatterOp):
        value = owner.cache
    return value if isinstance(value, BlockArgument) else None


def read_beside_update(argument: BlockArgument) -> Operation | None:
    """An op that reads `argument`, or a value between two of the scatters into it, other than to update it; None when there is none.

    The values of such a chain share one buffer, so each may only be updated once, or yielded.
    """
    value: SSAValue = argument
    while True:
        users = [use.operation for use in value.uses]
        updates = [u for u in users if isinstance(u, ScatterOp) and u.cache is value and value not in (u.values, u.slots)]
        others = [u for u in users if u not in updates]
        if not updates:
            return next((u for u in others if not isinstance(u, YieldOp) or value is argument), None)
        if others or len(updates) > 1:
            return (others or updates)[0]
        value = updates[0].result


def misalignment(block: Block, argument: BlockArgument, yielded: int) -> str:
    """Why the buffer of `argument` cannot also hold the value that `block` yields at index `yielded`; empty when it can.

    Both have the same type. An argument that nothing reads is aligned with everything.
    """
    if not argument.uses:
        return ""
    terminator = block.last_op
    assert isinstance(terminator, YieldOp)
    if any(isinstance(op, SCATTERED_READS) for op in block.ops):
        return "programs of attention or sampling read what others write"
    contracts = [op for op in block.ops if isinstance(op, ContractOp)]
    reads = follow(argument)
    if isinstance(reads, str):
        return reads
    others = [value for index, value in enumerate(terminator.values) if index != yielded]
    if any(value in reads.elements or value in reads.rows for value in others):
        # It may be computed by another program (the columns of another contraction), or by this one after the first is stored.
        return "another result is computed from it too"
    if contracts:
        return _beside_contract(contracts, terminator, reads, yielded)
    return _beside_rows(block, argument, terminator)


def follow(argument: BlockArgument) -> Reads | str:
    """What `argument` flows into, or the reason why some read of it is not at the index of what it computes."""
    shape = shape_of(argument)
    elements: set[SSAValue] = set()
    rows: set[SSAValue] = set()
    pending: list[tuple[SSAValue, bool]] = [(argument, True)]
    while pending:
        value, exact = pending.pop()
        seen = elements if exact else rows
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            user = use.operation
            if isinstance(user, YieldOp):
                continue
            if not isinstance(user, (*POINTWISE, ReduceOp)):
                return f"{user.name.removeprefix('tile.')} reads it from other programs"
            result = user.results[0]
            whole_row = isinstance(user, ReduceOp)
            if whole_row and len(shape) < 2:
                return "a reduction over it crosses rows"
            if exact and not whole_row and shape_of(result) != shape:
                return "it is broadcast"
            if shape_of(result)[:-1] != shape[:-1]:
                return "it is broadcast over rows"
            pending.append((result, exact and not whole_row))
    return Reads(frozenset(elements), frozenset(rows))


def _beside_contract(contracts: Iterable[ContractOp], terminator: YieldOp, reads: Reads, yielded: int) -> str:
    """In a region that contracts, only an epilogue reads at the index it writes."""
    if reads.rows:
        return "a reduction reads whole rows of it"
    values = terminator.values
    if values[yielded] not in reads.elements:
        return "what overwrites it is not computed from it"
    if values[yielded] not in _computed_from(contract.result for contract in contracts):
        return "it is read outside the epilogue of a contraction"
    return ""


def _beside_rows(block: Block, argument: BlockArgument, terminator: YieldOp) -> str:
    """In a region of rows, one program owns the same rows of all values only if they all have the same rows."""
    shape = shape_of(argument)
    for value in terminator.values:
        other = shape_of(value)
        if updated_argument(value) is None and (len(other) != len(shape) or other[:-1] != shape[:-1]):
            return "the region yields values with other rows"
    if any(isinstance(op, ReduceOp) for op in block.ops):
        return ""
    if any(updated_argument(value) is None and shape_of(value) != shape for value in terminator.values):
        return "the region yields values of other shapes"
    return ""


def _computed_from(roots: Iterable[SSAValue]) -> set[SSAValue]:
    """The values that depend on any of `roots`, themselves included."""
    pending = list(roots)
    out: set[SSAValue] = set()
    while pending:
        value = pending.pop()
        if value in out:
            continue
        out.add(value)
        for use in value.uses:
            pending.extend(use.operation.results)
    return out

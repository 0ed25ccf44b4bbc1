"""Regions on tensors go in; they leave with a word for each result: which input's storage it may overwrite, or why none.

Storage may be overwritten by the region that reads it only if the old value is dead afterwards, and every read has the same grid index as
the write: programs run in any order. What a grid index covers depends on the region:

* with a contraction, a program owns a tile of the contraction's result. Its epilogue reads other operands at the elements it writes,
  its prologue reads whole rows that other programs read too;
* without one, a program owns whole rows, so it may also reduce them, as long as all values it yields have the same rows;
* attention, sampling and moves of rows read where they please.

Even a read at the right index comes too late when it serves a result that is stored after the overwriting one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import signature
from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile import (
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    CastOp,
    ColumnsOp,
    ContractExpertsOp,
    ContractOp,
    ContractPartialOp,
    FusedOp,
    LedgerEntryAttr,
    MapOp,
    ReduceOp,
    RouteOp,
    SampleOp,
    SampleTopOp,
    ScatterOp,
    SortChoicesOp,
    TopPartialOp,
    YieldOp,
)
from lamella.errors import PassError

NOTHING_DIES = "no input of its type dies here"


@dataclass(frozen=True)
class InPlace(ModulePass):
    """Says for each result of a region which of its inputs it may overwrite, while both are still values.

    Before:
        %z = tile.fused ins(%u, %w, %y : …) {
        ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>, %c: tensor<1x8xf32>):
          %r = tile.contract %a, %b : …
          %s = tile.map "add"(%r, %c) : …
          tile.yield %s
    After, where nothing reads %y later:
        %z = tile.fused ins(%u, %w, %y : …) ledger [#tile.ledger<in_place, {input = 2, out = 0, reason = "the input dies here"}>]
          attributes {in_place = array<i64: 2>} {…}

    Expects the regions in the order in which they will run, split ones split (`choose-schedule`). `in_place` holds a number a result: the input
    whose storage it takes over, or -1. An input gives way if a region of this function made it, nobody reads it later, it has the type of the
    result, no other result has it, and `misalignment` finds that no other program reads it. A result that `lamella.tied` ties to an
    argument takes over that argument and no other input, once the old value has no later reader; a scattered-into cache is updated.
    Each choice is an entry of the region's ledger, `in_place` or `not_in_place` with the nearest miss. `bufferize` follows and checks them; a
    region without `in_place` gets a buffer of its own for each result.
    """

    name = "in-place"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in signature.steps(op):
            survey = _Survey(function)
            for index, region in enumerate(function.body.block.ops):
                if isinstance(region, FusedOp):
                    survey.annotate(region, index)


@dataclass(frozen=True)
class Choice:
    """The input that a result overwrites (-1: none), and why."""

    input: int
    reason: str
    argument: int = -1
    """The function's argument that a tied result is written to, whether or not the region reads it."""

    def entry(self, out: int) -> LedgerEntryAttr:
        """The record of the choice."""
        if self.argument >= 0:
            return LedgerEntryAttr.of("in_place", {"out": out, "argument": self.argument, "reason": self.reason})
        if self.input >= 0:
            return LedgerEntryAttr.of("in_place", {"out": out, "input": self.input, "reason": self.reason})
        return LedgerEntryAttr.of("not_in_place", {"out": out, "reason": self.reason})


@dataclass
class _Survey:
    """One function: when each value is read for the last time, and which values share storage."""

    function: FuncOp
    last_use: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    tied: dict[SSAValue, BlockArgument] = field(default_factory=dict[SSAValue, BlockArgument])
    storage: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Value -> the first value in its storage; a value that is not here has storage of its own."""

    def __post_init__(self) -> None:
        block = self.function.body.block
        for index, op in enumerate(block.ops):
            self.last_use.update(dict.fromkeys(op.operands, index))
        ties = self.function.attributes.get(signature.TIED)
        numbers = [int(n) for n in ties.get_values()] if isinstance(ties, DenseArrayBase) else []
        # Ties that cannot be are found by bufferize, which has to keep them.
        if isinstance(block.last_op, ReturnOp):
            for value, number in zip(block.last_op.operands, numbers, strict=False):
                if isinstance(value, OpResult) and 0 <= number < len(block.args):
                    self.tied.setdefault(value, block.args[number])

    def annotate(self, region: FusedOp, index: int) -> None:
        """Writes down the choice for each result of the region at `index`. Raises PassError for a second time."""
        if region.in_place is not None:
            raise PassError("it says already what is in place", where=subject(region))
        choices: list[Choice] = []
        for number in range(len(region.res)):
            choices.append(self.choose(region, index, number, [c.input for c in choices]))
        for result, choice in zip(region.res, choices, strict=True):
            if choice.argument >= 0:
                self.storage[result] = self.root(self.function.body.block.args[choice.argument])
            elif choice.input >= 0:
                self.storage[result] = self.root(region.ins[choice.input])
        region.in_place = DenseArrayBase.from_list(i64, [choice.input for choice in choices])
        entries = region.ledger.data if region.ledger else ()
        region.ledger = ArrayAttr([*entries, *(choice.entry(out) for out, choice in enumerate(choices))])

    def root(self, value: SSAValue) -> SSAValue:
        """The first value in the storage of `value`."""
        return self.storage.get(value, value)

    def choose(self, region: FusedOp, index: int, number: int, taken: list[int]) -> Choice:
        """What result `number` may overwrite, where earlier results overwrite the inputs `taken`."""
        argument = updated_argument(region.terminator.values[number])
        if argument is not None:
            return self.updated(region, index, argument)
        if region.res[number] in self.tied:
            return self.taken_over(region, index, number)
        nearest, miss = -1, NOTHING_DIES
        for position, source in enumerate(region.ins):
            root = self.root(source)
            if source.type != region.res[number].type or not isinstance(root.owner, FusedOp):
                continue
            holders = [p for p in taken if p >= 0 and self.root(region.ins[p]) is root]
            if self.last_use[source] > index:
                rank, reason = 0, f"input {position} is read later"
            elif holders:
                rank, reason = 1, f"input {position} gives way to result {taken.index(holders[0])}"
            else:
                rank, reason = 2, self.misaligned(region, root, number)
                if not reason:
                    return Choice(position, "the input dies here")
            if rank > nearest:
                nearest, miss = rank, reason
        return Choice(-1, miss)

    def updated(self, region: FusedOp, index: int, argument: BlockArgument) -> Choice:
        """A scatter updates its cache: nothing else will do, so that bufferize refuses what is refused here."""
        source = region.ins[argument.index]
        if read_beside_update(argument) is not None or list(region.ins).count(source) > 1:
            return Choice(-1, "its cache is also read beside the update")
        if self.last_use[source] > index:
            return Choice(-1, "the old value of its cache is read later")
        return Choice(argument.index, "a scatter updates its cache")

    def taken_over(self, region: FusedOp, index: int, number: int) -> Choice:
        """A tied result is written to its argument once nobody reads the old value any more."""
        argument = self.tied[region.res[number]]
        root = self.root(argument)
        if any(last > index for value, last in self.last_use.items() if self.root(value) is root):
            return Choice(-1, "its argument is read later")
        reason = self.misaligned(region, root, number)
        if reason:
            return Choice(-1, reason)
        position = next((p for p, source in enumerate(region.ins) if self.root(source) is root), -1)
        return Choice(position, "the result is tied", argument.index)

    def misaligned(self, region: FusedOp, root: SSAValue, number: int) -> str:
        """Why result `number` may not be written over what the region reads from the storage of `root`; empty when it may."""
        block = region.body.block
        readers = [argument for argument, source in zip(block.args, region.ins, strict=True) if self.root(source) is root]
        return next(filter(None, (misalignment(block, argument, number) for argument in readers)), "")


POINTWISE = (MapOp, CastOp)
SCATTERED_READS = (AttendOp, AttendPartialOp, AttendMergeOp, SampleOp, SampleTopOp, TopPartialOp, RouteOp, SortChoicesOp, ContractExpertsOp)


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
        return "programs of attention, sampling or routing read what others write"
    contracts = [op for op in block.ops if isinstance(op, ContractOp | ContractPartialOp)]
    reads = follow(argument)
    if isinstance(reads, str):
        return reads
    others = [value for index, value in enumerate(terminator.values) if index != yielded]
    if any(value in reads.elements or value in reads.rows for value in others):
        # It may be computed by another program (the columns of another contraction), or by this one after the first is stored.
        return "another result is computed from it too"
    if contracts:
        return _beside_contract(contracts, terminator, reads, yielded)
    if not reads.rows and terminator.values[yielded] in reads.elements:
        return ""  # whichever program computes an element is the only one that reads it
    return _beside_rows(argument, terminator)


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
            # Numbers of columns are those of the argument's shape; what it holds is not read.
            if isinstance(user, YieldOp | ColumnsOp):
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


def _beside_contract(contracts: Iterable[ContractOp | ContractPartialOp], terminator: YieldOp, reads: Reads, yielded: int) -> str:
    """In a region that contracts, only an epilogue reads at the index it writes."""
    if reads.rows:
        return "a reduction reads whole rows of it"
    values = terminator.values
    if values[yielded] not in reads.elements:
        return "what overwrites it is not computed from it"
    if values[yielded] not in _computed_from(contract.result for contract in contracts):
        return "it is read outside the epilogue of a contraction"
    return ""


def _beside_rows(argument: BlockArgument, terminator: YieldOp) -> str:
    """In a region of rows, one program owns the same rows of all values only if they all have the same rows."""
    shape = shape_of(argument)
    for value in terminator.values:
        other = shape_of(value)
        if updated_argument(value) is None and (len(other) != len(shape) or other[:-1] != shape[:-1]):
            return "the region yields values with other rows"
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

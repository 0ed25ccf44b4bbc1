"""Regions with schedules go in; they leave storing an activation in the order in which the products that read it take its columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import signature
from lamella.dialects.attributes import python_int
from lamella.dialects.messages import location
from lamella.dialects.tile import AttendOp, AttendPartialOp, ContractOp, FusedOp, LedgerEntryAttr, ReshapeOp, ScatterOp, SwapPairsOp
from lamella.dialects.tile.movement import FOUR_PAIRS
from lamella.passes.packed_columns import decoder

WRITERS = ("row", "gemv", "mma", "attend")
"""Skeletons whose programs know the column of each number that they store."""
REASON = "products of packed words take the first pair of two words, then the second: they find both in neighbouring registers"


@dataclass(frozen=True)
class SwapPairs(ModulePass):
    """Lets the launch that makes an x of packed words store it with the middle two of each four pairs of columns swapped.

    Before, where a schedule says that rows of the weight are cut into runs:
        %x = tile.fused schedule <row, …> … { … ; tile.yield %n } -> tensor<1x512xbf16>
        %y = tile.fused schedule <gemv, {runs = 8 : i64, …}> ins(%x, %words, %scales : …) {
          %w = tile.dequantize %1 … ; %c = tile.contract %0, %w : … }
    After:
        %x = tile.fused schedule <row, …> … { … ; %s = tile.swap_pairs %n : … ; tile.yield %s } -> tensor<1x512xbf16>
        %y = tile.fused schedule <gemv, {runs = 8 : i64, …}> ins(%x, %words, %scales : …) {
          %t = tile.swap_pairs %0 : … ; %w = tile.dequantize %1 … ; %c = tile.contract %t, %w : … }

    A thread loads eight neighbouring numbers of x at once, four pairs in four registers. They meet two words of the weight, of two pairs each, and a product
    takes the first pairs of both words, then the second ones: without the swap two moves put every pair beside the other. Swapped twice x is as it was, so that
    every level still means the same; in the kernel that multiplies, the second swap is the order of registers and costs nothing.

    Done where all that reads the value multiplies it so. Expects schedules (`choose-schedule`) and runs before `in-place`, since what is swapped is no longer
    stored where it is computed. The region that stores it has an entry `swapped` in its ledger.
    """

    name = "swap-pairs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in signature.steps(op):
            swap(function)


def swap(function: FuncOp) -> None:
    """Swaps the pairs of all values of a function that qualify."""
    for producer in [op for op in function.body.block.ops if isinstance(op, FusedOp)]:
        for number, value in enumerate(producer.res):
            arguments = read_as(value)
            if arguments and _stores(producer, number) and all(map(multiplied_in_words, arguments)):
                store_swapped(producer, number)
                for argument in arguments:
                    read_swapped(argument)


def read_as(value: SSAValue) -> list[BlockArgument]:
    """The arguments of regions that are `value`; none where something else than regions reads it."""
    found: list[BlockArgument] = []
    for use in value.uses:
        if not isinstance(use.operation, FusedOp):
            return []
        found.append(use.operation.body.block.args[use.index])
    return found


def multiplied_in_words(argument: BlockArgument) -> bool:
    """Whether all that a region does with an argument is to multiply it by packed words whose rows are cut into runs."""
    region = argument.owner.parent_op()
    if not isinstance(region, FusedOp) or region.schedule is None or "runs" not in region.schedule.options.data:
        return False
    users = [use.operation for use in argument.uses]
    return bool(users) and all(isinstance(user, ContractOp) and user.x is argument and _in_words(user) for user in users)


def _in_words(contract: ContractOp) -> bool:
    op = decoder(contract)
    return op is not None and not op.packing.floats


def _stores(producer: FusedOp, number: int) -> bool:
    """Whether the programs of a region store whole pieces of four pairs of result `number`, or know the columns of less. Those of heads have columns of one head."""
    schedule = producer.schedule
    if schedule is None or schedule.skeleton.data not in WRITERS or isinstance(producer.terminator.values[number].owner, ScatterOp):
        return False
    ops = list(producer.body.block.ops)
    whole = all(python_int(op.head_dim) % FOUR_PAIRS == 0 for op in ops if isinstance(op, AttendOp | AttendPartialOp))
    return whole and not any(isinstance(op, ReshapeOp) for op in ops)


def store_swapped(producer: FusedOp, number: int) -> None:
    """Lets a region yield result `number` with its pairs swapped, and says so in its ledger."""
    yielded = producer.terminator
    value = yielded.values[number]
    swapped = SwapPairsOp(value, loc=_location(value))
    swapped.result.name_hint = value.name_hint
    producer.body.block.insert_op_before(swapped, yielded)
    yielded.operands[number] = swapped.result
    entry = LedgerEntryAttr.of("swapped", {"out": number, "reason": REASON})
    producer.ledger = ArrayAttr([*_entries(producer), entry])


def read_swapped(argument: BlockArgument) -> None:
    """Lets the contractions of a region read an argument whose pairs are swapped."""
    uses = list(argument.uses)
    back = SwapPairsOp(argument, loc=_location(uses[0].operation.results[0]))
    block = argument.owner
    first = block.first_op
    assert first is not None
    block.insert_op_before(back, first)
    for use in uses:
        use.operation.operands[use.index] = back.result


def _entries(region: FusedOp) -> Iterable[LedgerEntryAttr]:
    return region.ledger.data if region.ledger else ()


def _location(value: SSAValue) -> str | None:
    return (location(value.owner) or None) if isinstance(value.owner, Operation) else None

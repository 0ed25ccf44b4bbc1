"""A function on allocations goes in; one whose buffers are views of a single arena leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import FunctionType, IndexType, IntegerAttr, MemRefType, ModuleOp, i8
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import attribute_of
from lamella.dialects.messages import subject
from lamella.errors import PassError
from lamella.passes.live_ranges import LiveRange, launches, live_ranges

ALIGNMENT = 256
"""Bytes: what CUDA gives its own allocations, and more than any vector load wants."""

Order = Callable[[LiveRange], tuple[int, ...]]

STRATEGIES: Mapping[str, Order] = {
    "by-size": lambda live: (-live.size, live.first),
    "by-time": lambda live: (live.first, -live.size),
}
"""In which order buffers are placed. Large ones first packs long-lived giants tightly; first come, first placed follows the launches."""


@dataclass(frozen=True)
class Plan:
    """Offsets of buffers in an arena of `arena` bytes, found by `strategy`."""

    offsets: Mapping[SSAValue, int]
    arena: int
    strategy: str


def aligned(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(ranges: Sequence[LiveRange], order: Order) -> tuple[dict[SSAValue, int], int]:
    """Offsets by best fit in this order, and the bytes they need: each buffer takes the tightest gap among those alive with it."""
    offsets: dict[SSAValue, int] = {}
    alive: list[list[tuple[int, int]]] = [[] for _ in range(max((live.last for live in ranges), default=-1) + 1)]
    arena = 0
    for live in sorted(ranges, key=order):
        size = aligned(live.size)
        taken = sorted({span for at in range(live.first, live.last + 1) for span in alive[at]})
        offset = best_gap(taken, size)
        offsets[live.root] = offset
        for at in range(live.first, live.last + 1):
            alive[at].append((offset, offset + size))
        arena = max(arena, offset + size)
    return offsets, arena


def best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the tightest gap of at least `size` between the sorted spans `taken`, or their end."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        if start - end >= size and (best is None or start - end < best[0]):
            best = (start - end, end)
        end = max(end, stop)
    return best[1] if best is not None else end


def plan(ranges: Sequence[LiveRange]) -> Plan:
    """The better of the strategies' plans; the first of equals."""
    plans = [Plan(*place(ranges, order), strategy) for strategy, order in STRATEGIES.items()]
    return min(plans, key=lambda p: p.arena)


def max_live(ranges: Sequence[LiveRange]) -> int:
    """The most bytes alive at once, alignment included: no plan has a smaller arena."""
    change: dict[int, int] = {}
    for live in ranges:
        change[live.first] = change.get(live.first, 0) + aligned(live.size)
        change[live.last + 1] = change.get(live.last + 1, 0) - aligned(live.size)
    most = now = 0
    for at in sorted(change):
        now += change[at]
        most = max(most, now)
    return most


@dataclass(frozen=True)
class PlanMemory(ModulePass):
    """Gives each allocation a place in one arena, an argument appended to the function.

    Before:
        func.func @forward(%x: memref<1x8xf32>) {
          %y = memref.alloc() : memref<1x8xf32>
    After:
        func.func @forward(%x: memref<1x8xf32>, %arena: memref<256xi8>) attributes {lamella.memory = {arena = 256, …}} {
          %offset = arith.constant 0 : index
          %y = memref.view %arena[%offset][] : memref<256xi8> to memref<1x8xf32>

    Expects static shapes and one block. Buffers that are live at the same launch do not overlap; what the function returns is live
    to the end. `lamella.memory` records the bytes of the arena, the sum of the buffers, the most live at once (the lower bound of
    any plan) and the strategy that won. `check-plan` proves the result by other means.
    """

    name = "plan-memory"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                self.plan(function)

    def plan(self, function: func.FuncOp) -> None:
        """Replaces the allocations of one function. Raises PassError for a second plan or a dynamic size."""
        block = function.body.block
        if "lamella.memory" in function.attributes:
            raise PassError("the function is planned already", where=f"func.func @{function.sym_name.data}")
        allocs = [op for op in block.ops if isinstance(op, memref.AllocOp)]
        for alloc in allocs:
            if alloc.dynamic_sizes:
                raise PassError("an allocation of dynamic size", where=subject(alloc), got=str(alloc.memref.type))
        ranges = [live for live in live_ranges(function) if isinstance(live.root.owner, memref.AllocOp)]
        chosen = plan(ranges)
        arena = block.insert_arg(MemRefType(i8, [chosen.arena]), len(block.args))
        arena.name_hint = "arena"
        shifts = {offset: ConstantOp(IntegerAttr(offset, IndexType())) for offset in sorted(set(chosen.offsets.values()))}
        for shift in shifts.values():
            shift.result.name_hint = "offset"
        if block.first_op is not None:
            block.insert_ops_before(list(shifts.values()), block.first_op)
        for alloc in allocs:
            if alloc.memref in chosen.offsets:
                view = memref.ViewOp(arena, shifts[chosen.offsets[alloc.memref]], [], alloc.memref.type)
                view.result.name_hint = alloc.memref.name_hint
                block.insert_op_before(view, alloc)
                alloc.memref.replace_all_uses_with(view.result)
            alloc.detach()
            alloc.erase()
        function.properties["function_type"] = FunctionType.from_lists([a.type for a in block.args], function.function_type.outputs.data)
        function.attributes["lamella.memory"] = attribute_of(
            {
                "arena": chosen.arena,
                "buffers": sum(aligned(live.size) for live in ranges),
                "max_live": max_live(ranges),
                "strategy": chosen.strategy,
                "launches": len(launches(function)),
            }
        )

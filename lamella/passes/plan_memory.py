"""A function on allocations goes in; one whose buffers are views of a single arena leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import DictionaryAttr, FunctionType, IndexType, IntegerAttr, MemRefType, ModuleOp, i8
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import signature
from lamella.dialects.attributes import attribute_of, python_value
from lamella.dialects.messages import subject
from lamella.errors import PassError, PlanError
from lamella.passes.live_ranges import LiveRange, launches, live_ranges

ALIGNMENT = 256
"""Bytes: what CUDA gives its own allocations, and more than any vector load wants."""

Order = Callable[[LiveRange], tuple[int, ...]]

STRATEGIES: Mapping[str, Order] = {
    "by-size": lambda live: (-live.size, live.first),
    "by-time": lambda live: (live.first, -live.size),
}
"""In which order buffers are placed. Large ones first packs long-lived giants tightly; first come, first placed follows the launches."""

ROUNDS = 32
"""Orders that are tried beyond the strategies' before a limit counts as out of reach."""


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


def listed(order: Sequence[LiveRange]) -> Order:
    """The order of a list."""
    rank = {live: number for number, live in enumerate(order)}
    return lambda live: (rank[live],)


def squeezed(ranges: Sequence[LiveRange], start: Plan, limit: int) -> Plan:
    """A plan of at most `limit` bytes, or else the best that was met: what sticks out of the limit goes first in the next round's order."""
    best = start
    order = sorted(ranges, key=STRATEGIES[start.strategy])
    offsets = start.offsets
    for _ in range(ROUNDS):
        outside = [live for live in order if offsets[live.root] + aligned(live.size) > limit]
        order = [*outside, *(live for live in order if live not in outside)]
        offsets, arena = place(ranges, listed(order))
        if arena < best.arena:
            best = Plan(offsets, arena, "squeezed")
        if arena <= limit:
            break
    return best


def apart(ranges: Sequence[LiveRange]) -> Plan:
    """One buffer after the other, whoever is alive."""
    starts = [0, *accumulate(aligned(live.size) for live in ranges)]
    return Plan(dict(zip((live.root for live in ranges), starts, strict=False)), starts[-1], "no-reuse")


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
    any plan) and the strategy that won. `check-plan` proves the result by other means. With `reuse=false` every buffer has bytes of its
    own, which shows what packing saves.

    With `max-arena=BYTES` (0: no limit) a plan that is larger is packed again in other orders, and refused where none of them fits;
    `lamella.memory` then also records the `limit`. Whoever compiles a bucket of many tokens meets the refusal with a smaller bucket, whose
    steps do the same work in chunks.
    """

    name = "plan-memory"

    max_arena: int = 0
    reuse: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                self.plan(function)

    def plan(self, function: func.FuncOp) -> None:
        """Replaces the allocations of one function. Raises PassError for a second plan or a dynamic size, PlanError above the limit."""
        block = function.body.block
        if "lamella.memory" in function.attributes:
            raise PassError("the function is planned already", where=f"func.func @{function.sym_name.data}")
        allocs = [op for op in block.ops if isinstance(op, memref.AllocOp)]
        for alloc in allocs:
            if alloc.dynamic_sizes:
                raise PassError("an allocation of dynamic size", where=subject(alloc), got=str(alloc.memref.type))
        ranges = [live for live in live_ranges(function) if isinstance(live.root.owner, memref.AllocOp)]
        chosen, least = plan(ranges) if self.reuse else apart(ranges), max_live(ranges)
        if self.reuse and 0 < self.max_arena < chosen.arena and least <= self.max_arena:
            chosen = squeezed(ranges, chosen, self.max_arena)
        if 0 < self.max_arena < chosen.arena:
            raise self.refusal(function, chosen, least)
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
                "max_live": least,
                "strategy": chosen.strategy,
                "launches": len(launches(function)),
                **({"limit": self.max_arena} if self.max_arena else {}),
            }
        )

    def refusal(self, function: func.FuncOp, chosen: Plan, least: int) -> PlanError:
        """The error for a function whose best plan is too large."""
        bucket = function.attributes.get(signature.BUCKET)
        tokens = python_value(bucket.data["tokens"]) if isinstance(bucket, DictionaryAttr) and "tokens" in bucket.data else 1
        name = f"func.func @{function.sym_name.data}"
        several = isinstance(tokens, int) and tokens > 1
        return PlanError(
            "the arena exceeds max-arena",
            arena=chosen.arena,
            limit=self.max_arena,
            lower_bound=least,
            where=f"{name}, bucket of {tokens} tokens" if several else f"{name}, bucket of one token" if bucket else name,
            remedy=f"{'give the bucket fewer tokens, or ' if several else ''}allow {chosen.arena} bytes",
        )

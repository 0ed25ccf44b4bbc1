"""Kernels go in; they leave asking for small blocks where their addresses are known, not where they are first used, behind sums and loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import kernel
from lamella.dialects.attributes import ELEMENT_BYTES
from lamella.dialects.kernel.types import element, shape
from lamella.passes.dependent_launch import idles, settled, touches
from lamella.passes.registers import THREADS

HOISTED_BYTES = 64
"""That a thread may hold for all loads of a kernel that are moved: sixteen registers."""
HELD_UP = (kernel.ReduceOp, kernel.DotOp, kernel.ForOp)
"""Ops which the assembler moves few loads across: they take long, and the threads of a program meet there."""


@dataclass(frozen=True)
class HoistLoads(ModulePass):
    """Moves small loads, and what their addresses are made of, up to where they need not be waited for.

    Before:
        kernel.func @k(%x_ptr: !kernel.ptr<f32>, %weight_ptr: !kernel.ptr<f32>, …) attributes {settled = array<i64: 1>, …} {
          %x = kernel.load %x_ptr[%columns] ; %sum = kernel.reduce … ; %weight = kernel.load %weight_ptr[%columns]
    After:
          %weight = kernel.load %weight_ptr[%columns] ; %x = kernel.load %x_ptr[%columns] ; %sum = kernel.reduce …

    A load of what no launch of the step writes goes before the first access that has to wait for the launches before (`dependent-launch` puts
    the wait between them), so that the memory answers meanwhile. Another load, behind all sums, products and loops, goes before the first of
    them, unless a store, an atomic addition, a barrier or a branch comes before it. Streamed weights (`eviction`) stay where their schedule has
    them. The blocks of a kernel that are moved take at most 64 bytes a thread. A kernel whose loops keep tiles in flight and that reads nothing
    early stays as it is: it must not start early (`dependent-launch`).
    """

    name = "hoist-loads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, kernel.FuncOp) and not idles(function):
                room = HOISTED_BYTES * THREADS * function.num_warps.value.data
                hoist(function.body.block, settled(function), room)


def hoist(block: Block, free: set[SSAValue], room: int) -> None:
    """Moves loads of `block`, or of both branches where the first access that waits is inside them, while they fit into `room` bytes."""
    first = next((op for op in block.ops if touches(op, free)), None)
    if isinstance(first, kernel.IfOp) and first.otherwise is not None:
        for region in first.regions:
            hoist(region.block, free, room)
        return
    if first is None:
        return
    early, late = first, _next(first)
    for load, written in list(_loads_after(first)):
        waits = touches(load, free)
        if waits and (written or _next(load).next_op is not None):
            # What it reads may have been written, or a sum or a product reads it, and it comes in turn.
            continue
        needed = _needed(load, late if waits else early, None if waits else free)
        size = sum(prod(shape(op.result)) * ELEMENT_BYTES[element(op.result)] for op in needed or [] if isinstance(op, kernel.LoadOp))
        if needed is None or size > room:
            continue
        room -= size
        for op in needed:
            op.detach()
            block.insert_op_before(op, late if waits else early)


def _next(first: Operation) -> Operation:
    """The first sum, product or loop from `first` on, else the last op of the block."""
    op = first
    while not isinstance(op, HELD_UP) and op.next_op is not None:
        op = op.next_op
    return op


def _loads_after(first: Operation) -> Iterator[tuple[kernel.LoadOp, bool]]:
    """The loads of `first`'s block behind it, each with whether something is written from `first` on before it.

    Streamed ones are left out: they are where their schedule wants them.
    """
    op: Operation | None = first
    written = False
    while op is not None:
        if isinstance(op, kernel.LoadOp) and op is not first and op.eviction is None:
            yield op, written
        written = written or _writes(op)
        op = op.next_op


def _writes(op: Operation) -> bool:
    """Whether `op` writes memory, makes the threads of a program wait for each other's writes, or is a branch."""
    if isinstance(op, kernel.StoreOp | kernel.AtomicAddOp | kernel.BarrierOp | kernel.IfOp):
        return True
    return any(_writes(inner) for region in op.regions for block in region.blocks for inner in block.ops)


def _needed(load: kernel.LoadOp, target: Operation, free: set[SSAValue] | None) -> list[Operation] | None:
    """A load behind `target` and all behind it that its address is made of, in order.

    None where that includes sums, products, loops, or accesses of other than `free` parameters (None: of any).
    """
    block = load.parent
    assert block is not None
    behind: dict[Operation, int] = {}
    op: Operation | None = target
    while op is not None and op is not load:
        behind[op] = len(behind)
        op = op.next_op
    if op is None:
        # It stands before its target.
        return None
    found: set[Operation] = set()
    wanted: list[Operation] = [load]
    while wanted:
        op = wanted.pop()
        for operand in op.operands:
            owner = operand.owner
            if not isinstance(owner, Operation) or owner not in behind or owner in found:
                continue
            if isinstance(owner, HELD_UP) or (free is not None and touches(owner, free)):
                return None
            found.add(owner)
            wanted.append(owner)
    return [*sorted(found, key=behind.__getitem__), load]

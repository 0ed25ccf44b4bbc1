"""Programmatic dependent launch: kernels go in; they leave so that each may start while its predecessor drains, reading weights first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects import host, kernel
from lamella.dialects.kernel.types import shape
from lamella.errors import PassError

SETTLED_PARAMETERS = "settled"
"""Attribute of a kernel: the parameters whose storage no launch of the step has written when this one may start (`passes/settled.py`)."""


@dataclass(frozen=True)
class DependentLaunch(ModulePass):
    """Lets the next launch start early, and makes each launch wait before it touches what another launch may write.

    Before:
        kernel.func @k(%w_ptr: !kernel.ptr<bf16>, %x_ptr: !kernel.ptr<bf16>) attributes {settled = array<i64: 0>, …} {
          %w = kernel.load %w_ptr, … ; %x = kernel.load %x_ptr, …
    After:
          kernel.launch_dependents
          %w = kernel.load %w_ptr, … ; kernel.wait_prerequisites ; %x = kernel.load %x_ptr, …

    The wait stands before the first access to anything but the settled parameters (weights, constants, inputs that the step has not yet
    advanced) and to what a load's mask leaves of others, on every path, and never inside a loop (a pipelined loop may hoist a load past it). The first launch of a step does not
    start early, so that steps do not overlap. A kernel that waits also waits, through its predecessor's wait, for everything before that, so every
    kernel of a program waits, even one that needs nothing. Both ops print behind the PDL switch: without it the text runs as before.
    A kernel whose loops keep tiles in flight and that reads nothing early has nothing to do before its wait, and where its programs start while
    those of its predecessor still hold most multiprocessors they crowd on the rest, and stay there (on an H200 a step of 8 sequences took twice as long).
    Such a kernel gets the wait alone: it lets nobody go before its end, and whoever comes before it lets it go behind its own wait, if it has but a few
    programs, which leave room for all, and not at all otherwise. So what is saved is a launch's latency. `waits=false` leaves it alone, and it starts
    when all before it has ended, as do kernels that read through descriptors, whose tiles hold most of a multiprocessor (with early starts 512 and 2048
    tokens took as long or longer, whenever the next launch was let go); `pipelined=true` treats it as any other. A launch that follows a call of a library is `ordered`: whether the library's kernels let others start early, and when, is not ours to say. CUDA Programming Guide, "Programmatic Dependent Launch".
    """

    name = "dependent-launch"

    pipelined: bool = False
    waits: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = {function.sym_name.data: function for function in op.ops if isinstance(function, kernel.FuncOp)}
        steps = [function for function in op.ops if isinstance(function, func.FuncOp) and not function.is_declaration]
        for function in steps:
            order(function)
        idle = set[str]() if self.pipelined else {name for name, function in kernels.items() if idles(function)}
        crowded = followed_by(steps, idle) if self.waits else {}
        for name, function in kernels.items():
            if name not in idle:
                mark(function, AT_ONCE if name not in crowded else BEHIND_WAIT if crowded[name] <= FEW_PROGRAMS else NEVER)
            elif self.waits and not described(function):
                mark(function, NEVER)
            check(function)


AT_ONCE, BEHIND_WAIT, NEVER = "at once", "behind its wait", "never"
"""When a kernel lets the next launch go before its own end."""
FEW_PROGRAMS = 64
"""Programs beside which those of the next launch find nearly all multiprocessors free."""


def followed_by(steps: Iterable[func.FuncOp], idle: Collection[str]) -> dict[str, int]:
    """The kernels that are followed by one of `idle` in some step, with the most programs of their launches."""
    found: set[str] = set()
    most: dict[str, int] = {}
    for function in steps:
        launches = [op for op in function.body.block.ops if isinstance(op, host.LaunchOp)]
        names = [launch.kernel.string_value() for launch in launches]
        for name, launch in zip(names, launches, strict=True):
            most[name] = max(most.get(name, 0), prod(launch.grid.get_values()))
        found |= {name for name, following in pairwise(names) if following in idle}
    return {name: most[name] for name in found}


def idles(function: kernel.FuncOp) -> bool:
    """Whether a kernel has nothing to do before its wait but to hold what its loops keep in flight."""
    return pipelined(function) and not reads_early(function.body.block, settled(function))


def order(function: func.FuncOp) -> None:
    """Makes each launch that follows a call of a library wait for its end, as the call itself waits for what comes before it."""
    after_call = False
    for op in function.body.block.ops:
        if isinstance(op, host.LaunchOp):
            if after_call:
                op.ordered = UnitAttr()
            after_call = False
        elif isinstance(op, host.LibraryMatmulOp):
            after_call = True


def pipelined(function: kernel.FuncOp) -> bool:
    """Whether a loop of the kernel keeps the next tiles in flight, in shared memory that its programs hold from their start."""
    return any(isinstance(op, kernel.ForOp) and op.num_stages is not None for op in function.walk())


def reads_early(block: Block, free: set[SSAValue]) -> bool:
    """Whether a block of values is loaded before the first access that has to wait."""
    for op in block.ops:
        if isinstance(op, kernel.IfOp):
            return any(reads_early(region.block, free) for region in op.regions)
        if touches(op, free):
            return False
        if isinstance(op, kernel.LoadOp) and shape(op.result):
            return True
    return False


def described(function: kernel.FuncOp) -> bool:
    """Whether a kernel reads tiles through descriptors."""
    return any(isinstance(argument.type, kernel.DescriptorType) for argument in function.body.block.args)


def mark(function: kernel.FuncOp, lets_go: str = AT_ONCE) -> None:
    """Adds the wait, and where the next launch is let go, to a kernel that has neither."""
    block = function.body.block
    if any(isinstance(op, kernel.WaitPrerequisitesOp | kernel.LaunchDependentsOp) for op in function.walk()):
        return
    free = settled(function)
    assert block.first_op is not None
    if lets_go == AT_ONCE:
        block.insert_op_before(kernel.LaunchDependentsOp(), block.first_op)
    place_wait(block, free)
    if lets_go == BEHIND_WAIT:
        for wait in [op for op in function.walk() if isinstance(op, kernel.WaitPrerequisitesOp)]:
            Rewriter.insert_op(kernel.LaunchDependentsOp(), InsertPoint.after(wait))


def settled(function: kernel.FuncOp) -> set[SSAValue]:
    """The parameters that may be read before the wait."""
    listed = function.attributes.get(SETTLED_PARAMETERS)
    indices = [int(i) for i in cast("DenseArrayBase[Any]", listed).get_values()] if isinstance(listed, DenseArrayBase) else []
    return {function.body.block.args[i] for i in indices}


def touches(op: Operation, free: set[SSAValue]) -> bool:
    """Whether `op`, or an op inside it, accesses memory that another launch may write."""
    match op:
        case kernel.LoadOp():
            return buffer_of(op.pointer) not in free and op.settled is None
        case kernel.LoadBlockOp():
            return op.descriptor not in free
        case kernel.StoreOp() | kernel.AtomicAddOp():
            return True
        case _:
            return any(touches(inner, free) for region in op.regions for block in region.blocks for inner in block.ops)


def buffer_of(pointer: SSAValue) -> SSAValue:
    """The parameter that a pointer is, or is the bytes of."""
    return pointer.owner.pointer if isinstance(pointer.owner, kernel.AsBytesOp) else pointer


def place_wait(block: Block, free: set[SSAValue]) -> None:
    """Puts the wait before the first op of `block` that touches, or into both branches where that op is an `if`; at the end, if none does."""
    first = next((op for op in block.ops if touches(op, free)), block.last_op)
    assert first is not None
    if isinstance(first, kernel.IfOp) and first.otherwise is not None:
        for branch in (first.then.block, first.otherwise.block):
            place_wait(branch, free)
        return
    block.insert_op_before(kernel.WaitPrerequisitesOp(), first)


def check(function: kernel.FuncOp) -> None:
    """Proves the rule on a kernel, by walking it the way a program runs. Raises PassError naming the op that breaks it.

    A kernel with neither op is launched the ordinary way.
    """
    if not any(isinstance(op, kernel.WaitPrerequisitesOp | kernel.LaunchDependentsOp) for op in function.walk()):
        return
    if not _waited_after(function.body.block, settled(function), False, function):
        raise _broken(function, "a path ends without a wait")


def _waited_after(block: Block, free: set[SSAValue], waited: bool, function: kernel.FuncOp) -> bool:
    for op in block.ops:
        match op:
            case kernel.WaitPrerequisitesOp():
                if waited:
                    raise _broken(function, "a second wait")
                waited = True
            case kernel.IfOp():
                ends = [_waited_after(region.block, free, waited, function) for region in op.regions]
                waited = waited or (len(ends) == 2 and all(ends))
                if any(ends) and not waited:
                    raise _broken(function, "one branch waits and the other does not")
            case kernel.ForOp():
                if _waited_after(op.body.block, free, waited, function) and not waited:
                    raise _broken(function, "a wait inside a loop")
            case _:
                if touches(op, free) and not waited:
                    raise _broken(function, f"{op.name} before the wait")
    return waited


def _broken(function: kernel.FuncOp, what: str) -> PassError:
    return PassError(f"{what}: another launch may still write what this one touches", where=f"kernel.func @{function.sym_name.data}")

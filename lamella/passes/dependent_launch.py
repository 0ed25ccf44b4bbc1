"""Programmatic dependent launch: kernels go in; they leave so that each may start while its predecessor drains, reading weights first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

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
    A kernel whose loops keep tiles in flight and that reads nothing early would only hold, while it waits, the shared memory that its
    predecessor's programs need: it is left alone unless `pipelined=true`, and starts when all before it has ended (on an H200 a prefill of
    512 tokens took 7 % longer otherwise). A launch that follows a call of a library is `ordered`: whether the library's kernels let others start
    early, and when, is not ours to say. CUDA Programming Guide, "Programmatic Dependent Launch".
    """

    name = "dependent-launch"

    pipelined: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                order(function)
            if isinstance(function, kernel.FuncOp):
                if self.pipelined or not pipelined(function) or reads_early(function.body.block, settled(function)):
                    mark(function)
                check(function)


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


def mark(function: kernel.FuncOp) -> None:
    """Adds the two ops to a kernel that has neither."""
    block = function.body.block
    if any(isinstance(op, kernel.WaitPrerequisitesOp | kernel.LaunchDependentsOp) for op in function.walk()):
        return
    free = settled(function)
    assert block.first_op is not None
    block.insert_op_before(kernel.LaunchDependentsOp(), block.first_op)
    place_wait(block, free)


def settled(function: kernel.FuncOp) -> set[SSAValue]:
    """The parameters that may be read before the wait."""
    listed = function.attributes.get(SETTLED_PARAMETERS)
    indices = [int(i) for i in cast("DenseArrayBase[Any]", listed).get_values()] if isinstance(listed, DenseArrayBase) else []
    return {function.body.block.args[i] for i in indices}


def touches(op: Operation, free: set[SSAValue]) -> bool:
    """Whether `op`, or an op inside it, accesses memory that another launch may write."""
    match op:
        case kernel.LoadOp():
            return op.pointer not in free and op.settled is None
        case kernel.LoadBlockOp():
            return op.descriptor not in free
        case kernel.StoreOp() | kernel.AtomicAddOp():
            return True
        case _:
            return any(touches(inner, free) for region in op.regions for block in region.blocks for inner in block.ops)


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

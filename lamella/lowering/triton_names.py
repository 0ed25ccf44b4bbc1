"""Names of Python variables: from SSA name hints, unique in a kernel, and shared where a loop carries a value on."""

from __future__ import annotations

import keyword
import re

from xdsl.ir import Block, Operation, OpResult, SSAValue

from lamella.dialects import kernel
from lamella.dialects.kernel.types import shape
from lamella.lowering.triton_bytes import NAMES


def reserved_names(func: kernel.FuncOp) -> set[str]:
    """The names that no variable of `func` may have."""
    used = {"tl", "triton", "range", "float", "DOT", "PDL", "ASM", "SIGNATURE", "NUM_WARPS", "NUM_STAGES", "MAX_REGISTERS"}
    return {func.sym_name.data, *used, *NAMES, *keyword.kwlist}


def parameter_names(func: kernel.FuncOp) -> list[str]:
    """The names of the parameters of `func`, in order."""
    taken = reserved_names(func)
    return [unique(value.name_hint or f"arg{index}", taken) for index, value in enumerate(func.body.block.args)]


def unique(hint: str, taken: set[str]) -> str:
    """`hint` as a Python identifier that is not in `taken`, which it enters: `acc`, then `acc_1`."""
    stem = re.sub(r"\W", "_", hint)
    stem = f"v{stem}" if stem[0].isdigit() else stem
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def hint(value: SSAValue) -> str:
    """The name hint of a value; without one, that of the pointer it is loaded from, or of the op that makes it."""
    owner = value.owner
    if value.name_hint is not None:
        return value.name_hint
    if isinstance(owner, Block):
        return "acc"
    if isinstance(owner, kernel.LoadOp) and owner.pointer.name_hint is not None:
        return owner.pointer.name_hint.removesuffix("_ptr")
    return owner.name.removeprefix("kernel.")


def coalesce(func: kernel.FuncOp) -> dict[SSAValue, SSAValue]:
    """Which values take the variable of another one, so that a loop reads `acc = tl.dot(a, b, acc)` and not `acc = dot`.

    The next value of a loop takes the variable of the carried value that it replaces, if nothing reads the old one afterwards. A value
    that is made only to start a loop takes the variable of the carried value. Sharing is by block argument: loop results follow theirs.
    """
    shared: dict[SSAValue, SSAValue] = {}
    loops = [op for op in func.walk() if isinstance(op, kernel.ForOp)]
    for loop in loops:
        _share_next_values(loop, shared)
    for loop in loops:
        _share_initial_values(loop, shared)
    return shared


def _share_next_values(loop: kernel.ForOp, shared: dict[SSAValue, SSAValue]) -> None:
    block = loop.body.block
    last = block.last_op
    assert isinstance(last, kernel.YieldOp)
    order = {op: index for index, op in enumerate(block.ops)}
    for carried, value in zip(block.args[1:], last.arguments, strict=True):
        op = value.owner
        if not isinstance(op, Operation) or op not in order or _is_literal(value) or list(last.arguments).count(value) > 1:
            continue
        if all(_before(use.operation, op, block, order) for use in carried.uses):
            shared[_variable_owner(value)] = carried


def _before(user: Operation, op: Operation, block: Block, order: dict[Operation, int]) -> bool:
    """`user` reads its operands before `op` assigns its result: it is `op` itself, or stands in or below an earlier op."""
    ancestor = block.find_ancestor_op_in_block(user)
    return user is op or (ancestor is not None and order[ancestor] < order[op])


def _share_initial_values(loop: kernel.ForOp, shared: dict[SSAValue, SSAValue]) -> None:
    for carried, value in zip(loop.body.block.args[1:], loop.inits, strict=True):
        op = value.owner
        if carried in shared or not isinstance(op, Operation) or op.parent is not loop.parent or _is_literal(value):
            continue
        if not value.has_one_use():
            continue
        if isinstance(op, kernel.ForOp):
            shared[carried] = _variable_owner(value)
        else:
            shared[value] = carried


def _variable_owner(value: SSAValue) -> SSAValue:
    """The value whose variable `value` has: the carried block argument, for the result of a loop."""
    if isinstance(value, OpResult) and isinstance(value.op, kernel.ForOp):
        return value.op.body.block.args[1 + value.index]
    return value


def _is_literal(value: SSAValue) -> bool:
    return isinstance(value.owner, kernel.ConstantOp) and not shape(value)

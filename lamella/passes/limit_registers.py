"""Kernels and their launches go in; kernels leave with the most registers that a thread may take, where one more would make two waves of one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block
from xdsl.passes import ModulePass

from lamella.dialects import kernel
from lamella.dialects.attributes import ELEMENT_BYTES
from lamella.dialects.host import LaunchOp
from lamella.dialects.kernel.types import element, shape
from lamella.passes.dependent_launch import pipelined
from lamella.passes.device import Device, device
from lamella.passes.registers import THREADS

SCHEDULERS = 4
"""Of a multiprocessor, each with its own registers."""
UNIT, REGISTER_BYTES = 8, 4
"""Registers of a thread come in so many, and bytes of one."""
LEAST = 128
"""With fewer such a program spills."""
AMPLE = 168
"""The most with which three programs run on a scheduler: as many as they seldom take without a limit. With one the assembler uses what it allows, so that it is no mere limit."""
HUNGRY = 144
"""Registers for what a program loads at once, beside its sums, from which on it would take more than that."""


@dataclass(frozen=True)
class LimitRegisters(ModulePass):
    """Says how many registers a thread of a kernel may take for all programs of its launch to run at once.

    Before, with 2,048 programs of a warp for 132 multiprocessors, at most four for each scheduler:
        kernel.func @gemv_0(…) attributes {num_warps = 1 : i64, …} { … kernel.widen "lower" … ; kernel.dot … }
        host.launch @gemv_0 grid [2048, 1, 1] …
    After:
        kernel.func @gemv_0(…) attributes {max_registers = 128 : i64, num_warps = 1 : i64, …} { … }

    The assembler takes the registers that make one program fast and knows nothing of the others: with 136, three run on a scheduler, and the launch has a second wave of
    464. A launch of many waves has three programs on each scheduler where one loads so much at once that it would take more than 168.

    Only for products by programs of one warp that hold their weights, as halves of bytes, which become four times as large: others take less than that, and what streams tiles
    is fast with few programs too. Not where a thread would be left fewer than 128, since it would spill, nor where it may have 168, as many as it takes anyway. Expects
    launches (`tile-to-kernel`); of several of one kernel the largest counts.
    """

    name = "limit-registers"

    arch: str = "sm_90"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = device(self.arch)
        programs: dict[str, int] = {}
        for launch in op.walk():
            if isinstance(launch, LaunchOp):
                name = launch.kernel.string_value()
                programs[name] = max(programs.get(name, 0), prod(launch.grid.get_values()))
        for function in op.ops:
            if isinstance(function, kernel.FuncOp) and holds_halves(function):
                most = most_registers(function, programs.get(function.sym_name.data, 0), target)
                if most is not None:
                    function.max_registers = IntegerAttr(most, i64)


def holds_halves(function: kernel.FuncOp) -> bool:
    """Whether programs of one warp multiply halves of bytes that they loaded beforehand."""
    halves = any(isinstance(op, kernel.WidenOp) and op.part.data != "whole" for op in function.walk())
    return halves and function.num_warps.value.data == 1 and not pipelined(function)


def most_registers(function: kernel.FuncOp, programs: int, target: Device) -> int | None:
    """The most registers a thread that serve a launch of so many programs of one warp; None where the assembler may choose."""
    warps = -(-programs // (target.multiprocessors * SCHEDULERS))
    if warps == 0:
        return None
    in_one_wave = target.registers // SCHEDULERS // (warps * THREADS) // UNIT * UNIT
    if in_one_wave < AMPLE:
        if in_one_wave >= LEAST:
            return in_one_wave
        if loaded_at_once(function.body.block) > HUNGRY:
            return AMPLE
    return None


def loaded_at_once(block: Block) -> int:
    """Registers a thread of one warp for what a block loads, of branches for the one that loads most."""
    total = 0
    for op in block.ops:
        if isinstance(op, kernel.LoadOp):
            total += prod(shape(op.result)) * ELEMENT_BYTES[element(op.result)] // (REGISTER_BYTES * THREADS)
        total += max((loaded_at_once(inner) for region in op.regions for inner in region.blocks), default=0)
    return total

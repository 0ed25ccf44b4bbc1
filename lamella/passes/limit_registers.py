"""Kernels and their launches go in; kernels leave with the most registers that a thread may take, where one more would make two waves of one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from lamella.dialects import kernel
from lamella.dialects.host import LaunchOp
from lamella.passes.dependent_launch import pipelined
from lamella.passes.device import Device, device
from lamella.passes.registers import THREADS

SCHEDULERS = 4
"""Of a multiprocessor, each with its own registers."""
UNIT = 8
"""Registers of a thread come in so many."""
LEAST = 128
"""With fewer a program of one warp that holds its weights spills."""
AMPLE = 168
"""As many as such a program takes at most without a limit. With one the assembler uses what it allows, so that it is no mere limit."""


@dataclass(frozen=True)
class LimitRegisters(ModulePass):
    """Says how many registers a thread of a kernel may take for all programs of its launch to run at once.

    Before, with 2,048 programs of a warp for 132 multiprocessors, at most four for each scheduler:
        kernel.func @gemv_0(…) attributes {num_warps = 1 : i64, …} { … kernel.dot … }
        host.launch @gemv_0 grid [2048, 1, 1] …
    After:
        kernel.func @gemv_0(…) attributes {max_registers = 128 : i64, num_warps = 1 : i64, …} { … }

    The assembler takes the registers that make one program fast and knows nothing of the others: with 136, three run on a scheduler, and the launch has a second wave of
    464. Only for products by programs of one warp that hold their weights: what streams tiles is fast with few programs too. Not where a thread would be left fewer
    than 128, since it would spill, nor where it may have 168, as many as it takes anyway. Expects launches (`tile-to-kernel`); of several of one kernel the largest counts.
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
            if isinstance(function, kernel.FuncOp) and holds_its_weights(function):
                most = registers_of_one_wave(programs.get(function.sym_name.data, 0), target)
                if most is not None and LEAST <= most < AMPLE:
                    function.max_registers = IntegerAttr(most, i64)


def holds_its_weights(function: kernel.FuncOp) -> bool:
    """Whether programs of one warp multiply what they loaded beforehand."""
    return function.num_warps.value.data == 1 and not pipelined(function) and any(isinstance(op, kernel.DotOp) for op in function.walk())


def registers_of_one_wave(programs: int, target: Device) -> int | None:
    """The most registers a thread with which so many programs of one warp run at once; None without programs."""
    warps = -(-programs // (target.multiprocessors * SCHEDULERS))
    return target.registers // SCHEDULERS // (warps * THREADS) // UNIT * UNIT if warps else None

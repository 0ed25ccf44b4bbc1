"""Kernels go in; they leave as they were, proved free of loads that a product of a warp group reads while the next ones are written over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import kernel
from lamella.dialects.kernel.types import element, shape
from lamella.dialects.messages import subject
from lamella.errors import PassError
from lamella.passes.schedules import WARP_GROUP, WARP_GROUP_ROWS


@dataclass(frozen=True)
class CheckPipelines(ModulePass):
    """Refuses kernels in whose pipelined loops a product of a warp group and another op read the same load.

    Before, and after where it is accepted:
        kernel.func @k(…) attributes {num_warps = 4 : i64, …} {
          %sums = kernel.for %i = %zero to %end step %step iter_args(%acc = %none) -> (…) attributes {num_stages = 3 : i64} {
            %x = kernel.load %x_ptr[%offsets] …
            %next = kernel.dot %w, %x, %acc : tensor<64x64xbf16>, tensor<64x32xbf16>, tensor<64x32xf32> -> tensor<64x32xf32>
            kernel.yield %next
    Refused, with `%squares = kernel.mul %x, %x` in the loop.

    Four warps multiply 64 rows or more as one group, asynchronously: the product is under way while the loop asks for the tiles of a later trip.
    Triton gives a load one buffer more for that where products are all that read it. Where another op reads it too it does not (versions 3.6 to 3.9),
    and the later tile is written over the one that the product still reads: sums that differ from run to run, on an H200 by as much as they are.
    """

    name = "check-pipelines"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, kernel.FuncOp) and function.num_warps.value.data % WARP_GROUP == 0:
                for loop in function.walk():
                    if isinstance(loop, kernel.ForOp) and loop.num_stages is not None:
                        check(loop, function)


def check(loop: kernel.ForOp, function: kernel.FuncOp) -> None:
    """Raises PassError for the first load of a pipelined loop that must not be read as it is."""
    for load in loop.body.block.ops:
        if not isinstance(load, kernel.LoadOp | kernel.LoadBlockOp):
            continue
        readers = list(readers_of(load.result))
        other = next((op for op in readers if not isinstance(op, kernel.DotOp)), None)
        if other is not None and any(isinstance(op, kernel.DotOp) and in_flight(op) for op in readers):
            raise PassError(
                f"{subject(load)} is read by a product of a warp group and by {subject(other)}",
                where=f"kernel.func @{function.sym_name.data}",
                expected="products alone: the next tile is written while they read",
                remedy=f"fewer than {WARP_GROUP} warps, or less than {WARP_GROUP_ROWS} rows a program",
            )


def readers_of(value: SSAValue) -> Iterable[Operation]:
    """What reads a load, behind views of it: the same numbers where they lie."""
    for use in value.uses:
        if isinstance(use.operation, kernel.TransOp):
            yield from readers_of(use.operation.result)
        else:
            yield use.operation


def in_flight(op: kernel.DotOp) -> bool:
    """Whether a product of four warps is asynchronous: of 64 rows or more, and not of float32, which tensor cores do not multiply in full.

    One whose columns the loop computes is waited for at once, for they lie in shared memory that the next trip computes them into.
    """
    return shape(op.a)[0] >= WARP_GROUP_ROWS and element(op.a) != "f32" and isinstance(seen(op.b).owner, kernel.LoadOp | kernel.LoadBlockOp)


def seen(value: SSAValue) -> SSAValue:
    """What a value is a view of."""
    while isinstance(value.owner, kernel.TransOp):
        value = value.owner.operand
    return value

"""The pass: each distinct region becomes a kernel, each region a launch of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import I64, DenseArrayBase, ModuleOp, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import kernel
from lamella.dialects.host import LaunchOp, LibraryMatmulOp
from lamella.dialects.messages import subject
from lamella.dialects.tile import FusedOp
from lamella.errors import PassError
from lamella.lowering.tile_to_kernel import attend, contract, experts, mma, row, sample
from lamella.passes.choose_schedule import longest_query
from lamella.passes.dependent_launch import SETTLED_PARAMETERS
from lamella.passes.library import LibraryCall, library_call
from lamella.passes.settled import settled_inputs


@dataclass(frozen=True)
class TileToKernel(ModulePass):
    """Lowers regions on buffers to kernels and launches.

    Before:
        tile.fused schedule <row, {columns = 8, rows = 1, warps = 4}> ins(%x : memref<3x8xf32>) outs(%y : memref<3x8xf32>)
            attributes {kernel = "row_0"} { … tile.map "silu"(%0) … }
    After:
        kernel.func @row_0(%x_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) { … }
        host.launch @row_0 grid [3, 1, 1] ins(%x : memref<3x8xf32>) outs(%y : memref<3x8xf32>)

    A skeleton decides which program computes which rows and columns; what is computed there is pulled from the region op by op, each by
    its own rule. Expects schedules (`choose-schedule`) and kernel names (`number-kernels`); regions of one name are lowered once. A region of the
    schedule `library` has no kernel: it becomes a `host.library_matmul`.
    """

    name = "tile-to-kernel"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lowered: dict[str, tuple[int, int, int]] = {}
        for function in [o for o in op.ops if isinstance(o, func.FuncOp) and not o.is_declaration]:
            longest = longest_query(function)
            settled = settled_inputs(function)
            for fused in [o for o in function.body.block.ops if isinstance(o, FusedOp)]:
                name = kernel_name(fused)
                call = library_call(fused)
                if call is not None:
                    replace_by_call(fused, name, call)
                    continue
                if name not in lowered:
                    made, lowered[name] = lower_region(fused, name, longest, settled[fused])
                    fixed = [i for i, early in enumerate(settled[fused]) if early]
                    made.attributes[SETTLED_PARAMETERS] = DenseArrayBase[I64].from_list(i64, fixed)
                    op.body.block.add_op(made)
                replace_by_launch(fused, name, lowered[name])


def kernel_name(fused: FusedOp) -> str:
    """The name `number-kernels` gave the region. Raises PassError when it has none."""
    name = fused.attributes.get("kernel")
    if not isinstance(name, StringAttr):
        raise PassError("a region without a kernel name", where=subject(fused), remedy="run number-kernels first")
    return name.data


def lower_region(fused: FusedOp, name: str, longest_query: int, settled: Sequence[bool]) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """The kernel of one region and its grid; `settled` says which inputs may be read early. Raises PassError for a region without a schedule or with an unknown skeleton."""
    schedule = fused.schedule
    if schedule is None:
        raise PassError("a region without a schedule", where=subject(fused), remedy="run choose-schedule first")
    match schedule.skeleton.data:
        case "row":
            return row.lower(fused, name, schedule)
        case "gemv":
            return contract.lower_gemv(fused, name, schedule, settled)
        case "mma":
            return mma.lower_mma(fused, name, schedule, settled)
        case "attend":
            return attend.lower_attend(fused, name, schedule, longest_query)
        case "sample":
            return sample.lower(fused, name, schedule)
        case "route":
            return experts.lower_route(fused, name, schedule)
        case "experts":
            return experts.lower_experts(fused, name, schedule)
        case "sort":
            return experts.lower_sort(fused, name, schedule)
        case "expert_tiles":
            return experts.lower_expert_tiles(fused, name, schedule)
        case other:
            raise PassError(f"no kernel skeleton {other}", where=subject(fused))


def replace_by_launch(fused: FusedOp, name: str, grid: tuple[int, int, int]) -> None:
    """Puts a launch where the region was."""
    block = fused.parent_block()
    assert block is not None
    launch: Operation = LaunchOp(name, grid, fused.ins, fused.outs, loc=fused.loc.data if fused.loc else None)
    block.insert_op_before(launch, fused)
    fused.detach()
    fused.erase()


def replace_by_call(fused: FusedOp, name: str, call: LibraryCall) -> None:
    """Puts a call of the library where the region was."""
    block = fused.parent_block()
    assert block is not None
    given: dict[SSAValue, SSAValue] = dict(zip(fused.body.block.args, fused.ins, strict=True))
    addend = call.residual if call.residual is not None else call.bias
    operands = [given[v] for v in (call.contract.x, call.contract.weight, *(() if addend is None else (addend,)))]
    x, weight, *added = operands
    made = LibraryMatmulOp(name, x, weight, added[0] if added else None, fused.outs[0], loc=fused.loc.data if fused.loc else None)
    block.insert_op_before(made, fused)
    fused.detach()
    fused.erase()

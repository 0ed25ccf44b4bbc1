"""Linears of which each reader takes some columns enter; one linear for each part, on its rows of the weight, leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects import signature
from lamella.dialects.attributes import element_type_of
from lamella.dialects.messages import subject
from lamella.dialects.transformer import LinearOp, SliceColumnsOp, SliceRowsOp
from lamella.passes.fold_constants import FoldConstants
from lamella.passes.packed_rows import move_rows


@dataclass(frozen=True)
class SplitLinears(ModulePass):
    """Make one linear of each part of a fused one, such as q, k and v: columns of the product are rows of the weight.

    Before:
        %qkv = transformer.linear %x, %w : …, tensor<96x64xf32>) -> tensor<?x96xf32, …>
        %q = transformer.slice_columns %qkv {start = 0, size = 64}
        %k = transformer.slice_columns %qkv {start = 64, size = 32}
    After, with the weights' parts made once, when the model is loaded:
        %w0 = transformer.weight "qkv_proj.part" : tensor<64x64xf32>
        %q = transformer.linear %x, %w0
        %w1 = transformer.weight "qkv_proj.part_1" : tensor<32x64xf32>
        %k = transformer.linear %x, %w1

    Expects linears and slices of their results; a slice of anything else stays, and so does a linear that some reader takes whole: the
    near miss is recorded in `lamella.idle`. A checkpoint that fuses projections and one that does not then give the same steps.
    """

    name = "split-linears"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        changed = False
        for function in signature.steps(op):
            miss = ""
            split = 0
            for linear in [o for o in function.body.block.ops if isinstance(o, LinearOp)]:
                users = [use.operation for use in linear.result.uses]
                slices = [user for user in users if isinstance(user, SliceColumnsOp)]
                if slices and len(slices) == len(users):
                    split_linear(linear, sorted(slices, key=lambda s: s.start.value.data))
                    split += 1
                elif slices:
                    other = next(user for user in users if user not in slices)
                    miss = f"{subject(linear)} is read whole by {subject(other)}"
            changed = changed or split > 0
            if not split:
                note(function, miss)
        if changed:
            FoldConstants().apply(ctx, op)


def note(function: FuncOp, miss: str) -> None:
    """Records that nothing was split, with what came nearest."""
    stray = next((o for o in function.body.block.ops if isinstance(o, SliceColumnsOp)), None)
    if not miss and stray is not None:
        owner = stray.x.owner
        miss = f"{subject(stray)} takes columns of {subject(owner) if isinstance(owner, Operation) else 'an argument'}, which is no linear"
    reason = f"nearest: {miss}" if miss else "no slice of a linear's columns"
    signature.note_idle(function, [{"pass": "split-linears", "reason": reason}])


def taken(weight: SSAValue, start: int, size: int) -> SliceRowsOp:
    """Rows of a weight, or of a part of one that is packed, under its name."""
    op = SliceRowsOp(weight, start=start, size=size)
    op.result.name_hint = weight.name_hint
    return op


def split_linear(linear: LinearOp, slices: list[SliceColumnsOp]) -> None:
    """Replaces the slices of a linear by linears, and erases it."""
    for part in slices:
        start, size = part.start.value.data, part.size.value.data
        rows: list[SSAValue] = []
        for weight in (linear.weight, *((linear.bias,) if linear.bias is not None else ())):
            rows.append(move_rows(weight, partial(taken, start=start, size=size), linear))
        made = LinearOp(linear.x, rows[0], rows[1] if len(rows) > 1 else None, element=element_type_of(part.result))
        made.attributes.update(part.attributes)
        made.result.name_hint = part.result.name_hint
        Rewriter.insert_op(made, InsertPoint.before(linear))
        part.result.replace_all_uses_with(made.result)
        Rewriter.erase_op(part)
    Rewriter.erase_op(linear)

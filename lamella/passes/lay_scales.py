"""Packed weights in groups enter; they leave with scales that lie group by group, as kernels on tensor cores read them."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects.messages import location
from lamella.dialects.transformer import ByGroupOp, DequantizeOp, LinearOp
from lamella.passes.packed_columns import RUNS, whole_runs


class LayScales(ModulePass):
    """Turn scales and least values of groups, [rows, groups], into [groups, rows] where tensor cores multiply the weight as bytes.

    A step over K wants the scales of many rows in one group, neighbours now: one access to memory instead of one a row. So it does those that
    multiply the scales of several groups. Where one token reads rows in runs, a program wants eight groups of few rows: these stay side by side,
    [groups/8, rows·8], which serves both.

    Before:
        %w = transformer.dequantize %words, %scales {packing = #transformer.packing<int4, group = 128>} : (…, tensor<64x32xbf16>) -> …
    After:
        %0 = transformer.by_group %scales {together = 8 : i64} : tensor<64x32xbf16> -> tensor<4x512xbf16>
        %w = transformer.dequantize %words, %0 {by_group = 8 : i64, packing = …} : (…, tensor<4x512xbf16>) -> …

    `fold-constants` turns them when weights are loaded. Smaller groups, whose words are taken apart one by one, keep the scales of a row together,
    and so does a table whose rows are gathered.
    """

    name = "lay-scales"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for found in [inner for inner in op.walk() if isinstance(inner, DequantizeOp)]:
            grouped = found.packing.in_bytes and found.groups > 1 and not found.by_group
            if grouped and all(isinstance(use.operation, LinearOp) for use in found.result.uses):
                turn(found)


def turn(op: DequantizeOp) -> None:
    """Replaces `op` by one that takes its scales and least values by group."""
    words, *parts = op.operands
    together = RUNS if whole_runs(op) and op.groups % RUNS == 0 else 1
    turned: list[SSAValue] = []
    for part in parts:
        made = ByGroupOp(part, together)
        Rewriter.insert_op(made, InsertPoint.before(op))
        turned.append(made.result)
    made = DequantizeOp.of([words, *turned], op.packing, by_group=together, like=op.result.type, loc=location(op) or None)
    made.result.name_hint = op.result.name_hint
    Rewriter.replace_op(op, made)

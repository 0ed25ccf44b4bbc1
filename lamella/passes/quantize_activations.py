"""Linears with packed weights enter; those that can multiply bytes by bytes leave with rows of x quantized in front of them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects import signature
from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import location, subject
from lamella.dialects.transformer import ROW_KINDS, DequantizeOp, DequantizeRowsOp, LinearOp, QuantizeRowsOp, order_of
from lamella.errors import PassError, nearest

KINDS = ("none", *ROW_KINDS)
MOST_COLUMNS = 1 << 17
"""Products of bytes that a sum of 32 bits holds, whatever they are."""


@dataclass(frozen=True)
class QuantizeActivations(ModulePass):
    """Multiply bytes by bytes: rows of x become numbers of eight bits with a scale each, in front of linears whose weights are such numbers.

    Before:
        %w = transformer.dequantize %words, %scales {packing = #transformer.packing<int8, group = 128>} : (…) -> tensor<64x128xf32>
        %y = transformer.linear %x, %w : (tensor<?x128xbf16, #transformer.dims<"N">>, tensor<64x128xf32>) -> …
    After, with `kind=int8`:
        %w = transformer.dequantize %words, %scales {packing = …} : …
        %values, %row_scales = transformer.quantize_rows %x {kind = "int8"} : (…) -> (tensor<?x128xi8, …>, tensor<?x1xf32, …>)
        %0 = transformer.dequantize_rows %values, %row_scales : (…) -> tensor<?x128xf32, …>
        %y = transformer.linear %0, %w : …

    `kind`: `int8`, for weights of int8 with one scale a row and no least values; `fp8`, for weights of fp8; or `none`, which changes nothing. Linears that share x
    share its numbers. `skip` are shell patterns over the locations of linears, with blanks between them. Others keep x as it is, and the record in
    `lamella.folds` says why. Expects weights packed (`quantize-weights`, or a checkpoint's own). It decides for all buckets at once: a step of one
    token rounds as a step of many does. Raises PassError for an unknown kind, and where no linear has a weight of that kind.
    """

    name = "quantize-activations"

    kind: str = "none"
    skip: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.kind not in KINDS:
            raise PassError(
                f"unknown kind '{self.kind}'",
                where="pass 'quantize-activations'",
                expected=", ".join(KINDS),
                remedy=nearest(self.kind, KINDS),
            )
        if self.kind == "none":
            return
        taken = 0
        for function in signature.steps(op):
            records = self.records(function)
            taken += sum(record["verdict"] == "quantized" for record in records)
            signature.record(function, records)
        if not taken:
            raise PassError(
                f"no linear can multiply activations of {self.kind}",
                where="pass 'quantize-activations'",
                expected=f"weights of {self.kind} with one scale a row",
                remedy=f"quantize the weights to {self.kind} as well",
            )

    def records(self, function: FuncOp) -> list[dict[str, str]]:
        """Quantizes the rows of x of each linear that can take them; what became of each."""
        made: dict[SSAValue, SSAValue] = {}
        records: list[dict[str, str]] = []
        for op in [op for op in function.body.block.ops if isinstance(op, LinearOp)]:
            reason = self.refusal(op)
            if not reason:
                op.operands[0] = made[op.x] if op.x in made else made.setdefault(op.x, quantized(op, self.kind))
            verdict = "not_quantized" if reason else "quantized"
            records.append(
                {"verdict": verdict, "kind": "activation", "what": subject(op), "reason": reason or f"x in {self.kind}, a scale a row"}
            )
        return records

    def refusal(self, op: LinearOp) -> str:
        """Why a linear keeps its x; empty where it does not."""
        weight, where = op.weight.owner, location(op)
        if any(fnmatchcase(where, pattern) for pattern in self.skip.split()):
            return f"skip names {where}"
        if not isinstance(weight, DequantizeOp):
            return f"its weight is floats, not {self.kind}"
        if weight.packing.kind.data != self.kind:
            return f"its weight is {weight.packing.kind.data}, not {self.kind}"
        if weight.groups > 1:
            return f"its weight has a scale for {weight.packing.group.data} columns, not one a row"
        if weight.mins is not None:
            return "the rows of its weight have least values"
        columns = shape_of(op.weight)[1]
        if columns > MOST_COLUMNS:
            return f"sums over {columns} columns may not fit 32 bits"
        return f"the columns of x lie in {order_of(op.x.type)}" if order_of(op.x.type) is not None else ""


def quantized(op: LinearOp, kind: str) -> SSAValue:
    """What the quantized rows of the x of a linear stand for, made in front of the first op that reads it there."""
    x = op.x
    where = location(x.owner) if isinstance(x.owner, Operation) else ""
    rows = QuantizeRowsOp(x, kind, loc=where or None)
    rows.values.name_hint, rows.scales.name_hint = "values", "row_scales"
    stands_for = DequantizeRowsOp(rows.values, rows.scales, loc=where or None)
    Rewriter.insert_op([rows, stands_for], InsertPoint.before(op))
    return stands_for.result

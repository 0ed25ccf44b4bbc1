"""Linears with float weights enter; linears that read packed words and scales, made once at load time, leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from lamella.dialects.packing import BITS, FLOATS, PackingAttr
from lamella.dialects.transformer import DequantizeOp, GroupMinsOp, GroupScalesOp, LinearOp, PackWeightOp, WeightOp
from lamella.errors import PassError, nearest
from lamella.passes.weight_expressions import carried, handles, origin, readers

KINDS = ("none", *BITS)
HEAD = "lm_head"
"""Where the linear comes from that makes the logits."""
GROUPS = (128, 64, 32)
"""Columns that share a scale of int4 unless told otherwise: the first that divides a row."""
LEAST_GROUP = 16
"""Columns: the fewest that a tensor core multiplies at a time."""


@dataclass(frozen=True)
class QuantizeWeights(ModulePass):
    """Store the weights of linears as numbers of a few bits, with a scale for each group of columns.

    Before:
        %w = transformer.weight "q_proj" : tensor<64x128xf32>
        %y = transformer.linear %x, %w : …
    After, with `kind=int8`:
        %w = transformer.weight "q_proj" : tensor<64x128xf32>
        %s = transformer.group_scales %w {packing = #transformer.packing<int8, group = 128>} : … -> tensor<64x1xf32>
        %p = transformer.pack_weight %w, %s {packing = …} : … -> tensor<64x32xi32>
        %d = transformer.dequantize %p, %s {packing = …} : … -> tensor<64x128xf32>
        %y = transformer.linear %x, %d : …

    `kind`: `int4`, `int8`, `fp8` (float8 e4m3), or `none`, which changes nothing. `group`: columns that share a scale, a power of two; 0: for
    int4 the first of 128, 64 and 32 that divides a row, for int8 whole rows, which fp8 always takes. Rounding is to the nearest; `clip` searches the range of least squared error. `affine` (int4 unless told otherwise: `auto`)
    gives each group a least value, so that its numbers need not lie around 0. `skip` are shell patterns over the locations of
    linears, with blanks between them; `head` is the kind of the linear that makes the logits.

    A linear keeps its weight where the weight is no plain one, another op reads it too (a tied embedding), or its columns are no whole
    groups. Embeddings keep theirs. Each function says so in `lamella.folds`. Expects the layout settled (`propagate-layout`); run
    `fold-constants` afterwards, which moves what makes the words to load time.
    """

    name = "quantize-weights"

    kind: str = "none"
    group: int = 0
    skip: str = ""
    head: str = "none"
    affine: str = "auto"
    clip: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.check()
        if self.kind == self.head == "none":
            return
        known = handles(op)
        for function in signature.steps(op):
            signature.record(function, self.records(function, known))

    def check(self) -> None:
        """Raises PassError for an option that says nothing."""
        for name, kind in (("kind", self.kind), ("head", self.head)):
            if kind not in KINDS:
                raise PassError(
                    f"unknown {name} '{kind}'", where="pass 'quantize-weights'", expected=", ".join(KINDS), remedy=nearest(kind, KINDS)
                )
        if self.affine not in ("auto", "on", "off"):
            raise PassError("bad value for option 'affine'", where="pass 'quantize-weights'", expected="auto, on or off", got=self.affine)
        if self.group and (self.group < LEAST_GROUP or self.group & (self.group - 1)):
            expected = f"0, or a power of two of at least {LEAST_GROUP}"
            raise PassError("bad value for option 'group'", where="pass 'quantize-weights'", expected=expected, got=str(self.group))
        if self.kind in FLOATS and (self.group or self.affine == "on"):
            got = f"group={self.group}" if self.group else "affine=on"
            raise PassError(f"{self.kind} takes no option", where="pass 'quantize-weights'", expected="one scale a row", got=got)

    def records(self, function: FuncOp, known: Mapping[str, Sequence[WeightOp]]) -> list[dict[str, str]]:
        """Quantizes what can be; what became of each linear."""
        made: dict[SSAValue, tuple[SSAValue, SSAValue, SSAValue | None, PackingAttr]] = {}
        records: list[dict[str, str]] = []
        for linear in [op for op in function.body.block.ops if isinstance(op, LinearOp)]:
            kind = self.head if location(linear) == HEAD else self.kind
            reason = self.refusal(linear, kind, known)
            if reason:
                records.append(entry("not_quantized", subject(linear), reason))
                continue
            columns = shape_of(linear.weight)[1]
            packing = PackingAttr.of(kind, self.group_of(kind, columns) or columns)
            affine = kind not in FLOATS and (self.affine == "on" or (self.affine == "auto" and kind == "int4"))
            if linear.weight not in made:
                made[linear.weight] = pack(linear, packing, affine=affine, clip=self.clip)
            words, scales, mins, packing = made[linear.weight]
            whole = DequantizeOp(words, scales, mins, packing, like=linear.weight.type, loc=location(linear) or None)
            Rewriter.insert_op(whole, InsertPoint.before(linear))
            linear.operands[1] = whole.result
            size = "whole rows" if packing.group.data == columns else f"groups of {packing.group.data}"
            records.append(entry("quantized", subject(linear), f"{kind}, {size}{', each with its least value' if affine else ''}"))
        return records or [entry("not_quantized", f"@{function.sym_name.data}", "no linear")]

    def group_of(self, kind: str, columns: int) -> int:
        """Columns that share a scale; 0 for whole rows."""
        if kind in FLOATS:
            return 0
        if self.group or kind == "int8":
            return self.group
        return next((group for group in GROUPS if columns % group == 0), GROUPS[-1])

    def refusal(self, linear: LinearOp, kind: str, known: Mapping[str, Sequence[WeightOp]]) -> str:
        """Why a linear keeps its weight; empty where it does not."""
        where = location(linear)
        if kind == "none":
            return "the head keeps its weight: head=none" if where == HEAD else "kind=none"
        if any(fnmatchcase(where, pattern) for pattern in self.skip.split()):
            return f"skip names {where}"
        weights = carried(linear.weight)
        if weights is None:
            return f"its weight comes from {origin(linear.weight)}, expected a plain weight"
        for name in dict.fromkeys(weight.weight_name.data for weight in weights):
            others = sorted({subject(use.operation) for use in readers(known[name]) if not is_product(use.operation, use.index)})
            if others:
                return f"weight {name} is also read by {others[0]}"
        columns = shape_of(linear.weight)[1]
        group = self.group_of(kind, columns)
        if group and columns % group:
            return f"{columns} columns are no whole groups of {group}"
        per_word = PackingAttr.of(kind, group or columns).per_word
        if columns % per_word:
            return f"{columns} columns are no whole words of {per_word}"
        return ""


def is_product(op: Operation, operand: int) -> bool:
    """Whether `operand` of `op` is multiplied as a linear's weight, packed or not."""
    return (isinstance(op, LinearOp) and operand == 1) or isinstance(op, DequantizeOp)


def pack(linear: LinearOp, packing: PackingAttr, *, affine: bool, clip: bool) -> tuple[SSAValue, SSAValue, SSAValue | None, PackingAttr]:
    """The ops that make words, scales and (with `affine`) mins of a linear's weight, put before it."""
    weight = linear.weight
    scales = GroupScalesOp(weight, packing, affine=affine, clip=clip)
    mins = GroupMinsOp(weight, scales.result, packing) if affine else None
    words = PackWeightOp(weight, scales.result, None if mins is None else mins.result, packing)
    made: list[Operation] = [scales, *([] if mins is None else [mins]), words]
    for op in made:
        Rewriter.insert_op(op, InsertPoint.before(linear))
    return words.result, scales.result, None if mins is None else mins.result, packing


def entry(verdict: str, what: str, reason: str) -> dict[str, str]:
    """A record of `lamella.folds`."""
    return {"verdict": verdict, "kind": "weight", "what": what, "reason": reason}

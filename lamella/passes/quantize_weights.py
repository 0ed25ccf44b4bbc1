"""Linears, experts and embeddings with float weights enter; those that read packed words and scales, made once at load time, leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

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
from lamella.dialects.transformer import DequantizeOp, EmbeddingOp, ExpertsOp, GroupMinsOp, GroupScalesOp, LinearOp, PackWeightOp, WeightOp
from lamella.errors import PassError, nearest
from lamella.passes.weight_expressions import carried, handles, origin, readers

KINDS, SAME = ("none", *BITS), "same"
HEAD, EMBED = "lm_head", "embed"
"""Where the linear comes from that makes the logits, and the table of embeddings of tokens."""
EXPERTS = {3: "gate", 4: "up", 5: "down"}
"""Operands of `transformer.experts` that are weights, and what they are called behind its location."""
ROUTERS = (".router", ".shared_gate")
"""Ends of the locations of linears that choose among experts, or weigh one."""
Reader: TypeAlias = "LinearOp | EmbeddingOp | ExpertsOp"
"""What may read a weight that is packed."""
Parts: TypeAlias = "tuple[SSAValue, SSAValue, SSAValue | None, PackingAttr]"
"""Words, scales, perhaps least values, and how they are packed."""
GROUPS = (128, 64, 32)
"""Columns that share a scale of int4 unless told otherwise: the first that divides a row."""
LEAST_GROUP = 16
"""Columns: the fewest that a tensor core multiplies at a time."""


@dataclass(frozen=True)
class QuantizeWeights(ModulePass):
    """Store the weights of linears and experts as numbers of a few bits, with a scale for each group of columns.

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
    linears, with blanks between them, and of experts (`layers.0.ffn.experts.down`); `head` is the kind of the linear that makes the logits, `same` that of the others. An embedding that is
    tied to the head is packed with it, once for both: rows of tokens are unpacked where they are gathered. `embed` is the kind of one of its own.

    Weights of all experts of a layer are one, and packed as one. A weight keeps its floats where it is no plain one, another op reads it too,
    it is a router's, or its columns are no whole groups. Each function says so in `lamella.folds`. Expects the layout settled (`propagate-layout`); run
    `fold-constants` afterwards, which moves what makes the words to load time.
    """

    name = "quantize-weights"

    kind: str = "none"
    group: int = 0
    skip: str = ""
    head: str = "none"
    embed: str = "none"
    affine: str = "auto"
    clip: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.check()
        if self.kind == self.head_kind == self.embed == "none":
            return
        known = handles(op)
        for function in signature.steps(op):
            signature.record(function, self.records(function, known))

    @property
    def head_kind(self) -> str:
        """The kind of the linear that makes the logits."""
        return self.kind if self.head == SAME else self.head

    def check(self) -> None:
        """Raises PassError for an option that says nothing."""
        for name, kind, known in (("kind", self.kind, KINDS), ("head", self.head, (*KINDS, SAME)), ("embed", self.embed, KINDS)):
            if kind not in known:
                raise PassError(
                    f"unknown {name} '{kind}'", where="pass 'quantize-weights'", expected=", ".join(known), remedy=nearest(kind, known)
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
        """Quantizes what can be; what became of each linear and of the embedding."""
        made: dict[SSAValue, Parts] = {}
        ops = list(function.body.block.ops)
        records: list[dict[str, str]] = []
        for op in ops:
            if isinstance(op, LinearOp):
                records.append(self.decide(op, 1, made, known))
            elif isinstance(op, ExpertsOp):
                records += [self.decide(op, operand, made, known) for operand in EXPERTS]
        tables = [op for op in ops if isinstance(op, EmbeddingOp) and location(op) == EMBED]
        records += [self.decide(op, 1, made, known) for op in tables if not isinstance(op.table.owner, DequantizeOp)]
        return records or [entry("not_quantized", f"@{function.sym_name.data}", "no linear")]

    def decide(self, op: Reader, operand: int, made: dict[SSAValue, Parts], known: Mapping[str, Sequence[WeightOp]]) -> dict[str, str]:
        """Packs the weight of a linear or of experts, or the table of an embedding, or leaves it; the record of that. `made`: what is packed already."""
        where, weight = place_of(op, operand), op.operands[operand]
        what = f"{subject(op)}{'.' + EXPERTS[operand] if isinstance(op, ExpertsOp) else ''}"
        kind = self.head_kind if where == HEAD else self.embed if isinstance(op, EmbeddingOp) else self.kind
        reason = self.refusal(op, operand, kind, known)
        if reason:
            return entry("not_quantized", what, reason)
        columns = shape_of(weight)[1]
        packing = PackingAttr.of(kind, self.group_of(kind, columns) or columns)
        affine = kind not in FLOATS and (self.affine == "on" or (self.affine == "auto" and kind == "int4"))
        users = [*(tied(op) if isinstance(op, LinearOp) else ()), op]
        if weight not in made:
            made[weight] = pack(weight, packing, users[0], affine=affine, clip=self.clip)
        words, scales, mins, packing = made[weight]
        # One for all: rows that are gathered and products then agree on how scales lie.
        whole = DequantizeOp(words, scales, mins, packing, like=weight.type, loc=where or None)
        Rewriter.insert_op(whole, InsertPoint.before(users[0]))
        for user in users:
            user.operands[operand] = whole.result
        size = "whole rows" if packing.group.data == columns else f"groups of {packing.group.data}"
        also = f", rows of {subject(users[0])} too" if len(users) > 1 else ""
        return entry("quantized", what, f"{kind}, {size}{', each with its least value' if affine else ''}{also}")

    def group_of(self, kind: str, columns: int) -> int:
        """Columns that share a scale; 0 for whole rows."""
        if kind in FLOATS:
            return 0
        if self.group or kind == "int8":
            return self.group
        return next((group for group in GROUPS if columns % group == 0), GROUPS[-1])

    def refusal(self, op: Reader, operand: int, kind: str, known: Mapping[str, Sequence[WeightOp]]) -> str:
        """Why a linear, experts or an embedding keep their weight; empty where they do not."""
        where = place_of(op, operand)
        if kind == "none":
            what = "the head" if where == HEAD else "the embedding" if isinstance(op, EmbeddingOp) else ""
            return f"{what} keeps its weight: {'head' if where == HEAD else 'embed'}=none" if what else "kind=none"
        if any(fnmatchcase(where, pattern) for pattern in self.skip.split()):
            return f"skip names {where}"
        if isinstance(op, LinearOp) and where.endswith(ROUTERS):
            return "it is small and decides which experts count"
        weights = carried(op.operands[operand])
        if weights is None:
            return f"its weight comes from {origin(op.operands[operand])}, expected a plain weight"
        together = {op, *(tied(op) if isinstance(op, LinearOp) else ())}
        for name in dict.fromkeys(weight.weight_name.data for weight in weights):
            uses = [use for use in readers(known[name]) if use.operation not in together]
            others = sorted(
                {subject(use.operation) for use in uses if isinstance(op, EmbeddingOp) or not is_product(use.operation, use.index)}
            )
            if others:
                return f"weight {name} is also read by {others[0]}"
        columns = shape_of(op.operands[operand])[1]
        group = self.group_of(kind, columns)
        if group and columns % group:
            return f"{columns} columns are no whole groups of {group}"
        per_word = PackingAttr.of(kind, group or columns).per_word
        if columns % per_word:
            return f"{columns} columns are no whole words of {per_word}"
        return ""


def place_of(op: Reader, operand: int) -> str:
    """Where a weight is, for patterns and records: the location of its linear, with the projection behind that of experts."""
    where = location(op)
    return f"{where}.{EXPERTS[operand]}" if isinstance(op, ExpertsOp) and where else where


def is_product(op: Operation, operand: int) -> bool:
    """Whether `operand` of `op` is multiplied as a weight of a linear or of experts, packed or not."""
    return (isinstance(op, LinearOp) and operand == 1) or (isinstance(op, ExpertsOp) and operand in EXPERTS) or isinstance(op, DequantizeOp)


def tied(linear: LinearOp) -> list[Operation]:
    """The embeddings that read the weight of the head `linear` as it is, in program order; none of another linear."""
    users = {use.operation for use in linear.weight.uses if isinstance(use.operation, EmbeddingOp)}
    block = linear.parent_block()
    return [op for op in block.ops if op in users] if users and block is not None and location(linear) == HEAD else []


def pack(weight: SSAValue, packing: PackingAttr, before: Operation, *, affine: bool, clip: bool) -> Parts:
    """The ops that make words, scales and (with `affine`) mins of a weight, put in front of the op `before`."""
    scales = GroupScalesOp(weight, packing, affine=affine, clip=clip)
    mins = GroupMinsOp(weight, scales.result, packing) if affine else None
    words = PackWeightOp(weight, scales.result, None if mins is None else mins.result, packing)
    made: list[Operation] = [scales, *([] if mins is None else [mins]), words]
    for op in made:
        Rewriter.insert_op(op, InsertPoint.before(before))
    return words.result, scales.result, None if mins is None else mins.result, packing


def entry(verdict: str, what: str, reason: str) -> dict[str, str]:
    """A record of `lamella.folds`."""
    return {"verdict": verdict, "kind": "weight", "what": what, "reason": reason}

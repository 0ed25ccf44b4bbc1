"""Norms with weights enter; norms without, and linears whose weights hold the norm's scale, leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects import signature
from lamella.dialects.attributes import element_of
from lamella.dialects.messages import location, subject
from lamella.dialects.transformer import (
    DequantizeOp,
    GroupScalesOp,
    LayerNormOp,
    LinearOp,
    PackWeightOp,
    RMSNormOp,
    ScaleColumnsOp,
    ShiftBiasOp,
    WeightOp,
)
from lamella.passes.weight_expressions import carried, handles, origin, readers

Norm = RMSNormOp | LayerNormOp


@dataclass(frozen=True)
class FoldNormScale(ModulePass):
    """Move the scale of a norm (and its shift, where every linear has a bias to take it) into the linears that read the norm.

    Before:
        %n = transformer.rms_norm %x, %g {eps = 1.0e-05} : (tensor<?x64xf32, …>, tensor<64xf32>) -> tensor<?x64xf32, …>
        %y = transformer.linear %n, %w : (tensor<?x64xf32, …>, tensor<96x64xf32>) -> tensor<?x96xf32, …>
    After:
        %n = transformer.rms_norm %x {eps = 1.0e-05} : (tensor<?x64xf32, …>) -> tensor<?x64xf32, …>
        %0 = transformer.scale_columns %w, %g : (tensor<96x64xf32>, tensor<64xf32>) -> tensor<96x64xf32>
        %y = transformer.linear %n, %0 : (tensor<?x64xf32, …>, tensor<96x64xf32>) -> tensor<?x96xf32, …>

    (n·diag(γ) + β) Wᵀ + b = n (W diag(γ))ᵀ + (b + W β). The product W diag(γ) is made in float32 and rounded once, and the step loses a
    rounding: that of the scaled norm. A weight that is packed as eight-bit floats while the model is loaded is scaled before: a float keeps as many
    bits of a small column as of a large one. Whole numbers do not, and columns that the scale makes small would be left few: linears of int8 and
    int4 keep the norm's scale in front.

    A norm keeps its weights where a reader is no linear, a linear's weight is read by other ops too (a tied embedding would be stored twice) or is no
    plain weight, a shift finds no bias, or the type is f16, in whose range γ·w can overflow or vanish. Each function says in `lamella.folds` what
    was folded, and what was not and why. Run `fold-constants` afterwards.
    """

    name = "fold-norm-scale"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        known = handles(op)
        for function in signature.steps(op):
            order = {inner: number for number, inner in enumerate(function.body.block.ops)}
            norms = [inner for inner in order if isinstance(inner, Norm) and inner.weight is not None]
            records = [Fold(norm, linears(norm, order), known).decide() for norm in norms]
            signature.record(function, records or [entry("not_folded", f"@{function.sym_name.data}", "no norm has a weight")])


@dataclass(frozen=True)
class Fold:
    """A norm, the linears that multiply it in program order, and the module's weights by name."""

    norm: Norm
    linears: Sequence[LinearOp]
    known: Mapping[str, Sequence[WeightOp]]

    def decide(self) -> dict[str, str]:
        """Folds the norm's weights, or leaves them; the record of that."""
        reason = self.refusal()
        if reason:
            return entry("not_folded", subject(self.norm), reason)
        floats: dict[Operation, SSAValue] = {}
        for linear in self.linears:
            rescale(linear, self.norm, floats)
        Rewriter.replace_op(self.norm, without_weights(self.norm))
        return entry("folded", subject(self.norm), f"into {', '.join(location(linear) or linear.name for linear in self.linears)}")

    def refusal(self) -> str:
        """Why the norm has to keep its weights; empty when it need not."""
        others = sorted({subject(use.operation) for use in self.norm.result.uses if use.operation not in self.linears or use.index})
        if others:
            return f"{others[0]} reads it and is no linear of it"
        if not self.linears:
            return "nothing reads it"
        if element_of(self.norm.result) == "f16":
            return "its scale times a weight can overflow or vanish in f16"
        if self.norm.heads is not None:
            return "it normalizes each head by itself"
        shift = shift_of(self.norm)
        for what, value in (("scale", self.norm.weight), ("shift", shift)):
            if value is not None and carried(value) is None:
                return f"its {what} comes from {origin(value)}, expected a weight"
        for linear in self.linears:
            if shift is not None and linear.bias is None:
                return f"{subject(linear)} has no bias to take the shift"
            reason = whole_numbers(linear.weight)
            if reason:
                return f"{subject(linear)} {reason}"
            for value in (floats_of(linear.weight), *([linear.bias] if shift is not None and linear.bias else [])):
                reason = self.fixed(linear, value)
                if reason:
                    return reason
        return ""

    def fixed(self, linear: LinearOp, value: SSAValue) -> str:
        """Why the operand `value` of `linear` may not change: it is no plain weight, or other ops read it too."""
        weights = carried(value)
        if weights is None:
            return f"{subject(linear)} takes {origin(value)}, expected a plain weight: one that is packed keeps its own scales"
        for name in dict.fromkeys(weight.weight_name.data for weight in weights):
            uses = [use for found in readers(self.known[name]) for use in through(found)]
            others = sorted({subject(use.operation) for use in uses if use.operation not in self.linears or use.index == 0})
            if others:
                return f"weight {name} is also used by {others[0]}"
        return ""


def packers(weight: SSAValue) -> list[Operation]:
    """The ops that make scales and words of a weight of floats when the model is loaded, in program order; none where it is not packed, or came packed."""
    whole = weight.owner
    if not isinstance(whole, DequantizeOp) or whole.mins is not None:
        return []
    scales, words = whole.scales.owner, whole.words.owner
    return [scales, words] if isinstance(scales, GroupScalesOp) and isinstance(words, PackWeightOp) and scales.w is words.w else []


def floats_of(weight: SSAValue) -> SSAValue:
    """The floats that a weight is, or is packed from when the model is loaded."""
    packed = packers(weight)
    return packed[0].operands[0] if packed else weight


def whole_numbers(weight: SSAValue) -> str:
    """Why the scale of a norm does not go into a weight that is packed at load time: it becomes whole numbers. Empty otherwise."""
    if packers(weight) and isinstance(weight.owner, DequantizeOp) and not weight.owner.packing.floats:
        return f"is rounded to {weight.owner.packing.kind.data}, whose steps are alike for all columns: those that the scale makes small would be left few"
    return ""


def through(use: Use) -> list[Use]:
    """The uses of what unpacks a weight, where `use` is one by that; else `use`."""
    return list(use.operation.results[0].uses) if isinstance(use.operation, DequantizeOp) else [use]


def linears(norm: Norm, order: Mapping[Operation, int]) -> list[LinearOp]:
    """The linears that multiply the norm, in program order."""
    found = {use.operation for use in norm.result.uses if isinstance(use.operation, LinearOp) and use.index == 0}
    return sorted(found, key=lambda linear: order[linear])


def without_weights(norm: Norm) -> Norm:
    """The same normalization, without scale and shift."""
    eps = norm.eps.value.data
    bare = RMSNormOp(norm.x, None, eps) if isinstance(norm, RMSNormOp) else LayerNormOp(norm.x, (), eps)
    bare.attributes.update(norm.attributes)
    bare.result.name_hint = norm.result.name_hint
    return bare


def shift_of(norm: Norm) -> SSAValue | None:
    """The norm's β, where it has one."""
    return norm.bias if isinstance(norm, LayerNormOp) else None


def rescale(linear: LinearOp, norm: Norm, floats: dict[Operation, SSAValue]) -> None:
    """Let `linear` multiply the bare norm: its weight takes the scale, its bias the shift.

    `floats` remembers what packed weights were made of before: linears may share one, which is scaled once.
    """
    scale, shift, packed = norm.weight, shift_of(norm), packers(linear.weight)
    assert scale is not None
    known = floats.get(packed[0]) if packed else None
    weight = floats_of(linear.weight) if known is None else known
    if known is None:
        offset = norm.offset.value.data if isinstance(norm, RMSNormOp) and norm.offset else 0.0
        scaled = ScaleColumnsOp(weight, scale, offset=offset)
        Rewriter.insert_op(scaled, InsertPoint.before(packed[0] if packed else linear))
        for op in packed:
            op.operands[0] = scaled.result
            floats[op] = weight
        if not packed:
            linear.operands[1] = scaled.result
    if shift is not None and linear.bias is not None:
        shifted = ShiftBiasOp(linear.bias, weight, shift)
        Rewriter.insert_op(shifted, InsertPoint.before(linear))
        linear.operands[2] = shifted.result


def entry(verdict: str, what: str, reason: str) -> dict[str, str]:
    """A record of `lamella.folds`."""
    return {"verdict": verdict, "kind": "norm-scale", "what": what, "reason": reason}

"""Weights in few bits at level 2: the floats that packed words stand for."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AnyFloatConstr, Float8E4M3FNType, Float32Type, IntegerAttr, IntegerType, StringAttr, TensorType, f32, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.packing import PackingAttr, factors_of
from lamella.dialects.tile.structured import loc_attribute

Scales = TensorType.constr(AnyFloatConstr) | TensorType.constr(IntegerType(8))


@irdl_op_definition
class DequantizeOp(IRDLOperation):
    """words[O,W] i32 (fp8: [O,K] f8), scales[O,G] (, mins[O,G]) -> w[O,K] f32: scale·(q - zero), or scale·q + min; see `#transformer.packing`.

    Scales, and mins, of i8 are multiplied in f32 by super_scales[O,G/n] and super_mins[O,G/n] (`super`): n neighbours by one number of them.
    With `by_group` all of these are turned: [G,O], [G/n,O]; `by_group = r` keeps r neighbours of a row together, [G/r,O·r]. Beside the contraction that reads it, it is how that contraction reads its weight: the floats are never stored.
    """

    name = "tile.dequantize"

    words = operand_def(TensorType.constr(IntegerType(32)) | TensorType.constr(Float8E4M3FNType()))
    scales = operand_def(Scales)
    mins = opt_operand_def(Scales)
    super_scales = opt_operand_def(TensorType.constr(AnyFloatConstr))
    super_mins = opt_operand_def(TensorType.constr(AnyFloatConstr))
    packing = prop_def(PackingAttr)
    by_group = opt_prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$words `,` $scales (`,` $mins^)? (`super` $super_scales^)? (`,` $super_mins^)? `as` $packing attr-dict "
        "`:` type($words) `,` type($scales) (`,` type($mins)^)? (`super` type($super_scales)^)? (`,` type($super_mins)^)? `->` type($result)"
    )

    def __init__(
        self,
        words: SSAValue,
        scales: SSAValue,
        mins: SSAValue | None,
        packing: PackingAttr,
        *,
        super_scales: SSAValue | None = None,
        super_mins: SSAValue | None = None,
        by_group: int = 0,
        loc: str | None = None,
    ) -> None:
        rows, width = shape_of(words)
        super().__init__(
            operands=[words, scales, mins, super_scales, super_mins],
            properties={"packing": packing, "by_group": IntegerAttr(by_group, i64) if by_group else None},
            result_types=[TensorType(f32, [rows, width * packing.per_word])],
            attributes=loc_attribute(loc),
        )

    @classmethod
    def of(cls, parts: Sequence[SSAValue], packing: PackingAttr, *, by_group: int = 0, loc: str | None = None) -> DequantizeOp:
        """One of its operands in order."""
        mins, scale, least = factors_of(parts)
        return cls(parts[0], parts[1], mins, packing, super_scales=scale, super_mins=least, by_group=by_group, loc=loc)

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return shape_of(self.scales)[0] * self.together if self.together else shape_of(self.scales)[1]

    @property
    def together(self) -> int:
        """Neighbouring groups of a row that lie side by side where scales lie group by group; 0: all, they lie row by row."""
        return self.by_group.value.data if self.by_group else 0

    @property
    def per_super(self) -> int:
        """Neighbouring groups whose scales, and mins, are multiplied by one number; 0: none are."""
        return 0 if self.super_scales is None else self.groups // shape_of(self.super_scales)[0 if self.by_group else 1]

    def verify_(self) -> None:
        weight, words, scales = (shape_of(v) for v in (self.result, self.words, self.scales))
        reason = self.packing.mismatch(weight, words, scales, element_type_of(self.words), by_group=self.together)
        if reason is not None:
            raise VerifyException(f"{subject(self)}: {reason}")
        if self.mins is not None and shape_of(self.mins) != shape_of(self.scales):
            raise VerifyException(
                f"{subject(self)}: mins have shape {shape_of(self.mins)}, expected {shape_of(self.scales)}, that of scales"
            )
        if self.mins is not None and self.packing.floats:
            raise VerifyException(f"{subject(self)}: has mins, expected none: {self.packing.kind.data} has a sign")
        reason = self.packing.super_mismatch(self.scales, self.mins, self.super_scales, self.super_mins, by_group=self.together)
        if reason is not None:
            raise VerifyException(f"{subject(self)}: {reason}")

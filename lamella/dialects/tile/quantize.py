"""Weights in few bits at level 2: the floats that packed words stand for."""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloatConstr, Float8E4M3FNType, Float32Type, IntegerAttr, IntegerType, StringAttr, TensorType, f32, i1
from xdsl.ir import SSAValue
from xdsl.irdl import (
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
from lamella.dialects.packing import PackingAttr
from lamella.dialects.tile.structured import loc_attribute


@irdl_op_definition
class DequantizeOp(IRDLOperation):
    """words[O,W] i32 (fp8: [O,K] f8), scales[O,G] (, mins[O,G]) -> w[O,K] f32: scale·(q - zero), or scale·q + min; see `#transformer.packing`.

    With `by_group` scales and mins are [G,O]. Beside the contraction that reads it, it is how that contraction reads its weight: the floats are never stored.
    """

    name = "tile.dequantize"

    words = operand_def(TensorType.constr(IntegerType(32)) | TensorType.constr(Float8E4M3FNType()))
    scales = operand_def(TensorType.constr(AnyFloatConstr))
    mins = opt_operand_def(TensorType.constr(AnyFloatConstr))
    packing = prop_def(PackingAttr)
    by_group = opt_prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$words `,` $scales (`,` $mins^)? `as` $packing attr-dict `:` type($words) `,` type($scales) (`,` type($mins)^)? `->` type($result)"
    )

    def __init__(
        self,
        words: SSAValue,
        scales: SSAValue,
        mins: SSAValue | None,
        packing: PackingAttr,
        *,
        by_group: bool = False,
        loc: str | None = None,
    ) -> None:
        rows, width = shape_of(words)
        super().__init__(
            operands=[words, scales, mins],
            properties={"packing": packing, "by_group": IntegerAttr(1, i1) if by_group else None},
            result_types=[TensorType(f32, [rows, width * packing.per_word])],
            attributes=loc_attribute(loc),
        )

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return shape_of(self.scales)[0 if self.by_group else 1]

    def verify_(self) -> None:
        weight, words, scales = (shape_of(v) for v in (self.result, self.words, self.scales))
        reason = self.packing.mismatch(weight, words, scales, element_type_of(self.words), by_group=self.by_group is not None)
        if reason is not None:
            raise VerifyException(f"{subject(self)}: {reason}")
        if self.mins is not None and shape_of(self.mins) != shape_of(self.scales):
            raise VerifyException(
                f"{subject(self)}: mins have shape {shape_of(self.mins)}, expected {shape_of(self.scales)}, that of scales"
            )
        if self.mins is not None and self.packing.floats:
            raise VerifyException(f"{subject(self)}: has mins, expected none: {self.packing.kind.data} has a sign")

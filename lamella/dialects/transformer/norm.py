"""Normalizations of rows."""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr, f64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.transformer.types import FloatTensor, TransformerOp, Value, located


@irdl_op_definition
class RMSNormOp(TransformerOp):
    """x[N,E], weight[E] -> x: x·rsqrt(mean x² + eps) in float32, rounded to x's element type, times weight."""

    name = "transformer.rms_norm"

    x = operand_def(FloatTensor)
    weight = operand_def(FloatTensor)
    eps = prop_def(FloatAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, weight: Value, eps: float, *, loc: str | None = None) -> None:
        super().__init__(
            operands=[x, weight],
            properties={"eps": FloatAttr(eps, f64)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        x = self.dimensions("x", self.x)
        if not x:
            raise self.fail("x has rank 0, expected a last axis to normalize")
        self.expect_shape("weight", self.weight, x[-1:], "the last axis of x")
        self.expect_element("weight", self.weight, self.x, "that of x")
        self.expect_like("result", self.result, self.x, "x")

"""Normalizations of rows, with or without weights: `fold-norm-scale` moves those into the next linears."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, f64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.traits import Pure

from lamella.dialects.transformer.types import FloatTensor, TransformerOp, Value, located


@irdl_op_definition
class RMSNormOp(TransformerOp):
    """x[N,E] (, weight[E]) -> x: x·rsqrt(mean x² + eps) in float32, rounded to x's element type, times weight.

    With `offset` (Gemma) the scale is offset + weight and the product is rounded once, as it is without a weight.
    """

    name = "transformer.rms_norm"

    x = operand_def(FloatTensor)
    weight = opt_operand_def(FloatTensor)
    eps = prop_def(FloatAttr)
    offset = opt_prop_def(FloatAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, weight: Value | None, eps: float, *, offset: float | None = None, loc: str | None = None) -> None:
        super().__init__(
            operands=[x, weight],
            properties={"eps": FloatAttr(eps, f64), "offset": None if offset is None else FloatAttr(offset, f64)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        x = self.dimensions("x", self.x)
        if not x:
            raise self.fail("x has rank 0, expected a last axis to normalize")
        if self.weight is not None:
            self.expect_shape("weight", self.weight, x[-1:], "the last axis of x")
            self.expect_element("weight", self.weight, self.x, "that of x")
        elif self.offset is not None:
            raise self.fail(f"offset is {self.offset.value.data} and there is no weight, expected both or neither")
        self.expect_like("result", self.result, self.x, "x")


@irdl_op_definition
class LayerNormOp(TransformerOp):
    """x[N,E] (, weight[E] (, bias[E])) -> x: (x - mean)·rsqrt(variance + eps)·weight + bias in float32, rounded once."""

    name = "transformer.layer_norm"

    x = operand_def(FloatTensor)
    parameters = var_operand_def(FloatTensor)
    eps = prop_def(FloatAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, parameters: Sequence[Value], eps: float, *, loc: str | None = None) -> None:
        super().__init__(
            operands=[x, list(parameters)],
            properties={"eps": FloatAttr(eps, f64)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    @property
    def weight(self) -> SSAValue | None:
        """The scale of each column, where there is one."""
        return self.parameters[0] if self.parameters else None

    @property
    def bias(self) -> SSAValue | None:
        """The shift of each column, where there is one."""
        return self.parameters[1] if len(self.parameters) > 1 else None

    def verify_(self) -> None:
        x = self.dimensions("x", self.x)
        if not x:
            raise self.fail("x has rank 0, expected a last axis to normalize")
        if len(self.parameters) > 2:
            raise self.fail(f"has {len(self.parameters)} parameters, expected a weight and a bias at most")
        for what, value in zip(("weight", "bias"), self.parameters, strict=False):
            self.expect_shape(what, value, x[-1:], "the last axis of x")
            self.expect_element(what, value, self.x, "that of x")
        self.expect_like("result", self.result, self.x, "x")

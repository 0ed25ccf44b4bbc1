"""Normalizations of rows, with or without weights: `fold-norm-scale` moves those into the next linears."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, f64, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.traits import Pure

from lamella.dialects.transformer.types import Dimension, FloatTensor, TransformerOp, Value, located, order_of


class NormOp(TransformerOp):
    """What norms share: with `heads`, each of that many parts of a row is normalized by itself, and a weight is for one part or for the row."""

    eps = prop_def(FloatAttr)
    heads = opt_prop_def(IntegerAttr)

    traits = traits_def(Pure())

    def widths(self, x: SSAValue) -> tuple[Dimension, ...]:
        """What the size of a parameter may be. Raises VerifyException where the heads do not divide the rows of x."""
        shape = self.dimensions("x", x)
        if not shape:
            raise self.fail("x has rank 0, expected a last axis to normalize")
        if self.heads is None:
            return shape[-1:]
        heads, width = self.heads.value.data, shape[-1]
        if heads < 1 or not isinstance(width, int) or width % heads:
            raise self.fail(f"x has rows of {width}, expected a multiple of heads = {heads}")
        return (width, width // heads)

    def expect_parameter(self, what: str, value: SSAValue, x: SSAValue) -> None:
        """Raises VerifyException unless `value` is a vector for the rows of x, or for each head of them."""
        widths, shape = self.widths(x), self.dimensions(what, value)
        if shape not in [(width,) for width in widths]:
            why = "the last axis of x" if self.heads is None else "one head of x"
            self.expect_shape(what, value, widths[-1:], why)
        self.expect_element(what, value, x, "that of x")
        self.expect_order(what, value, order_of(x.type), "that of x")


def norm_properties(eps: float, heads: int) -> dict[str, Attribute | None]:
    """The properties that norms share."""
    return {"eps": FloatAttr(eps, f64), "heads": IntegerAttr(heads, i64) if heads > 1 else None}


@irdl_op_definition
class RMSNormOp(NormOp):
    """x[N,E] (, weight[E]) -> x: x·rsqrt(mean x² + eps) in float32, rounded to x's element type, times weight.

    With `offset` (Gemma) the scale is offset + weight and the product is rounded once, as it is without a weight.
    With `heads` each head of a row is normalized by itself (QK-norm), and the weight is [E/heads], or [E].
    """

    name = "transformer.rms_norm"

    x = operand_def(FloatTensor)
    weight = opt_operand_def(FloatTensor)
    offset = opt_prop_def(FloatAttr)
    result = result_def(FloatTensor)

    def __init__(
        self, x: Value, weight: Value | None, eps: float, *, offset: float | None = None, heads: int = 1, loc: str | None = None
    ) -> None:
        super().__init__(
            operands=[x, weight],
            properties={**norm_properties(eps, heads), "offset": None if offset is None else FloatAttr(offset, f64)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        self.widths(self.x)
        if self.weight is not None:
            self.expect_parameter("weight", self.weight, self.x)
        elif self.offset is not None:
            raise self.fail(f"offset is {self.offset.value.data} and there is no weight, expected both or neither")
        self.expect_like("result", self.result, self.x, "x")
        self.expect_order("result", self.result, order_of(self.x.type), "that of x")


@irdl_op_definition
class LayerNormOp(NormOp):
    """x[N,E] (, weight[E] (, bias[E])) -> x: (x - mean)·rsqrt(variance + eps)·weight + bias in float32, rounded once.

    With `heads` each head of a row is normalized by itself, and weight and bias are [E/heads], or [E].
    """

    name = "transformer.layer_norm"

    x = operand_def(FloatTensor)
    parameters = var_operand_def(FloatTensor)
    result = result_def(FloatTensor)

    def __init__(self, x: Value, parameters: Sequence[Value], eps: float, *, heads: int = 1, loc: str | None = None) -> None:
        super().__init__(
            operands=[x, list(parameters)],
            properties=norm_properties(eps, heads),
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
        self.widths(self.x)
        if len(self.parameters) > 2:
            raise self.fail(f"has {len(self.parameters)} parameters, expected a weight and a bias at most")
        for what, value in zip(("weight", "bias"), self.parameters, strict=False):
            self.expect_parameter(what, value, self.x)
        self.expect_like("result", self.result, self.x, "x")
        self.expect_order("result", self.result, order_of(self.x.type), "that of x")

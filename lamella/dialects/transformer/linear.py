"""Products with checkpoint weights."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.attributes import ResultTyped, element_of, element_type_of
from lamella.dialects.transformer.types import FloatTensor, TransformerOp, Value, dimensions_of, located, named_tensor, order_of, shown


@irdl_op_definition
class LinearOp(TransformerOp, ResultTyped):
    """x[N,K], weight[O,K] (, bias[O]) -> [N,O]: x @ weightᵀ (+ bias), accumulated in float32, rounded once to the result's element type.

    The weight has x's element type, or is f32: what a `dequantize` makes of packed words. A bias has x's, or, where x is what `dequantize_rows` makes,
    the result's.
    """

    name = "transformer.linear"

    x = operand_def(FloatTensor)
    weight = operand_def(FloatTensor)
    bias = opt_operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(
        self, x: Value, weight: Value, bias: Value | None = None, *, element: Attribute | None = None, loc: str | None = None
    ) -> None:
        x, weight = SSAValue.get(x), SSAValue.get(weight)
        result = named_tensor(
            element or element_type_of(x), [*dimensions_of(x.type)[:-1], dimensions_of(weight.type)[0]], order_of(weight.type)
        )
        super().__init__(operands=[x, weight, bias], result_types=[result], attributes=located(loc))

    def verify_(self) -> None:
        rows, inner = self.dimensions("x", self.x, 2)
        outputs, _ = self.dimensions("weight", self.weight, 2)
        self.expect_shape("weight", self.weight, (outputs, inner), "the last axis of x")
        if element_of(self.weight) != "f32":
            self.expect_element("weight", self.weight, self.x, "that of x")
        if self.bias is not None:
            self.expect_shape("bias", self.bias, (outputs,), "the outputs of weight")
            if element_of(self.bias) != element_of(self.result):
                self.expect_element("bias", self.bias, self.x, "that of x")
            self.expect_order("bias", self.bias, order_of(self.weight.type), "that of the rows of weight")
        self.expect_shape("result", self.result, (rows, outputs), "the rows of x and the outputs of weight")
        self.expect_order("x", self.x, None, "that of the columns of weight")
        self.expect_order("result", self.result, order_of(self.weight.type), "that of the rows of weight")


@irdl_op_definition
class SliceColumnsOp(TransformerOp):
    """x[N,E] -> [N,size]: the columns from `start` on. Of a linear's result it is what `split-linears` turns into a linear of its own."""

    name = "transformer.slice_columns"

    x = operand_def(FloatTensor)
    start = prop_def(IntegerAttr)
    size = prop_def(IntegerAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, *, start: int, size: int, loc: str | None = None) -> None:
        value = SSAValue.get(x)
        super().__init__(
            operands=[value],
            properties={"start": IntegerAttr(start, i64), "size": IntegerAttr(size, i64)},
            result_types=[named_tensor(element_type_of(value), [*dimensions_of(value.type)[:-1], size])],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        shape, start, size = self.dimensions("x", self.x, 2), self.start.value.data, self.size.value.data
        if not isinstance(shape[1], int) or start < 0 or size < 1 or start + size > shape[1]:
            raise self.fail(f"x has shape {shown(shape)}, expected columns {start} to {start + size}")
        self.expect_shape("result", self.result, (shape[0], size), "the rows of x and the columns taken")
        self.expect_element("result", self.result, self.x, "that of x")

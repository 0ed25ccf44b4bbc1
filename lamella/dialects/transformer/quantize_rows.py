"""Activations in eight bits: each row of x as small numbers with one scale, and what they stand for in front of a linear."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, f8E4M3FN, f32, i8
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.transformer.types import FloatTensor, TensorOf, TransformerOp, Value, WideTensor, dimensions_of, located, named_tensor

ROW_KINDS: dict[str, Attribute] = {"int8": i8, "fp8": f8E4M3FN}
"""The element type of the numbers of each kind."""
ByteTensor = TensorOf(("i8", "f8"))
"""Activations in eight bits."""


@irdl_op_definition
class QuantizeRowsOp(TransformerOp):
    """x[N,K] -> values[N,K] i8 or f8E4M3FN, scales[N,1] f32: scale = max |x| / 127 (fp8: / 448) of each row, value = x / scale to the nearest, ties to even.

    A row of zeros gets values of 0 and a scale that is not 0. One that holds an infinity or NaN gets an infinite scale: whatever its values are,
    what they stand for is infinite or NaN, all of it.
    """

    name = "transformer.quantize_rows"

    x = operand_def(FloatTensor)
    kind = prop_def(StringAttr)
    values = result_def(ByteTensor)
    scales = result_def(WideTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, kind: str, *, loc: str | None = None) -> None:
        value = SSAValue.get(x)
        rows, columns = dimensions_of(value.type)
        super().__init__(
            operands=[value],
            properties={"kind": StringAttr(kind)},
            result_types=[named_tensor(ROW_KINDS[kind], [rows, columns]), named_tensor(f32, [rows, 1])],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        rows, columns = self.dimensions("x", self.x, 2)
        if self.kind.data not in ROW_KINDS:
            raise self.fail(f"kind is {self.kind.data}, expected {' or '.join(ROW_KINDS)}")
        self.expect_shape("values", self.values, (rows, columns), "the shape of x")
        self.expect_shape("scales", self.scales, (rows, 1), "one number for each row of x")
        expected = named_tensor(ROW_KINDS[self.kind.data], [rows, columns])
        if self.values.type != expected:
            raise self.fail(f"values have type {self.values.type}, expected {expected} for {self.kind.data}")
        self.expect_order("x", self.x, None, "that of the columns of weights")


@irdl_op_definition
class DequantizeRowsOp(TransformerOp):
    """values[N,K] i8 or f8E4M3FN, scales[N,1] f32 -> x[N,K] f32: value · scale.

    In front of a linear it is a view: the linear multiplies the values, and its sums are scaled.
    """

    name = "transformer.dequantize_rows"

    values = operand_def(ByteTensor)
    scales = operand_def(WideTensor)
    result = result_def(WideTensor)

    traits = traits_def(Pure())

    def __init__(self, values: Value, scales: Value, *, loc: str | None = None) -> None:
        numbers = SSAValue.get(values)
        super().__init__(
            operands=[numbers, scales],
            result_types=[named_tensor(f32, dimensions_of(numbers.type))],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        rows, columns = self.dimensions("values", self.values, 2)
        self.expect_shape("scales", self.scales, (rows, 1), "one number for each row of values")
        self.expect_shape("result", self.result, (rows, columns), "the shape of values")

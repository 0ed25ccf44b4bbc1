"""Elementwise ops: a class with a name and a kind each; operands and result have one type, names of dimensions included."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import FloatAttr, f64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.elementwise import Elementwise, kind_of
from lamella.dialects.transformer.types import FloatTensor, TransformerOp, Value, located, order_of


class UnaryOp(TransformerOp, Elementwise):
    """x -> x: `kind` of each element in float32, rounded to x's element type."""

    x = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[x], result_types=[SSAValue.get(x).type], attributes=located(loc))

    def verify_(self) -> None:
        self.expect_like("result", self.result, self.x, "x")


class BinaryOp(TransformerOp, Elementwise):
    """x, y -> x: `kind` of corresponding elements in float32, rounded to x's element type."""

    x = operand_def(FloatTensor)
    y = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, y: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[x, y], result_types=[SSAValue.get(x).type], attributes=located(loc))

    def verify_(self) -> None:
        self.expect_like("y", self.y, self.x, "x")
        self.expect_like("result", self.result, self.x, "x")


@irdl_op_definition
class SiLUOp(UnaryOp):
    """x·sigmoid(x)."""

    name = "transformer.silu"


@irdl_op_definition
class GELUOp(UnaryOp):
    """x·Φ(x), Φ the normal distribution."""

    name = "transformer.gelu"


@irdl_op_definition
class GELUTanhOp(UnaryOp):
    """GELU by its tanh approximation."""

    name = "transformer.gelu_tanh"


@irdl_op_definition
class ReLUOp(UnaryOp):
    """max(x, 0)."""

    name = "transformer.relu"


@irdl_op_definition
class TanhOp(UnaryOp):
    """Hyperbolic tangent."""

    name = "transformer.tanh"


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """1 / (1 + exp(-x))."""

    name = "transformer.sigmoid"


@irdl_op_definition
class ExpOp(UnaryOp):
    """e to the x."""

    name = "transformer.exp"


@irdl_op_definition
class SqrtOp(UnaryOp):
    """Square root."""

    name = "transformer.sqrt"


@irdl_op_definition
class NegOp(UnaryOp):
    """-x."""

    name = "transformer.neg"


@irdl_op_definition
class AddOp(BinaryOp):
    """x + y."""

    name = "transformer.add"


@irdl_op_definition
class SubOp(BinaryOp):
    """x - y."""

    name = "transformer.sub"


@irdl_op_definition
class MulOp(BinaryOp):
    """x·y."""

    name = "transformer.mul"


@irdl_op_definition
class DivOp(BinaryOp):
    """x / y."""

    name = "transformer.div"


@irdl_op_definition
class MaximumOp(BinaryOp):
    """The larger of x and y; NaN if either is."""

    name = "transformer.maximum"


@irdl_op_definition
class ScaleOp(TransformerOp):
    """x -> x: x·factor in float32, rounded to x's element type: the multiplier of embeddings, residuals or logits."""

    name = "transformer.scale"

    x = operand_def(FloatTensor)
    factor = prop_def(FloatAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, factor: float, *, loc: str | None = None) -> None:
        super().__init__(
            operands=[x],
            properties={"factor": FloatAttr(factor, f64)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        self.expect_like("result", self.result, self.x, "x")


@irdl_op_definition
class ScaleRowsOp(TransformerOp):
    """x[N,E], factor[N,1] -> x: each row times its own number in float32, rounded to x's element type: the gate of a shared expert."""

    name = "transformer.scale_rows"

    x = operand_def(FloatTensor)
    factor = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, factor: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[x, factor], result_types=[SSAValue.get(x).type], attributes=located(loc))

    def verify_(self) -> None:
        rows, _ = self.dimensions("x", self.x, 2)
        self.expect_shape("factor", self.factor, (rows, 1), "one number a row of x")
        self.expect_element("factor", self.factor, self.x, "that of x")
        self.expect_like("result", self.result, self.x, "x")
        self.expect_order("result", self.result, order_of(self.x.type), "that of x")


UNARY: Mapping[str, type[UnaryOp]] = {
    kind_of(op): op for op in (SiLUOp, GELUOp, GELUTanhOp, ReLUOp, TanhOp, SigmoidOp, ExpOp, SqrtOp, NegOp)
}
BINARY: Mapping[str, type[BinaryOp]] = {kind_of(op): op for op in (AddOp, SubOp, MulOp, DivOp, MaximumOp)}

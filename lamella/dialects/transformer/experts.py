"""Mixtures of experts: the router's choice, and the feed-forward layers it chooses."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i1, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.attributes import ResultTyped, element_of, element_type_of
from lamella.dialects.transformer.types import FloatTensor, IndexTensor, TransformerOp, Value, dimensions_of, located, named_tensor, shown


@irdl_op_definition
class RouteOp(TransformerOp, ResultTyped):
    """logits[N,E] -> weights[N,k], chosen[N,k] i32: the k likeliest experts of each token by a softmax in float32, likeliest first.

    Of equals the first expert counts as likelier. If `normalized`, the k weights are divided by their sum. Rounded once.
    """

    name = "transformer.route"

    logits = operand_def(FloatTensor)
    top_k = prop_def(IntegerAttr)
    normalized = prop_def(IntegerAttr)
    weights = result_def(FloatTensor)
    chosen = result_def(IndexTensor)

    traits = traits_def(Pure())

    def __init__(self, logits: Value, *, top_k: int, normalized: bool, element: Attribute | None = None, loc: str | None = None) -> None:
        value = SSAValue.get(logits)
        shape = [dimensions_of(value.type)[0], top_k]
        super().__init__(
            operands=[value],
            properties={"top_k": IntegerAttr(top_k, i64), "normalized": IntegerAttr(int(normalized), i1)},
            result_types=[named_tensor(element or element_type_of(value), shape), named_tensor(i32, shape)],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        rows, experts = self.dimensions("logits", self.logits, 2)
        top_k = self.top_k.value.data
        if not isinstance(experts, int) or not 1 <= top_k <= experts:
            raise self.fail(f"top_k is {top_k}, expected 1 to {experts}, the experts of logits")
        for what in ("weights", "chosen"):
            self.expect_shape(what, getattr(self, what), (rows, top_k), "the rows of logits and top_k")


@irdl_op_definition
class ExpertsOp(TransformerOp):
    """x[N,K], chosen[N,k] i32, weights[N,k], gate[E·F,K], up[E·F,K], down[E·K,F] -> [N,K]: of each token its chosen experts, weighted, added.

    Expert e has rows e·F … of gate and up and rows e·K … of down, and is down(activation(gate(x)) · up(x)), each step rounded to x's type;
    products with the weights are rounded too, and added in float32 in the order of `chosen`, rounded once. Matrices have x's element type, or
    are f32: what a `dequantize` makes of packed words.
    """

    name = "transformer.experts"

    x = operand_def(FloatTensor)
    chosen = operand_def(IndexTensor)
    weights = operand_def(FloatTensor)
    gate = operand_def(FloatTensor)
    up = operand_def(FloatTensor)
    down = operand_def(FloatTensor)
    experts = prop_def(IntegerAttr)
    activation = prop_def(StringAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(
        self,
        x: Value,
        chosen: Value,
        weights: Value,
        gate: Value,
        up: Value,
        down: Value,
        *,
        experts: int,
        activation: str,
        loc: str | None = None,
    ) -> None:
        super().__init__(
            operands=[x, chosen, weights, gate, up, down],
            properties={"experts": IntegerAttr(experts, i64), "activation": StringAttr(activation)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        rows, width = self.dimensions("x", self.x, 2)
        _, choices = self.dimensions("chosen", self.chosen, 2)
        self.expect_shape("chosen", self.chosen, (rows, choices), "the rows of x")
        self.expect_shape("weights", self.weights, (rows, choices), "the shape of chosen")
        shape, experts = self.dimensions("gate", self.gate, 2), self.experts.value.data
        outputs = shape[0]
        if not isinstance(outputs, int) or experts < 1 or outputs % experts:
            raise self.fail(f"gate has shape {shown(shape)}, expected rows in {experts} equal parts, one an expert")
        if not isinstance(width, int):
            raise self.fail(f"x has shape {shown((rows, width))}, expected a static number of columns")
        self.expect_shape("gate", self.gate, (outputs, width), "the last axis of x")
        self.expect_shape("up", self.up, (outputs, width), "the shape of gate")
        self.expect_shape("down", self.down, (experts * width, outputs // experts), "the columns of x and the rows of gate of each expert")
        for what in ("gate", "up", "down"):
            if element_of(getattr(self, what)) != "f32":
                self.expect_element(what, getattr(self, what), self.x, "that of x")
        self.expect_like("result", self.result, self.x, "x")

"""The last ops of a step: holding back tokens that the text has, choosing tokens, and counting on."""

from __future__ import annotations

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.transformer.types import IndexTensor, TransformerOp, Value, WideTensor, dimensions_of, located, named_tensor


@irdl_op_definition
class PenalizeOp(TransformerOp):
    """logits[R,V] f32, factors[R,V] f32 -> [R,V] f32: a logit that is not negative divided by its factor, a negative one multiplied by it.

    A factor of 1 changes nothing. CTRL, arXiv 1909.05858, with the rule for negative logits of Hugging Face transformers.
    """

    name = "transformer.penalize"

    logits = operand_def(WideTensor)
    factors = operand_def(WideTensor)
    result = result_def(WideTensor)

    traits = traits_def(Pure())

    def __init__(self, logits: Value, factors: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[logits, factors], result_types=[SSAValue.get(logits).type], attributes=located(loc))

    def verify_(self) -> None:
        self.expect_like("factors", self.factors, self.logits, "logits")
        self.expect_like("result", self.result, self.logits, "logits")


@irdl_op_definition
class MarkOp(TransformerOp):
    """factors[R,V] f32, tokens[R], penalty[R] f32 -> [R,V] f32: the factors with that of row r's token replaced by the row's penalty."""

    name = "transformer.mark"

    factors = operand_def(WideTensor)
    tokens = operand_def(IndexTensor)
    penalty = operand_def(WideTensor)
    result = result_def(WideTensor)

    traits = traits_def(Pure())

    def __init__(self, factors: Value, tokens: Value, penalty: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[factors, tokens, penalty], result_types=[SSAValue.get(factors).type], attributes=located(loc))

    def verify_(self) -> None:
        rows, _ = self.dimensions("factors", self.factors, 2)
        self.expect_shape("tokens", self.tokens, (rows,), "the rows of factors")
        self.expect_shape("penalty", self.penalty, (rows,), "the rows of factors")
        self.expect_like("result", self.result, self.factors, "factors")


@irdl_op_definition
class SampleOp(TransformerOp):
    """logits[R,V] f32, temperature[R] f32, top_k[R], top_p[R] f32, min_p[R] f32, seed[R], position[R] -> tokens [R] i32.

    Greedy where temperature is 0; position is that of the new token. The generator is counter-based, so the op is pure.
    """

    name = "transformer.sample"

    logits = operand_def(WideTensor)
    temperature = operand_def(WideTensor)
    top_k = operand_def(IndexTensor)
    top_p = operand_def(WideTensor)
    min_p = operand_def(WideTensor)
    seed = operand_def(IndexTensor)
    position = operand_def(IndexTensor)
    result = result_def(IndexTensor)

    traits = traits_def(Pure())

    def __init__(
        self,
        logits: Value,
        temperature: Value,
        top_k: Value,
        top_p: Value,
        min_p: Value,
        seed: Value,
        position: Value,
        *,
        loc: str | None = None,
    ) -> None:
        rows = dimensions_of(SSAValue.get(logits).type)[:1]
        super().__init__(
            operands=[logits, temperature, top_k, top_p, min_p, seed, position],
            result_types=[named_tensor(i32, rows)],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        rows, _ = self.dimensions("logits", self.logits, 2)
        for what in ("temperature", "top_k", "top_p", "min_p", "seed", "position", "result"):
            self.expect_shape(what, getattr(self, what), (rows,), "the rows of logits")


@irdl_op_definition
class AdvanceOp(TransformerOp):
    """x i32 -> x + 1: the position, or the context length, of the next step."""

    name = "transformer.advance"

    x = operand_def(IndexTensor)
    result = result_def(IndexTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[x], result_types=[SSAValue.get(x).type], attributes=located(loc))

    def verify_(self) -> None:
        self.expect_like("result", self.result, self.x, "x")

"""Handles of checkpoint tensors: the IR names them, the runtime holds them; and what may be computed from them before any step runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, f64, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.traits import Pure

from lamella.dialects.attributes import element_type_of
from lamella.dialects.transformer.types import (
    FloatTensor,
    Order,
    StoredTensor,
    TransformerOp,
    Value,
    dimensions_of,
    located,
    named_tensor,
    order_of,
    ordered,
    shown,
)


@irdl_op_definition
class WeightOp(TransformerOp):
    """A tensor by its canonical name, static in shape: the checkpoint's, or one that `@transform_weights` makes of them."""

    name = "transformer.weight"

    weight_name = prop_def(StringAttr, prop_name="name")
    result = result_def(StoredTensor)

    traits = traits_def(Pure())
    assembly_format = "$name attr-dict `:` type($result)"

    def __init__(self, name: str, type: Attribute) -> None:
        super().__init__(properties={"name": StringAttr(name)}, result_types=[type])

    def verify_(self) -> None:
        shape = self.dimensions("result", self.result)
        if any(isinstance(size, str) for size in shape):
            raise self.fail(f"{self.weight_name.data} has shape {shown(shape)}, expected static dimensions")


class WeightTransform(TransformerOp):
    """What ops on weights share: they have no lowering, `fold-constants` moves them to load time. The first operand gives the result its name."""

    SUFFIX: ClassVar[str]
    """Appended to the name of the first operand's weight: `layers.0.attn.q_proj.paired`."""


@irdl_op_definition
class PairRowsOp(WeightTransform):
    """w[H·head_dim, …] -> same: rows j and j + rotary_dim/2 of each head become neighbours 2j and 2j + 1; rows from rotary_dim on stay."""

    name = "transformer.pair_rows"
    SUFFIX: ClassVar[str] = "paired"

    w = operand_def(StoredTensor)
    head_dim = prop_def(IntegerAttr)
    rotary_dim = prop_def(IntegerAttr)
    result = result_def(StoredTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, *, head_dim: int, rotary_dim: int, loc: str | None = None) -> None:
        super().__init__(
            operands=[w],
            properties={"head_dim": IntegerAttr(head_dim, i64), "rotary_dim": IntegerAttr(rotary_dim, i64)},
            result_types=[ordered(SSAValue.get(w).type, Order(head_dim, rotary_dim))],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        shape, head, rotary = self.dimensions("w", self.w), self.head_dim.value.data, self.rotary_dim.value.data
        if head < 1 or not shape or not isinstance(shape[0], int) or shape[0] % head:
            raise self.fail(f"w has shape {shown(shape)}, expected rows in heads of {head}")
        if rotary % 2 or not 0 < rotary <= head:
            raise self.fail(f"rotary_dim is {rotary}, expected an even number up to {head}, the head size")
        self.expect_like("result", self.result, self.w, "w")
        self.expect_order("w", self.w, None, "which has no pairs yet")
        self.expect_order("result", self.result, Order(head, rotary), "head_dim and rotary_dim")


@irdl_op_definition
class ScaleColumnsOp(WeightTransform):
    """w[O,K], gamma[K] -> w: each column times offset + gamma (offset: 0 where there is none), in float32, rounded once."""

    name = "transformer.scale_columns"
    SUFFIX: ClassVar[str] = "scaled"

    w = operand_def(FloatTensor)
    gamma = operand_def(FloatTensor)
    offset = opt_prop_def(FloatAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, gamma: Value, *, offset: float = 0.0, loc: str | None = None) -> None:
        super().__init__(
            operands=[w, gamma],
            properties={"offset": FloatAttr(offset, f64)} if offset else {},
            result_types=[SSAValue.get(w).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        _, inner = self.dimensions("w", self.w, 2)
        self.expect_shape("gamma", self.gamma, (inner,), "the columns of w")
        self.expect_element("gamma", self.gamma, self.w, "that of w")
        self.expect_like("result", self.result, self.w, "w")
        self.expect_order("result", self.result, order_of(self.w.type), "that of the rows of w")


@irdl_op_definition
class ShiftBiasOp(WeightTransform):
    """bias[O], w[O,K], beta[K] -> bias: bias + w @ beta in float32, rounded once: what a linear adds when its input is shifted by beta."""

    name = "transformer.shift_bias"
    SUFFIX: ClassVar[str] = "shifted"

    bias = operand_def(FloatTensor)
    w = operand_def(FloatTensor)
    beta = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, bias: Value, w: Value, beta: Value, *, loc: str | None = None) -> None:
        super().__init__(operands=[bias, w, beta], result_types=[SSAValue.get(bias).type], attributes=located(loc))

    def verify_(self) -> None:
        outputs, inner = self.dimensions("w", self.w, 2)
        self.expect_shape("bias", self.bias, (outputs,), "the outputs of w")
        self.expect_shape("beta", self.beta, (inner,), "the columns of w")
        for what, value in (("bias", self.bias), ("beta", self.beta)):
            self.expect_element(what, value, self.w, "that of w")
        self.expect_like("result", self.result, self.bias, "bias")
        for what, value in (("bias", self.bias), ("result", self.result)):
            self.expect_order(what, value, order_of(self.w.type), "that of the rows of w")


@irdl_op_definition
class ConcatRowsOp(WeightTransform):
    """w1[O1,…], w2[O2,…], … -> [O1 + O2 + …, …]: the rows of all, in order: one weight of several experts, or of the norms of several heads."""

    name = "transformer.concat_rows"
    SUFFIX: ClassVar[str] = "joined"

    ws = var_operand_def(StoredTensor)
    result = result_def(StoredTensor)

    traits = traits_def(Pure())

    def __init__(self, ws: Sequence[Value], *, loc: str | None = None) -> None:
        values = [SSAValue.get(w) for w in ws]
        shapes = [dimensions_of(value.type) for value in values]
        rows = sum(shape[0] for shape in shapes if isinstance(shape[0], int))
        result = named_tensor(element_type_of(values[0]), [rows, *shapes[0][1:]])
        super().__init__(operands=[values], result_types=[result], attributes=located(loc))

    def verify_(self) -> None:
        if not self.ws:
            raise self.fail("has no operands, expected one or more")
        rows, inner = 0, self.dimensions("w1", self.ws[0])[1:]
        for number, w in enumerate(self.ws, 1):
            shape = self.dimensions(f"w{number}", w)
            if not shape or not isinstance(shape[0], int):
                raise self.fail(f"w{number} has shape {shown(shape)}, expected a static number of rows")
            self.expect_shape(f"w{number}", w, (shape[0], *inner), "rows like those of w1")
            self.expect_element(f"w{number}", w, self.ws[0], "that of w1")
            self.expect_order(f"w{number}", w, None, "in which rows of several weights can be one")
            rows += shape[0]
        self.expect_shape("result", self.result, (rows, *inner), "the rows of all operands")
        self.expect_element("result", self.result, self.ws[0], "that of w1")


@irdl_op_definition
class TransposeOp(WeightTransform):
    """w[O,K] -> [K,O]: for checkpoints that store [inputs, outputs]."""

    name = "transformer.transpose"
    SUFFIX: ClassVar[str] = "transposed"

    w = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, *, loc: str | None = None) -> None:
        value = SSAValue.get(w)
        result = named_tensor(element_type_of(value), list(reversed(dimensions_of(value.type))))
        super().__init__(operands=[value], result_types=[result], attributes=located(loc))

    def verify_(self) -> None:
        outputs, inner = self.dimensions("w", self.w, 2)
        self.expect_shape("result", self.result, (inner, outputs), "the axes of w exchanged")
        self.expect_order("w", self.w, None, "in which columns can lie")
        self.expect_element("result", self.result, self.w, "that of w")


@irdl_op_definition
class SliceRowsOp(WeightTransform):
    """w[O,…] -> [size,…]: the rows from `start` on: the part of one linear in a weight that several share, such as fused q, k and v.

    With `groups` they are taken from each of that many equal parts of w: [groups·size,…] (q, k and v fused head by head, as in GPT-NeoX).
    """

    name = "transformer.slice_rows"
    SUFFIX: ClassVar[str] = "part"

    w = operand_def(StoredTensor)
    start = prop_def(IntegerAttr)
    size = prop_def(IntegerAttr)
    groups = opt_prop_def(IntegerAttr)
    result = result_def(StoredTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, *, start: int, size: int, groups: int = 1, loc: str | None = None) -> None:
        value = SSAValue.get(w)
        super().__init__(
            operands=[value],
            properties={
                "start": IntegerAttr(start, i64),
                "size": IntegerAttr(size, i64),
                "groups": IntegerAttr(groups, i64) if groups > 1 else None,
            },
            result_types=[named_tensor(element_type_of(value), [groups * size, *dimensions_of(value.type)[1:]])],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        shape, start, size = self.dimensions("w", self.w), self.start.value.data, self.size.value.data
        groups = 1 if self.groups is None else self.groups.value.data
        if not shape or not isinstance(shape[0], int) or groups < 1 or shape[0] % groups:
            raise self.fail(f"w has shape {shown(shape)}, expected rows in {groups} equal groups")
        if start < 0 or size < 1 or start + size > shape[0] // groups:
            raise self.fail(f"w has shape {shown(shape)}, expected rows {start} to {start + size}{'' if groups == 1 else ' of each group'}")
        self.expect_shape("result", self.result, (groups * size, *shape[1:]), "the rows taken")
        self.expect_order("w", self.w, None, "in which rows are counted")
        self.expect_element("result", self.result, self.w, "that of w")


@irdl_op_definition
class FlattenOp(WeightTransform):
    """w[A,B,…] -> [A·B·…]: the numbers in order as one vector: the weights of the norms of single heads, stored as a matrix."""

    name = "transformer.flatten"
    SUFFIX: ClassVar[str] = "flat"

    w = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, *, loc: str | None = None) -> None:
        value = SSAValue.get(w)
        size = prod(d for d in dimensions_of(value.type) if isinstance(d, int))
        super().__init__(operands=[w], result_types=[named_tensor(element_type_of(value), [size])], attributes=located(loc))

    def verify_(self) -> None:
        shape = self.dimensions("w", self.w)
        if any(isinstance(size, str) for size in shape):
            raise self.fail(f"w has shape {shown(shape)}, expected static dimensions")
        self.expect_shape("result", self.result, (prod(size for size in shape if isinstance(size, int)),), "the numbers of w")
        self.expect_element("result", self.result, self.w, "that of w")

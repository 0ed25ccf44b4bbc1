"""Weights in few bits: how they are made of floats when a model is loaded, and what they mean in front of a linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, f32, i1, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from lamella.dialects.attributes import ResultTyped, element_type_of
from lamella.dialects.packing import PackingAttr, factors_of, factors_shape
from lamella.dialects.transformer.types import (
    FloatTensor,
    PackedTensor,
    ScaleTensor,
    TransformerOp,
    Value,
    WideTensor,
    dimensions_of,
    located,
    named_tensor,
    order_of,
    ordered,
)
from lamella.dialects.transformer.weight import WeightTransform


def _static(value: SSAValue) -> tuple[int, int]:
    rows, columns = dimensions_of(value.type)
    assert isinstance(rows, int) and isinstance(columns, int), value.type
    return rows, columns


@irdl_op_definition
class GroupScalesOp(WeightTransform, ResultTyped):
    """w[O,K] -> scales[O, K/group]: what one step of the whole numbers of each group is worth, rounded to the result's element type.

    Without `affine` the largest step that reaches both ends of the group; with it the group's range over the numbers there are.
    With `clip` ranges are also tried that cut off the ends, and the one of the least squared error is taken.
    """

    name = "transformer.group_scales"
    SUFFIX: ClassVar[str] = "scales"

    w = operand_def(FloatTensor)
    packing = prop_def(PackingAttr)
    affine = opt_prop_def(IntegerAttr)
    clip = opt_prop_def(IntegerAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(
        self, w: Value, packing: PackingAttr, *, element: Attribute | None = None, affine: bool = False, clip: bool = False
    ) -> None:
        value = SSAValue.get(w)
        shape = packing.groups_shape(*_static(value))
        super().__init__(
            operands=[value],
            properties={
                "packing": packing,
                "affine": IntegerAttr(1, i1) if affine else None,
                "clip": IntegerAttr(1, i1) if clip else None,
            },
            result_types=[named_tensor(element or element_type_of(value), shape)],
        )

    def verify_(self) -> None:
        shape = self.dimensions("w", self.w, 2)
        scales = self.dimensions("result", self.result, 2)
        words = (shape[0], shape[1] // self.packing.per_word) if isinstance(shape[1], int) else shape
        reason = self.packing.mismatch(shape, words, scales)
        if reason is not None:
            raise self.fail(reason)


@irdl_op_definition
class GroupMinsOp(WeightTransform):
    """w[O,K], scales[O,G] -> mins[O,G]: what the number 0 of each group stands for, where its range was cut as its scale says."""

    name = "transformer.group_mins"
    SUFFIX: ClassVar[str] = "mins"

    w = operand_def(FloatTensor)
    scales = operand_def(FloatTensor)
    packing = prop_def(PackingAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, scales: Value, packing: PackingAttr) -> None:
        super().__init__(operands=[w, scales], properties={"packing": packing}, result_types=[SSAValue.get(scales).type])

    def verify_(self) -> None:
        self.expect_like("result", self.result, self.scales, "scales")


@irdl_op_definition
class PackWeightOp(WeightTransform):
    """w[O,K], scales[O,G] (, mins[O,G]) -> words[O, K·bits/32] i32: each weight as the nearest number of its group's scale, packed; fp8: [O,K] f8."""

    name = "transformer.pack_weight"
    SUFFIX: ClassVar[str] = "packed"

    w = operand_def(FloatTensor)
    scales = operand_def(FloatTensor)
    mins = opt_operand_def(FloatTensor)
    packing = prop_def(PackingAttr)
    result = result_def(PackedTensor)

    traits = traits_def(Pure())

    def __init__(self, w: Value, scales: Value, mins: Value | None, packing: PackingAttr) -> None:
        value = SSAValue.get(w)
        super().__init__(
            operands=[value, scales, mins],
            properties={"packing": packing},
            result_types=[named_tensor(packing.element, packing.words_shape(*_static(value)))],
        )

    def verify_(self) -> None:
        reason = self.packing.mismatch(
            self.dimensions("w", self.w, 2),
            self.dimensions("result", self.result, 2),
            self.dimensions("scales", self.scales, 2),
            element_type_of(self.result),
        )
        if reason is not None:
            raise self.fail(reason)
        if self.mins is not None:
            self.expect_like("mins", self.mins, self.scales, "scales")
            if self.packing.floats:
                raise self.fail(f"has mins, expected none: {self.packing.kind.data} has a sign")


@irdl_op_definition
class ByGroupOp(WeightTransform):
    """scales[O,G] -> [G/r,O·r]: those of `together` = r neighbouring groups lie side by side, row after row; r is 1 if nothing is said."""

    name = "transformer.by_group"
    SUFFIX: ClassVar[str] = "by_group"

    scales = operand_def(ScaleTensor)
    together = opt_prop_def(IntegerAttr)
    result = result_def(ScaleTensor)

    traits = traits_def(Pure())

    def __init__(self, scales: Value, together: int = 1) -> None:
        value = SSAValue.get(scales)
        super().__init__(
            operands=[value],
            properties={"together": IntegerAttr(together, i64) if together != 1 else None},
            result_types=[named_tensor(element_type_of(value), factors_shape(*_static(value), together))],
        )

    def verify_(self) -> None:
        rows, groups = self.dimensions("scales", self.scales, 2)
        together = self.together.value.data if self.together else 1
        if together < 1 or not isinstance(groups, int) or groups % together:
            raise self.fail(f"together is {together}, expected a divisor of {groups} groups")
        self.expect_shape("result", self.result, factors_shape(int(rows), groups, together), f"that of {together} groups side by side")
        self.expect_element("result", self.result, self.scales, "that of scales")


@irdl_op_definition
class DequantizeOp(TransformerOp):
    """words[O,W] i32 (fp8: [O,K] f8), scales[O,G] (, mins[O,G]) -> w[O,K] f32: scale·(q - zero), or scale·q + min; see `#transformer.packing`.

    Scales, and mins, of i8 are multiplied in f32 by super_scales[O,G/n] and super_mins[O,G/n] (`super`): n neighbours by one number of them.
    With `by_group` all of these are turned: [G,O], [G/n,O]; `by_group = r` keeps r neighbours of a row together, [G/r,O·r]. The result is exact as f32 arithmetic gives it. It is a view on packed storage: `fuse-regions` joins it to the contraction that reads it.
    """

    name = "transformer.dequantize"

    words = operand_def(PackedTensor)
    scales = operand_def(ScaleTensor)
    mins = opt_operand_def(ScaleTensor)
    super_scales = opt_operand_def(FloatTensor)
    super_mins = opt_operand_def(FloatTensor)
    packing = prop_def(PackingAttr)
    by_group = opt_prop_def(IntegerAttr)
    result = result_def(WideTensor)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$words `,` $scales (`,` $mins^)? (`super` $super_scales^)? (`,` $super_mins^)? attr-dict "
        "`:` `(` type($words) `,` type($scales) (`,` type($mins)^)? (`super` type($super_scales)^)? (`,` type($super_mins)^)? `)` "
        "`->` type($result)"
    )

    def __init__(
        self,
        words: Value,
        scales: Value,
        mins: Value | None,
        packing: PackingAttr,
        *,
        super_scales: Value | None = None,
        super_mins: Value | None = None,
        by_group: int = 0,
        like: Attribute | None = None,
        loc: str | None = None,
    ) -> None:
        """`like`: a type in whose order the rows lie."""
        rows, width = _static(SSAValue.get(words))
        plain = named_tensor(f32, [rows, width * packing.per_word])
        result = plain if like is None else ordered(plain, order_of(like))
        properties = {"packing": packing, "by_group": IntegerAttr(by_group, i64) if by_group else None}
        parts = [words, scales, mins, super_scales, super_mins]
        super().__init__(operands=parts, properties=properties, result_types=[result], attributes=located(loc))

    @classmethod
    def of(
        cls,
        parts: Sequence[SSAValue],
        packing: PackingAttr,
        *,
        by_group: int = 0,
        like: Attribute | None = None,
        loc: str | None = None,
    ) -> DequantizeOp:
        """One of its operands in order."""
        mins, scale, least = factors_of(parts)
        return cls(parts[0], parts[1], mins, packing, super_scales=scale, super_mins=least, by_group=by_group, like=like, loc=loc)

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return _static(self.scales)[0] * self.together if self.together else _static(self.scales)[1]

    @property
    def together(self) -> int:
        """Neighbouring groups of a row that lie side by side where scales lie group by group; 0: all, they lie row by row."""
        return self.by_group.value.data if self.by_group else 0

    def verify_(self) -> None:
        reason = self.packing.mismatch(
            self.dimensions("result", self.result, 2),
            self.dimensions("words", self.words, 2),
            self.dimensions("scales", self.scales, 2),
            element_type_of(self.words),
            by_group=self.together,
        )
        if reason is not None:
            raise self.fail(reason)
        if self.mins is not None:
            self.expect_shape("mins", self.mins, self.dimensions("scales", self.scales), "the shape of scales")
            if self.packing.floats:
                raise self.fail(f"has mins, expected none: {self.packing.kind.data} has a sign")
        reason = self.packing.super_mismatch(self.scales, self.mins, self.super_scales, self.super_mins, by_group=self.together)
        if reason is not None:
            raise self.fail(reason)

"""Ops that make or rearrange blocks without arithmetic: ranges, axes, broadcasts, reshapes, transposes, splits and joins."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, IntegerType, TensorType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, ParsePropInAttrDict, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.types import (
    STORED,
    block_type,
    broadcast,
    element_type,
    is_power_of_two,
    shape,
    subject,
    verify_result,
    verify_value,
)


@irdl_op_definition
class ArangeOp(IRDLOperation):
    """start, start + 1, … end - 1 as i32; their number is a power of two."""

    name = "kernel.arange"

    start = prop_def(IntegerAttr[IntegerType])
    end = prop_def(IntegerAttr[IntegerType])
    result = result_def()

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, start: int, end: int) -> None:
        super().__init__(
            properties={"start": IntegerAttr(start, i64), "end": IntegerAttr(end, i64)},
            result_types=[TensorType(i32, [end - start])],
        )

    def verify_(self) -> None:
        start, end = self.start.value.data, self.end.value.data
        if not is_power_of_two(end - start):
            raise VerifyException(f"{subject(self)}: from {start} to {end} are {end - start} numbers, expected a power of two")
        verify_result(self, TensorType(i32, [end - start]))


@irdl_op_definition
class ExpandDimsOp(IRDLOperation):
    """A new axis of size 1 at `axis` of a block."""

    name = "kernel.expand_dims"

    operand = operand_def()
    axis = prop_def(IntegerAttr[IntegerType])
    result = result_def()

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, axis: int) -> None:
        sizes = shape(operand)
        result = block_type((*sizes[:axis], 1, *sizes[axis:]), element_type(operand.type))
        super().__init__(operands=[operand], properties={"axis": IntegerAttr(axis, i64)}, result_types=[result])

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, STORED)
        sizes, axis = shape(self.operand), self.axis.value.data
        if not sizes:
            raise VerifyException(f"{subject(self)}: operand is a scalar, expected a block")
        if not 0 <= axis <= len(sizes):
            raise VerifyException(f"{subject(self)}: axis is {axis}, expected 0 to {len(sizes)}")
        verify_result(self, block_type((*sizes[:axis], 1, *sizes[axis:]), element_type(self.operand.type)))


class ReshapingOp(IRDLOperation):
    """A block from a block or scalar; the result type says its shape."""

    operand = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, sizes: Sequence[int]) -> None:
        super().__init__(operands=[operand], result_types=[block_type(sizes, element_type(operand.type))])

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, STORED)
        verify_value(self, "result", self.result, STORED)
        verify_result(self, block_type(shape(self.result), element_type(self.operand.type)))
        if not shape(self.result):
            raise VerifyException(f"{subject(self)}: result is a scalar, expected a block")


@irdl_op_definition
class BroadcastToOp(ReshapingOp):
    """The operand stretched along its size-1 axes (a scalar: along all) to the result's shape."""

    name = "kernel.broadcast_to"

    def verify_(self) -> None:
        super().verify_()
        if broadcast((shape(self.operand), shape(self.result))) != shape(self.result):
            raise VerifyException(f"{subject(self)}: shape {shape(self.operand)} does not broadcast to {shape(self.result)}")


@irdl_op_definition
class ReshapeOp(ReshapingOp):
    """The same elements in row-major order in another shape."""

    name = "kernel.reshape"

    def verify_(self) -> None:
        super().verify_()
        if not shape(self.operand) or prod(shape(self.operand)) != prod(shape(self.result)):
            raise VerifyException(f"{subject(self)}: shape {shape(self.operand)} has other elements than {shape(self.result)}")


@irdl_op_definition
class TransOp(IRDLOperation):
    """Axis i of the result is axis `order[i]` of the operand."""

    name = "kernel.trans"

    operand = operand_def()
    order = prop_def(DenseArrayBase[IntegerType])
    result = result_def()

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, order: Sequence[int]) -> None:
        result = block_type([shape(operand)[axis] for axis in order], element_type(operand.type))
        super().__init__(operands=[operand], properties={"order": DenseArrayBase.from_list(i64, order)}, result_types=[result])

    def axes(self) -> tuple[int, ...]:
        return tuple(self.order.get_values())

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, STORED)
        sizes = shape(self.operand)
        if not sizes or sorted(self.axes()) != list(range(len(sizes))):
            raise VerifyException(f"{subject(self)}: order is {self.axes()}, expected a permutation of the axes of {sizes}")
        verify_result(self, block_type([sizes[axis] for axis in self.axes()], element_type(self.operand.type)))


@irdl_op_definition
class SplitOp(IRDLOperation):
    """`x[…, 0]` and `x[…, 1]` of a block whose last axis has size 2."""

    name = "kernel.split"

    operand = operand_def()
    first = result_def()
    second = result_def()

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($first) `,` type($second)"

    def __init__(self, operand: SSAValue) -> None:
        half = block_type(shape(operand)[:-1], element_type(operand.type))
        super().__init__(operands=[operand], result_types=[half, half])

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, STORED)
        sizes = shape(self.operand)
        if len(sizes) < 2 or sizes[-1] != 2:
            raise VerifyException(f"{subject(self)}: operand has shape {sizes}, expected two axes or more, the last of size 2")
        half: Attribute = block_type(sizes[:-1], element_type(self.operand.type))
        verify_result(self, half)
        if self.second.type != half:
            raise VerifyException(f"{subject(self)}: second result has type {self.second.type}, expected {half}")


@irdl_op_definition
class JoinOp(IRDLOperation):
    """Two blocks of one type side by side along a new last axis: the inverse of split."""

    name = "kernel.join"

    first = operand_def()
    second = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$first `,` $second attr-dict `:` type($first) `,` type($second) `->` type($result)"

    def __init__(self, first: SSAValue, second: SSAValue) -> None:
        super().__init__(operands=[first, second], result_types=[block_type((*shape(first), 2), element_type(first.type))])

    def verify_(self) -> None:
        verify_value(self, "first", self.first, STORED)
        if not shape(self.first) or self.first.type != self.second.type:
            raise VerifyException(f"{subject(self)}: {self.first.type} and {self.second.type}, expected two blocks of one type")
        verify_result(self, block_type((*shape(self.first), 2), element_type(self.first.type)))

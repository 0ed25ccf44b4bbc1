"""Elementwise ops: constants, unary, binary and ternary arithmetic, comparisons and casts, on scalars and blocks that broadcast."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.types import (
    BITS,
    FLOAT32,
    FLOATS,
    INTEGERS,
    NUMBERS,
    STORED,
    block_type,
    element,
    element_type,
    shape,
    subject,
    verify_broadcast,
    verify_result,
    verify_value,
)


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A scalar, or a block filled with it: `kernel.constant 0.0 : f32 -> tensor<4x64xf32>`."""

    name = "kernel.constant"

    value = prop_def(FloatAttr | IntegerAttr[IntegerType])
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `->` type($result)"

    def __init__(self, value: FloatAttr | IntegerAttr[IntegerType], sizes: tuple[int, ...] = ()) -> None:
        super().__init__(properties={"value": value}, result_types=[block_type(sizes, value.type)])

    def verify_(self) -> None:
        verify_value(self, "result", self.result, STORED)
        if element_type(self.result.type) != self.value.type:
            raise VerifyException(f"{subject(self)}: value has type {self.value.type}, expected {element_type(self.result.type)}")


class UnaryOp(IRDLOperation, ABC):
    """One operand, and a result of its type."""

    ELEMENTS: ClassVar[frozenset[str]]

    operand = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operands=[operand], result_types=[operand.type])

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, self.ELEMENTS)
        verify_result(self, self.operand.type)


@irdl_op_definition
class NegOp(UnaryOp):
    name = "kernel.neg"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class AbsOp(UnaryOp):
    name = "kernel.abs"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class ExpOp(UnaryOp):
    name = "kernel.exp"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class Exp2Op(UnaryOp):
    name = "kernel.exp2"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class LogOp(UnaryOp):
    name = "kernel.log"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class Log2Op(UnaryOp):
    name = "kernel.log2"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class SqrtOp(UnaryOp):
    name = "kernel.sqrt"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class RsqrtOp(UnaryOp):
    name = "kernel.rsqrt"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class SinOp(UnaryOp):
    name = "kernel.sin"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class CosOp(UnaryOp):
    name = "kernel.cos"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class FloorOp(UnaryOp):
    name = "kernel.floor"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class ErfOp(UnaryOp):
    name = "kernel.erf"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class SigmoidOp(UnaryOp):
    name = "kernel.sigmoid"
    ELEMENTS: ClassVar = FLOAT32


@irdl_op_definition
class NotOp(UnaryOp):
    """The complement: logical on i1, bitwise on integers."""

    name = "kernel.not"
    ELEMENTS: ClassVar = BITS


class BinaryOp(IRDLOperation, ABC):
    """Two operands of one element type that broadcast, and a result of their common shape and that type."""

    ELEMENTS: ClassVar[frozenset[str]]
    BOOLEAN: ClassVar[bool] = False
    """The result is i1."""

    lhs = operand_def()
    rhs = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue, result_type: Attribute) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[result_type])

    def verify_(self) -> None:
        verify_value(self, "lhs", self.lhs, self.ELEMENTS)
        verify_value(self, "rhs", self.rhs, self.ELEMENTS)
        if element(self.lhs) != element(self.rhs):
            raise VerifyException(f"{subject(self)}: lhs has elements {element(self.lhs)}, rhs {element(self.rhs)}, expected the same")
        sizes = verify_broadcast(self, [self.lhs, self.rhs])
        verify_result(self, block_type(sizes, i1 if self.BOOLEAN else element_type(self.lhs.type)))


@irdl_op_definition
class AddOp(BinaryOp):
    name = "kernel.add"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class SubOp(BinaryOp):
    name = "kernel.sub"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class MulOp(BinaryOp):
    """The product; integers wrap around."""

    name = "kernel.mul"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class DivOp(BinaryOp):
    """The true quotient of floats."""

    name = "kernel.div"
    ELEMENTS: ClassVar = FLOATS


@irdl_op_definition
class FloordivOp(BinaryOp):
    """The integer quotient of non-negative operands (Triton truncates where Python floors)."""

    name = "kernel.floordiv"
    ELEMENTS: ClassVar = INTEGERS


@irdl_op_definition
class ModOp(BinaryOp):
    """The remainder of non-negative integers."""

    name = "kernel.mod"
    ELEMENTS: ClassVar = INTEGERS


@irdl_op_definition
class MinimumOp(BinaryOp):
    """The lesser; NaN where either operand is NaN, as torch.minimum."""

    name = "kernel.minimum"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class MaximumOp(BinaryOp):
    """The greater; NaN where either operand is NaN, as torch.maximum."""

    name = "kernel.maximum"
    ELEMENTS: ClassVar = NUMBERS


@irdl_op_definition
class AndOp(BinaryOp):
    name = "kernel.and"
    ELEMENTS: ClassVar = BITS


@irdl_op_definition
class OrOp(BinaryOp):
    name = "kernel.or"
    ELEMENTS: ClassVar = BITS


@irdl_op_definition
class XorOp(BinaryOp):
    name = "kernel.xor"
    ELEMENTS: ClassVar = BITS


@irdl_op_definition
class ShlOp(BinaryOp):
    name = "kernel.shl"
    ELEMENTS: ClassVar = INTEGERS


@irdl_op_definition
class ShrOp(BinaryOp):
    """Arithmetic shift right: the sign is kept."""

    name = "kernel.shr"
    ELEMENTS: ClassVar = INTEGERS


@irdl_op_definition
class LshrOp(BinaryOp):
    """Logical shift right: zeros come in, as on the unsigned integer of the same bits."""

    name = "kernel.lshr"
    ELEMENTS: ClassVar = INTEGERS


class CompareOp(BinaryOp, ABC):
    """A comparison: two operands that broadcast, and a result of i1."""

    ELEMENTS: ClassVar = NUMBERS
    BOOLEAN: ClassVar = True


@irdl_op_definition
class LtOp(CompareOp):
    name = "kernel.lt"


@irdl_op_definition
class LeOp(CompareOp):
    name = "kernel.le"


@irdl_op_definition
class GtOp(CompareOp):
    name = "kernel.gt"


@irdl_op_definition
class GeOp(CompareOp):
    name = "kernel.ge"


@irdl_op_definition
class EqOp(CompareOp):
    name = "kernel.eq"


@irdl_op_definition
class NeOp(CompareOp):
    name = "kernel.ne"


@irdl_op_definition
class FmaOp(IRDLOperation):
    """`a * b + c`, rounded once."""

    name = "kernel.fma"

    a = operand_def()
    b = operand_def()
    c = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$a `,` $b `,` $c attr-dict `:` type($a) `,` type($b) `,` type($c) `->` type($result)"

    def __init__(self, a: SSAValue, b: SSAValue, c: SSAValue, result_type: Attribute) -> None:
        super().__init__(operands=[a, b, c], result_types=[result_type])

    def verify_(self) -> None:
        for role, value in (("a", self.a), ("b", self.b), ("c", self.c)):
            verify_value(self, role, value, FLOAT32)
        verify_result(self, block_type(verify_broadcast(self, [self.a, self.b, self.c]), element_type(self.a.type)))


@irdl_op_definition
class WhereOp(IRDLOperation):
    """`a` where the condition holds, else `b`; any element type."""

    name = "kernel.where"

    condition = operand_def()
    a = operand_def()
    b = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$condition `,` $a `,` $b attr-dict `:` type($condition) `,` type($a) `,` type($b) `->` type($result)"

    def __init__(self, condition: SSAValue, a: SSAValue, b: SSAValue, result_type: Attribute) -> None:
        super().__init__(operands=[condition, a, b], result_types=[result_type])

    def verify_(self) -> None:
        verify_value(self, "condition", self.condition, frozenset({"i1"}))
        verify_value(self, "a", self.a, STORED)
        verify_value(self, "b", self.b, STORED)
        if element(self.a) != element(self.b):
            raise VerifyException(f"{subject(self)}: a has elements {element(self.a)}, b {element(self.b)}, expected the same")
        sizes = verify_broadcast(self, [self.condition, self.a, self.b])
        verify_result(self, block_type(sizes, element_type(self.a.type)))


@irdl_op_definition
class CastOp(IRDLOperation):
    """The same number in another element type: floats round to nearest, floats truncate to integers, integers wrap.

    To f8 only numbers are cast that it has: Triton's interpreter rounds others elsewhere than a GPU.
    """

    name = "kernel.cast"

    operand = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, to: Attribute) -> None:
        super().__init__(operands=[operand], result_types=[block_type(shape(operand), to)])

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, STORED)
        verify_result(self, block_type(shape(self.operand), element_type(self.result.type)))
        if element(self.result) == "f8" and element(self.operand) != "f32":
            raise VerifyException(f"{subject(self)}: casts {element(self.operand)} to f8, expected f32, of numbers that f8 has")
        if element(self.result) not in STORED - {"i1"}:
            raise VerifyException(f"{subject(self)}: casts to {element(self.result)}, expected a number (compare with kernel.ne for i1)")


@irdl_op_definition
class BitcastOp(IRDLOperation):
    """The same bits as another element type of the same width."""

    name = "kernel.bitcast"

    operand = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, to: Attribute) -> None:
        super().__init__(operands=[operand], result_types=[block_type(shape(operand), to)])

    def verify_(self) -> None:
        pairs = {("f32", "i32"), ("i32", "f32")}
        if (element(self.operand), element(self.result)) not in pairs:
            raise VerifyException(f"{subject(self)}: {element(self.operand)} to {element(self.result)}, expected f32 to i32 or i32 to f32")
        verify_value(self, "operand", self.operand, frozenset({"f32", "i32"}))
        verify_result(self, block_type(shape(self.operand), element_type(self.result.type)))

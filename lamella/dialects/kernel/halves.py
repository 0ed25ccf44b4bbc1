"""Bytes of packed words: a buffer read as bytes, and the two signed numbers of four bits that each byte holds."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import i8
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.arithmetic import UnaryOp
from lamella.dialects.kernel.types import PointerType, element, subject, verify_result


@irdl_op_definition
class AsBytesOp(IRDLOperation):
    """The address of a buffer of words as that of its bytes, the lowest of each word first."""

    name = "kernel.as_bytes"

    pointer = operand_def(PointerType)
    result = result_def(PointerType)

    traits = traits_def(Pure())
    assembly_format = "$pointer attr-dict `:` type($pointer) `->` type($result)"

    def __init__(self, pointer: SSAValue) -> None:
        super().__init__(operands=[pointer], result_types=[PointerType(i8)])

    def verify_(self) -> None:
        if element(self.pointer) != "i32":
            raise VerifyException(f"{subject(self)}: pointer has type {self.pointer.type}, expected !kernel.ptr<i32>")
        verify_result(self, PointerType(i8))


@irdl_op_definition
class LowerHalfOp(UnaryOp):
    """16 times the signed number in the lower four bits of each byte: as a byte, without a shift of single bytes."""

    name = "kernel.lower_half"
    ELEMENTS: ClassVar = frozenset({"i8"})


@irdl_op_definition
class UpperHalfOp(UnaryOp):
    """16 times the signed number in the upper four bits of each byte, as a byte."""

    name = "kernel.upper_half"
    ELEMENTS: ClassVar = frozenset({"i8"})

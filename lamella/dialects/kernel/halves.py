"""Bytes of packed words: a buffer read as bytes, and the signed numbers that each byte holds, one of eight bits or two of four."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr, i8
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.arithmetic import UnaryOp
from lamella.dialects.kernel.types import PointerType, block_type, element, element_type, shape, subject, verify_result, verify_value


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


PARTS, WIDENED = ("lower", "upper", "whole"), ("bf16", "f16")
"""Parts of a byte, and the floats in which a few instructions write the signed numbers of four bytes."""
MANTISSA = {"bf16": 7, "f16": 10}
"""Bits of the mantissa behind the point."""


def raised_by(part: str, to: str) -> int | None:
    """What the bits of a part of a byte, in the lowest of the mantissa of 1.0 · 2^p, add to its signed number: 136 for half a byte in bf16; None where they do not fit."""
    bits = 8 if part == "whole" else 4
    return None if bits > MANTISSA[to] else (1 << MANTISSA[to]) + (1 << (bits - 1))


@irdl_op_definition
class WidenOp(IRDLOperation):
    """The signed number in a part of each byte as a float, exactly: `kernel.widen "lower" %bytes : tensor<64xi8> -> tensor<64xbf16>`.

    `lower` and `upper` are halves, of four bits; `whole` is the byte. A cast would take a conversion for each number: this one puts the bits of
    four into mantissas, and takes off what that adds. `raised` leaves that in, where a sum of x is known by which it can be taken off a product.
    """

    name = "kernel.widen"

    part = prop_def(StringAttr)
    raised = opt_prop_def(UnitAttr)
    operand = operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$part (`raised` $raised^)? $operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, part: str, operand: SSAValue, to: Attribute, *, raised: bool = False) -> None:
        properties = {"part": StringAttr(part), "raised": UnitAttr() if raised else None}
        super().__init__(operands=[operand], properties=properties, result_types=[block_type(shape(operand), to)])

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, frozenset({"i8"}))
        verify_result(self, block_type(shape(self.operand), element_type(self.result.type)))
        if self.part.data not in PARTS:
            raise VerifyException(f'{subject(self)}: part is "{self.part.data}", expected {", ".join(PARTS)}')
        if element(self.result) not in WIDENED:
            raise VerifyException(f"{subject(self)}: {self.part.data} becomes {element(self.result)}, expected {' or '.join(WIDENED)}")
        if self.raised is not None and raised_by(self.part.data, element(self.result)) is None:
            raise VerifyException(
                f"{subject(self)}: {self.part.data} is raised, expected no more bits than a mantissa of {element(self.result)} has"
            )

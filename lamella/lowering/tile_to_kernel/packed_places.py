"""A column of a packed weight enters; where its number lies in memory leaves (`#transformer.packing`)."""

from __future__ import annotations

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from lamella.dialects.packing import PackingAttr
from lamella.lowering.kernel_builder import KernelBuilder, Operand


def byte_of(b: KernelBuilder, column: SSAValue, packing: PackingAttr) -> tuple[SSAValue, Operand]:
    """The byte of a row that holds each column, and the lowest of its bits there: 0, or 4 in an upper half."""
    if packing.bits == 8:
        return column, 0
    half = packing.half
    byte = b.add(b.mul(b.floordiv(column, 2 * half), half), b.mod(column, half))
    return byte, b.mul(b.mod(b.floordiv(column, half), 2), 4)


def signed_number(b: KernelBuilder, word: SSAValue, bit: Operand, bits: int) -> SSAValue:
    """The number of so many bits whose lowest is `bit` of a word, with its sign: up to the top of a word of 32 bits, and down again."""
    return b.shr(b.shl(b.cast(word, i32), b.sub(32 - bits, bit)), 32 - bits)

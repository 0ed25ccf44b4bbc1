"""Float32 numbers enter; the nearest whole numbers of a byte leave, the same from a GPU and from Triton's interpreter, whose own casts cut off."""

from __future__ import annotations

from xdsl.dialects.builtin import i8, i32
from xdsl.ir import SSAValue

from lamella.lowering.kernel_builder import KernelBuilder

ROUNDS = 12582912.0, 0x4B400000
"""1.5 * 2^23: added to a float below 2^22 it leaves a whole number, and these bits above it."""


def rounded_int8(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """`x` of float32 as bytes from -128 to 127: the nearest, ties to even. What is not a number may become any."""
    magic, bits = ROUNDS
    kept = b.minimum(b.maximum(x, -128.0), 127.0)
    return b.cast(b.named("rounded", b.sub(b.bitcast(b.add(kept, magic), i32), bits)), i8)

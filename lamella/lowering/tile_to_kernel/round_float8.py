"""Float32 numbers enter; the nearest eight-bit floats (e4m3) leave, the same from a GPU's instruction and from Triton's interpreter.

The interpreter's own conversion rounds to neither neighbour reliably. So the number is rounded in float32 first, and the cast is exact.
"""

from __future__ import annotations

from xdsl.dialects.builtin import f8E4M3FN, f32, i32
from xdsl.ir import SSAValue

from lamella.lowering.kernel_builder import KernelBuilder

DROPPED = 20
"""Bits of a float32's mantissa that an e4m3 does not have."""
SMALLEST_NORMAL = 2.0**-6
"""From here down e4m3 numbers lie 2^-9 apart."""
ALIGNED = 1.5 * 2.0**14
"""Added to a number and taken off again, it leaves multiples of 2^-9: the last bit of a float32 of this size is worth that much."""


def rounded_float8(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """`x` of float32, within ±464, as float8: the nearest, ties to even. What is not a number may become one."""
    bits = b.bitcast(x, i32)
    odd = b.and_(b.shr(bits, DROPPED), 1)
    normal = b.bitcast(b.and_(b.add(bits, b.add(odd, (1 << (DROPPED - 1)) - 1)), -(1 << DROPPED)), f32)
    small = b.sub(b.add(x, ALIGNED), ALIGNED)
    size = b.maximum(x, b.neg(x))
    return b.cast(b.named("rounded", b.where(b.lt(size, SMALLEST_NORMAL), small, normal)), f8E4M3FN)

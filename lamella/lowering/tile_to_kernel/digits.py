"""Few tokens times weights of whole numbers: x becomes digits, bytes as the weights are, and all products and sums are exact.

A piece of x, divided by the power of two below its largest number, lies between -2 and 2. Rounded at the 20th bit behind the point it is a whole
number, which three signed digits of base 128 write. Tensor cores multiply bytes by bytes and add up in 32 bits; the digits, which lie in
columns of their own, are put together at the end. The rounding is 2^-20 of the largest number of the piece: that of float32 sums, not of
bfloat16 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import f32, i8, i32
from xdsl.ir import SSAValue

from lamella.dialects.kernel import MIN_DOT_N
from lamella.dialects.kernel.types import shape
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.tile_to_kernel.decode import PackedWeight
from lamella.lowering.tile_to_kernel.round_int8 import ROUNDS
from lamella.lowering.tile_to_kernel.weight import Piece, Rows

EXPONENT, ONE_AND_ONE = 0x7F800000, 0x7F000000
"""The bits of a float's exponent; those of 2^e and of 2^-e add up to ONE_AND_ONE."""
SMALLEST = 0x10000000
"""The exponent of pieces that are all but 0: 2^-95."""
POINT = 19
"""Bits behind the point of a number between -2 and 2."""
BASE = 7
"""Bits of a digit: from -64 to 64."""
FEWEST = 4
"""Places for digits: three and an empty one, for blocks have powers of two."""


def places(tokens: int) -> int:
    """Columns that the digits of each of `tokens` have."""
    return max(FEWEST, MIN_DOT_N // tokens)


def flat(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """One row as a vector; several as they are."""
    return b.reshape(x, shape(x)[1:]) if shape(x)[0] == 1 else x


def exponents(b: KernelBuilder, xs: Sequence[SSAValue]) -> SSAValue:
    """Of each row of some pieces together the bits of the power of two below its largest number: [tokens, 1] i32; of one row a scalar.

    A scalar every thread has, whatever else it holds; a block of one number would have to be moved to where it is used. As whole numbers
    exponents are in order, and those of infinity and NaN are the largest: what is multiplied back then is infinite, and so is the sum, or NaN.
    """
    one = shape(xs[0])[0] == 1
    bits = [b.and_(b.bitcast(flat(b, x), i32), EXPONENT) for x in xs]
    most = reduce(b.maximum, [b.reduce(own, "max", 0 if one else 1, keep_dims=not one) for own in bits])
    return b.named("exponent", b.maximum(most, SMALLEST))


def inverse(b: KernelBuilder, exponent: SSAValue) -> SSAValue:
    """2^-e."""
    return b.bitcast(b.sub(ONE_AND_ONE, exponent), f32)


def digits_of(b: KernelBuilder, x: SSAValue, exponent: SSAValue) -> SSAValue:
    """The digits of x [tokens, columns] f32 as bytes: [places · tokens, columns], the digit first."""
    tokens, columns = shape(x)
    magic, bits = ROUNDS
    up = b.named("up", b.mul(inverse(b, exponent), float(1 << POINT)))
    whole = b.named("whole", b.sub(b.bitcast(b.add(b.mul(x, up), magic), i32), bits))
    first = b.named("first_digit", b.shr(b.add(whole, 1 << (2 * BASE - 1)), 2 * BASE))
    rest = b.named("rest", b.sub(whole, b.shl(first, 2 * BASE)))
    second = b.named("second_digit", b.shr(b.add(rest, 1 << (BASE - 1)), BASE))
    third = b.named("third_digit", b.sub(rest, b.shl(second, BASE)))
    count = places(tokens)
    digit, parts = b.expand(b.arange(count), 1), [first, second, third]
    if tokens > 1:
        digit, parts = b.expand(digit, 2), [b.expand(part, 0) for part in parts]
    chosen = b.where(b.eq(digit, 2), parts[2], 0)
    chosen = b.where(b.eq(digit, 1), parts[1], chosen)
    chosen = b.cast(b.where(b.eq(digit, 0), parts[0], chosen), i8)
    return b.named("digits", b.reshape(chosen, (count * tokens, columns)))


@dataclass(frozen=True)
class DigitWeight(PackedWeight):
    """A weight of bytes, or of two numbers a byte, that x is multiplied with digit by digit; rows go down."""

    def start(self, tokens: int, rows: int, down: bool) -> list[SSAValue]:
        assert down
        b = self.e.b
        sums = [b.named("acc", b.full((rows, places(tokens) * tokens), 0.0, f32))]
        return sums if self.op.mins is None else [*sums, b.named("least_acc", b.full((rows, tokens), 0.0, f32))]

    def multiply(
        self, xs: Sequence[SSAValue], sums: Sequence[SSAValue], rows: Rows, pieces: Sequence[Piece], held: Sequence[SSAValue]
    ) -> list[SSAValue]:
        b, (acc, *least_sums) = self.e.b, sums
        with b.source(self.source):
            tiles = self.tiles(rows, pieces)
            wide = [b.cast(x, f32) for x in xs]
            groups = self.by_group(pieces)
            factors = [(None, None)] * len(groups) if self.deferred else self.factors(held)
            for members, (scale, least) in zip(groups, factors, strict=True):
                own = [wide[member] for member in members]
                exponent = exponents(b, own)
                total: SSAValue | None = None
                for member, x in zip(members, own, strict=True):
                    total = b.dot(tiles[member], b.trans(digits_of(b, x, exponent)), total)
                assert total is not None
                back = self.back(exponent)
                factor = back if scale is None else b.mul(scale, back)
                acc = b.add(acc, b.mul(b.cast(b.named("products", total), f32), factor))
                if least is not None:
                    least_sums = [b.add(least_sums[0], self.least_sums(own, rows, least))]
        return [acc, *least_sums]

    def back(self, exponent: SSAValue) -> SSAValue:
        """What a unit of the last digit of each column stands for: a scalar, or [1, digits · tokens]."""
        b = self.e.b
        unit = b.mul(b.bitcast(exponent, f32), 2.0**-POINT * (self.step if self.deferred else 1.0))
        if not shape(exponent):
            return self.e.hinted("last_digit", unit)
        tokens = shape(exponent)[0]
        each = b.broadcast(b.expand(b.trans(unit), 0), (1, places(tokens), tokens))
        return self.e.hinted("last_digit", b.reshape(each, (1, places(tokens) * tokens)))

    def total(self, sums: Sequence[SSAValue], tokens: int, down: bool) -> SSAValue:
        b, (acc, *least) = self.e.b, sums
        rows, count = shape(acc)[0], places(tokens)
        digit = b.arange(count)
        worth = b.where(b.eq(digit, 0), float(1 << 2 * BASE), b.where(b.eq(digit, 1), float(1 << BASE), 1.0))
        if tokens == 1:
            total = b.reduce(b.mul(acc, b.expand(worth, 0)), "sum", 1, keep_dims=True)
        else:
            each = b.mul(b.reshape(acc, (rows, count, tokens)), b.expand(b.expand(worth, 0), 2))
            total = b.reduce(each, "sum", 1)
        return b.named("total", b.add(total, least[0]) if least else total)

"""How a contraction reads packed words: decoded on the way to the product. Skeletons ask; neither knows the other.

One token: a word of packed numbers is taken apart where it was loaded. A shift puts number i at the top of the mantissa of 1.0, which makes
it a float without a conversion: 1 + q·2^-p, that is 2^-p·(2^p + q). x comes scaled by 2^p, and what 2^p adds to the sum over a word is known
from x alone: it is taken off there, before anything is large enough to be rounded by it. The scale multiplies the sum over a group.

Several tokens: the whole numbers go to the tensor cores, and the product of a group is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.tile import ContractOp, ContractPartialOp, DequantizeOp
from lamella.lowering.tile_to_kernel.decode_float8 import FloatWeight
from lamella.lowering.tile_to_kernel.emitter import Emitter, Place
from lamella.lowering.tile_to_kernel.weight import Piece, PlainWeight, Rows, Weight, product, scaled_rows

ONE_BITS, MANTISSA = 0x3F800000, 23
"""The float 1.0, and the bits of its mantissa: a number of n bits or-ed in at bit 23 - p, n <= p, makes it 1 + q·2^-p."""


@dataclass(frozen=True)
class PackedWeight(Weight):
    """Words of packed numbers, scales, and perhaps mins."""

    op: DequantizeOp

    @property
    def per_word(self) -> int:
        """Numbers of a word."""
        return self.op.packing.per_word

    @property
    def deferred(self) -> bool:
        """Whether the scale of a row multiplies its sum."""
        return self.op.mins is None and shape_of(self.op.scales)[1] == 1

    def groups(self, size: int) -> int:
        """Groups of columns, each with a scale, of a piece."""
        group = self.op.packing.group.data
        return 1 if shape_of(self.op.scales)[1] == 1 else max(1, size // group)

    def lanes(self, size: int) -> int:
        return size // self.per_word if self.deferred else self.groups(size)

    def words_of(self, piece: Piece, axis: int) -> tuple[SSAValue, SSAValue | None]:
        """Which words of a row hold a piece, across `axis`, and the mask of those that a row has."""
        b, per = self.e.b, self.per_word
        words = self.e.hinted("word", b.expand(b.add(b.arange(piece.size // per), piece.over(b, per)), axis))
        return words, None if self.columns % piece.size == 0 else b.lt(words, self.columns // per)

    def load(self, rows: Rows, piece: Piece) -> Sequence[SSAValue]:
        b = self.e.b
        with b.source(self.source):
            words, mask = self.words_of(piece, 0)
            found = [b.named("words", self.read(self.op.words, rows, words, mask, once=True))]
            if self.deferred:
                return found
            count = self.groups(piece.size)
            group = self.e.hinted("group", b.expand(b.add(b.arange(count), self.group_of(piece)), 0))
            total = shape_of(self.op.scales)[1]
            inside = None if total % count == 0 else b.lt(group, total)
            for value, name in ((self.op.scales, "scale"), (self.op.mins, "least")):
                if value is not None:
                    found.append(b.named(name, self.read(value, rows, group, inside)))
            return found

    def products(self, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        e, b = self.e, self.e.b
        words, *factors = loaded
        columns = [b.cast(e.emit(x, place), f32) for place in self.places(piece)]
        with b.source(self.source):
            scaled = [e.hinted("x_scaled", b.mul(column, 2.0 ** self.up(number))) for number, column in enumerate(columns)]
            beyond = e.hinted("beyond", reduce(b.add, scaled))
            if self.op.mins is None:
                # What is taken off is that much more where the numbers lie around `zero`.
                beyond = b.add(beyond, b.mul(reduce(b.add, columns), float(self.op.packing.zero)))
            total: SSAValue | None = None
            for number, column in enumerate(scaled):
                part = b.mul(self.number(words, number), b.expand(column, 0))
                total = b.sub(part, b.expand(beyond, 0)) if total is None else b.add(total, part)
            assert total is not None
            if self.deferred:
                return e.hinted("product", total)
            rows, count = shape(words)[0], self.groups(piece.size)
            sums = e.hinted("sums", b.reduce(b.reshape(total, (rows, count, shape(words)[1] // count)), "sum", 2))
            sums = b.mul(sums, b.cast(factors[0], f32))
            if self.op.mins is not None:
                x_sum = b.reduce(b.reshape(reduce(b.add, columns), (count, shape(words)[1] // count)), "sum", 1)
                sums = b.add(sums, b.mul(b.cast(factors[1], f32), b.expand(e.hinted("x_sum", x_sum), 0)))
            return e.hinted("product", sums)

    def up(self, number: int) -> int:
        """p of number i of a word: 4 or 8 for numbers of 4 bits, 8 for those of 8. Two that share a shift differ in it."""
        bits = self.op.packing.bits
        return 8 if bits == 8 or (number // 2) % 2 == 0 else 4

    def number(self, words: SSAValue, number: int) -> SSAValue:
        """1 + q·2^-p of number i of each word."""
        b, bits = self.e.b, self.op.packing.bits
        lies, goes = bits * (number // 2) + 16 * (number % 2), MANTISSA - self.up(number)
        moved = b.shl(words, goes - lies) if lies < goes else b.shr(words, lies - goes)
        ones = ((1 << bits) - 1) << goes
        return self.e.hinted("q", b.bitcast(b.or_(b.and_(moved, ones), ONE_BITS), f32))

    def places(self, piece: Piece) -> Sequence[Place]:
        """The columns of a piece by their number in a word: one vector a number, read as such, for a program has no cheaper way to reorder them."""
        e, b, per = self.e, self.e.b, self.per_word
        first = b.mul(b.add(b.arange(piece.size // per), piece.over(b, per)), per)
        mask = None if self.columns % piece.size == 0 else e.hinted("word_mask", b.lt(first, self.columns))
        return [e.elsewhere(piece.place, e.hinted(f"cols{i}", b.add(first, i)), mask) for i in range(per)]

    def scaled(self, sums: SSAValue, rows: Rows) -> SSAValue:
        return scaled_rows(self.e, sums, self.op.scales, rows, self.source) if self.deferred else sums

    def multiply(self, xs: SSAValue, acc: SSAValue, rows: Rows, piece: Piece) -> SSAValue:
        """The whole numbers are multiplied, and the sum over a group scaled: no product is rounded on the way."""
        e, b, packing, down = self.e, self.e.b, self.op.packing, rows.down
        with b.source(self.source):
            words, mask = self.words_of(piece, 0 if down else 1)
            packed = b.named("words", self.read(self.op.words, rows, words, mask))
            number = b.arange(self.per_word)
            places = b.add(b.mul(b.floordiv(number, 2), packing.bits), b.mul(b.mod(number, 2), 16))
            places = e.hinted("places", b.expand(b.expand(places, 0), 0 if down else 2))
            q = b.and_(b.shr(b.expand(packed, 2 if down else 1), places), (1 << packing.bits) - 1)
            if self.op.mins is None:
                q = b.sub(q, packing.zero)
            taken = shape(rows.vector)[0]
            q = e.hinted("q", b.reshape(b.cast(q, element_type(xs.type)), (taken, piece.size) if down else (piece.size, taken)))
            if self.deferred:
                return product(b, xs, q, acc, down)
            group = self.group_of(piece)
            scale = e.hinted("scale", b.cast(self.read(self.op.scales, rows, group, None), f32))
            total = b.add(acc, b.mul(product(b, xs, q, None, down), scale))
            if self.op.mins is None:
                return total
            least = e.hinted("least", b.cast(self.read(self.op.mins, rows, group, None), f32))
            x_sum = e.hinted("x_sum", b.reduce(b.cast(xs, f32), "sum", 1, keep_dims=True))
            return b.add(total, b.mul(b.trans(x_sum) if down else x_sum, least))

    def group_of(self, piece: Piece) -> SSAValue:
        """The group of a piece, which ends within it."""
        b, group = self.e.b, self.op.packing.group.data
        if shape_of(self.op.scales)[1] == 1:
            return b.constant(0)
        index = piece.over(b, group)
        return index if isinstance(index, SSAValue) else b.constant(index)


def weight_of(e: Emitter, contract: ContractOp | ContractPartialOp) -> Weight:
    """How a contraction reads its weight."""
    owner = contract.weight.owner
    if not isinstance(owner, DequantizeOp):
        return PlainWeight(e, contract)
    return (FloatWeight if owner.packing.floats else PackedWeight)(e, contract, owner)

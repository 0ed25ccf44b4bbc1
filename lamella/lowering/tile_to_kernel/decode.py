"""How a contraction of one token reads packed words: decoded on the way to the product. Skeletons ask; neither knows the other.

A word of packed numbers is taken apart where it was loaded. A shift puts number i at the top of the mantissa of 1.0, which makes
it a float without a conversion: 1 + q·2^-p, that is 2^-p·(2^p + q). x comes scaled by 2^p, and what 2^p adds to the sum over a word is known
from x alone: it is taken off there, before anything is large enough to be rounded by it. The scale multiplies the sum over a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from lamella.dialects.kernel.types import shape
from lamella.lowering.tile_to_kernel.decode_tiles import PackedTiles
from lamella.lowering.tile_to_kernel.places import Place
from lamella.lowering.tile_to_kernel.weight import Piece, Rows

ONE_BITS, MANTISSA = 0x3F800000, 23
"""The float 1.0, and the bits of its mantissa: a number of n bits or-ed in at bit 23 - p, n <= p, makes it 1 + q·2^-p."""


@dataclass(frozen=True)
class PackedWeight(PackedTiles):
    """Words of packed numbers, taken apart."""

    @property
    def per_word(self) -> int:
        """Numbers of a word."""
        return self.op.packing.per_word

    def groups(self, size: int) -> int:
        """Groups of columns, each with a scale, of a piece."""
        group = self.op.packing.group.data
        return 1 if self.op.groups == 1 else max(1, size // group)

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
            group = self.e.hinted("group", b.expand(b.add(b.arange(count), self.group_of(piece.start)), 0))
            total = self.op.groups
            inside = None if total % count == 0 else b.lt(group, total)
            found += self.factors_of(rows, group, inside)
            return [*found, *self.above(rows, self.block_of(piece, group), inside)] if self.op.per_super else found

    def block_of(self, piece: Piece, group: SSAValue) -> SSAValue:
        """Which of what multiplies scales is that of each `group` of a piece: one for all where the piece is a part of what shares it."""
        b, each = self.e.b, self.op.per_super
        together = each * self.op.packing.group.data
        if together % piece.size == 0:
            first = piece.over(b, together)
            return self.e.hinted("block", first if isinstance(first, SSAValue) else b.constant(first))
        return self.e.hinted("block", b.floordiv(group, each))

    def products(self, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        e, b = self.e, self.e.b
        words, *held = loaded
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
            scale, *least = self.widened(held)
            sums = b.mul(sums, scale)
            if least:
                x_sum = b.reduce(b.reshape(reduce(b.add, columns), (count, shape(words)[1] // count)), "sum", 1)
                sums = b.add(sums, b.mul(least[0], b.expand(e.hinted("x_sum", x_sum), 0)))
            return e.hinted("product", sums)

    def up(self, number: int) -> int:
        """p of number i of a word: 8, but 4 for those in the upper halves of bytes, which so share a shift with the lower ones."""
        return 8 if number < 4 else 4

    def number(self, words: SSAValue, number: int) -> SSAValue:
        """1 + q·2^-p of number i of each word, which holds q with its highest bit turned over: as a sign."""
        b, bits = self.e.b, self.op.packing.bits
        lies, goes = self.op.packing.shift(number), MANTISSA - self.up(number)
        moved = b.shl(words, goes - lies) if lies < goes else b.shr(words, lies - goes)
        ones, sign = ((1 << bits) - 1) << goes, 1 << (bits - 1 + goes)
        return self.e.hinted("q", b.bitcast(b.xor(b.and_(moved, ones), ONE_BITS | sign), f32))

    def places(self, piece: Piece) -> Sequence[Place]:
        """The columns of a piece by their number in a word: one vector a number, read as such, for a program has no cheaper way to reorder them."""
        e, b, per = self.e, self.e.b, self.per_word
        word = b.add(b.arange(piece.size // per), piece.over(b, per))
        inside = None if self.columns % piece.size == 0 else b.lt(word, self.columns // per)
        mask = None if inside is None else e.hinted("word_mask", inside)
        first, half = b.mul(word, 4), self.op.packing.half
        if per > 4:
            first = b.add(first, b.mul(b.floordiv(first, half), half))
        return [e.elsewhere(piece.place, e.hinted(f"cols{i}", b.add(first, i % 4 + half * (i // 4))), mask) for i in range(per)]

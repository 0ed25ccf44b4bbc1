"""How a contraction reads its weight: floats as they lie, or packed words decoded on the way. Skeletons ask; neither knows the other.

A word of packed numbers is taken apart where it was loaded. Number i is masked out where it lies and put into the mantissa of 2^23, which
makes it a float without a conversion: less 2^23 it is q·2^s, s being its place within its half of the word, and x comes scaled by 2^-s. All
of it is exact. The scale is applied to the sum over a word, or where a row has one scale, to the sum of the row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.tile import ContractOp, DequantizeOp
from lamella.lowering.kernel_builder import KernelBuilder, Operand
from lamella.lowering.kernel_folds import number
from lamella.lowering.tile_to_kernel.emitter import INT32_ELEMENTS, Emitter, Place, source_of

MAGIC, MAGIC_BITS = 2.0**23, 0x4B000000
"""The float whose last mantissa bit counts 1, and its bits: whole numbers below it can be or-ed into them."""


@dataclass(frozen=True)
class Piece:
    """Columns of K that are worked on at once: `size` from `start` on, and where x is read for them."""

    start: Operand
    size: int
    place: Place

    def over(self, b: KernelBuilder, divisor: int) -> Operand:
        """The first column divided by what divides it."""
        known = number(self.start) if isinstance(self.start, SSAValue) else self.start
        return int(known) // divisor if known is not None else b.floordiv(self.start, divisor)


@dataclass(frozen=True)
class Rows:
    """Rows of a weight that a program takes, as a vector, and their mask; `n` and `inside` are the same along their axis of a block."""

    vector: SSAValue
    vector_mask: SSAValue | None
    n: SSAValue
    inside: SSAValue | None


@dataclass(frozen=True)
class Weight(ABC):
    """The weight of one contraction inside a kernel under construction."""

    e: Emitter
    contract: ContractOp

    @property
    def columns(self) -> int:
        """K."""
        return shape_of(self.contract.weight)[1]

    @property
    def source(self) -> str:
        """What the ops that read and multiply it come from."""
        return source_of(self.contract)

    @abstractmethod
    def lanes(self, size: int) -> int:
        """Columns of the block of sums that `size` columns of K leave."""

    @abstractmethod
    def load(self, rows: Rows, piece: Piece) -> Sequence[SSAValue]:
        """What is read of some rows for a piece of K, before x is there."""

    @abstractmethod
    def products(self, loaded: Sequence[SSAValue], xs: SSAValue) -> SSAValue:
        """Of what was loaded and one row xs of x the products, [rows, lanes]: added up over lanes and pieces they are the product."""

    @abstractmethod
    def multiply(self, xs: SSAValue, acc: SSAValue, rows: Rows, piece: Piece) -> SSAValue:
        """`acc` [tokens, rows] with the products of a piece of x [tokens, size] added, on the tensor cores."""

    def scaled(self, sums: SSAValue, rows: Rows) -> SSAValue:
        """Finished sums, of each row or each token and row, with what the products left out."""
        return sums

    def read(self, value: SSAValue, rows: Rows, cols: SSAValue, mask: SSAValue | None, *, once: bool = False) -> SSAValue:
        """The numbers of a matrix in memory at the rows and at `cols`, which lie along the other axis. `once`: nobody reads them again."""
        b, (height, width) = self.e.b, shape_of(value)
        wide = height * width > INT32_ELEMENTS
        n, k = (b.cast(rows.n, i64), b.cast(cols, i64)) if wide else (rows.n, cols)
        offsets = self.e.hinted("offsets", b.add(b.mul(n, width), k))
        return b.load(self.e.pointers[value], offsets, b.all_of(rows.inside, mask), eviction="first" if once else None)


class PlainWeight(Weight):
    """Floats in memory."""

    def lanes(self, size: int) -> int:
        return size

    def load(self, rows: Rows, piece: Piece) -> Sequence[SSAValue]:
        b, at = self.e.b, piece.place
        assert at.cols is not None
        with b.source(self.source):
            self.e.hinted("row_start", b.mul(rows.n, self.columns))
            mask = b.expand(at.col_mask, 0) if at.col_mask is not None else None
            return (b.named("w", self.read(self.contract.weight, rows, b.expand(at.cols, 0), mask, once=True)),)

    def products(self, loaded: Sequence[SSAValue], xs: SSAValue) -> SSAValue:
        b, hinted = self.e.b, self.e.hinted
        with b.source(self.source):
            wide = hinted("x_f32", b.cast(xs, f32))
            return hinted("product", b.mul(hinted("w_f32", b.cast(loaded[0], f32)), b.expand(wide, 0)))

    def multiply(self, xs: SSAValue, acc: SSAValue, rows: Rows, piece: Piece) -> SSAValue:
        b = self.e.b
        down = self.e.hinted("k", b.expand(b.add(b.arange(piece.size), piece.start), 1))
        mask = None if self.columns % piece.size == 0 else b.lt(down, self.columns)
        with b.source(self.source):
            w = b.named("w", self.read(self.contract.weight, rows, down, mask))
            return b.dot(b.cast(xs, element_type(w.type)), w, acc)


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

    def lanes(self, size: int) -> int:
        return size // self.per_word

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
            group = self.e.hinted("group", b.floordiv(words, self.op.packing.group.data // self.per_word))
            for value, name in ((self.op.scales, "scale"), (self.op.mins, "least")):
                if value is not None:
                    found.append(b.named(name, self.read(value, rows, group, mask)))
            return found

    def products(self, loaded: Sequence[SSAValue], xs: SSAValue) -> SSAValue:
        e, b, packing = self.e, self.e.b, self.op.packing
        words, *factors = loaded
        zero = 0 if self.op.mins is not None else packing.zero
        with b.source(self.source):
            columns = self.taken_apart(e.hinted("x_f32", b.cast(xs, f32)))
            upper = e.hinted("upper", b.shr(words, 16))
            total: SSAValue | None = None
            for number, x in enumerate(columns):
                place = packing.bits * (number // 2)
                mask = ((1 << packing.bits) - 1) << place
                bits = b.or_(b.and_(upper if number % 2 else words, mask), MAGIC_BITS)
                q = e.hinted("q", b.sub(b.bitcast(bits, f32), MAGIC + zero * 2.0**place))
                part = b.mul(q, b.expand(e.hinted("x_scaled", b.mul(x, 2.0**-place)), 0))
                total = part if total is None else b.add(total, part)
            assert total is not None
            if factors:
                total = b.mul(total, b.cast(factors[0], f32))
            if self.op.mins is not None:
                x_sum = e.hinted("x_sum", reduce(b.add, columns))
                total = b.add(total, b.mul(b.cast(factors[1], f32), b.expand(x_sum, 0)))
            return e.hinted("product", total)

    def taken_apart(self, xs: SSAValue) -> list[SSAValue]:
        """The columns of x by their number in a word: one vector a number."""
        b, per = self.e.b, self.per_word
        halvings = per.bit_length() - 1
        parts = [b.reshape(xs, (shape(xs)[0] // per, *[2] * halvings))]
        # Splitting takes the last axis, which counts fastest: the digit found last counts most.
        for _ in range(halvings):
            halves = [b.split(part) for part in parts]
            parts = [half[digit] for digit in (0, 1) for half in halves]
        return [self.e.hinted(f"x{i}", part) for i, part in enumerate(parts)]

    def scaled(self, sums: SSAValue, rows: Rows) -> SSAValue:
        if not self.deferred:
            return sums
        b, block = self.e.b, len(shape(sums)) > 1
        n, mask = (rows.n, rows.inside) if block else (rows.vector, rows.vector_mask)
        with b.source(self.source):
            scale = self.e.hinted("scale", b.cast(b.load(self.e.pointers[self.op.scales], n, mask), f32))
            return b.mul(sums, scale)

    def multiply(self, xs: SSAValue, acc: SSAValue, rows: Rows, piece: Piece) -> SSAValue:
        """The whole numbers are multiplied, and the sum over a group scaled: no product is rounded on the way."""
        e, b, packing = self.e, self.e.b, self.op.packing
        with b.source(self.source):
            words, mask = self.words_of(piece, 1)
            packed = b.named("words", self.read(self.op.words, rows, words, mask))
            number = b.arange(self.per_word)
            places = b.add(b.mul(b.floordiv(number, 2), packing.bits), b.mul(b.mod(number, 2), 16))
            places = e.hinted("places", b.expand(b.expand(places, 0), 2))
            q = b.and_(b.shr(b.expand(packed, 1), places), (1 << packing.bits) - 1)
            if self.op.mins is None:
                q = b.sub(q, packing.zero)
            q = e.hinted("q", b.reshape(b.cast(q, element_type(xs.type)), (piece.size, shape(rows.vector)[0])))
            if self.deferred:
                return b.dot(xs, q, acc)
            group = self.group_of(piece)
            scale = e.hinted("scale", b.cast(self.read(self.op.scales, rows, group, None), f32))
            total = b.add(acc, b.mul(b.dot(xs, q), scale))
            if self.op.mins is None:
                return total
            least = e.hinted("least", b.cast(self.read(self.op.mins, rows, group, None), f32))
            x_sum = e.hinted("x_sum", b.reduce(b.cast(xs, f32), "sum", 1, keep_dims=True))
            return b.add(total, b.mul(x_sum, least))

    def group_of(self, piece: Piece) -> SSAValue:
        """The group of a piece, which ends within it."""
        b, group = self.e.b, self.op.packing.group.data
        if shape_of(self.op.scales)[1] == 1:
            return b.constant(0)
        index = piece.over(b, group)
        return index if isinstance(index, SSAValue) else b.constant(index)


def weight_of(e: Emitter, contract: ContractOp) -> Weight:
    """How a contraction reads its weight."""
    owner = contract.weight.owner
    return PackedWeight(e, contract, owner) if isinstance(owner, DequantizeOp) else PlainWeight(e, contract)

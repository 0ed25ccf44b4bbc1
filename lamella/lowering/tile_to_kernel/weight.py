"""How a contraction reads its weight: what skeletons ask of any, and floats as they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import shape_of
from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.tile import Contraction, ReduceOp
from lamella.lowering.kernel_builder import KernelBuilder, Operand
from lamella.lowering.kernel_folds import number
from lamella.lowering.tile_to_kernel.emitter import Emitter, source_of
from lamella.lowering.tile_to_kernel.places import INT32_ELEMENTS, Place
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES


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

    @property
    def down(self) -> bool:
        """Whether they are the rows of a block, [n, 1], and not its columns, [1, n]."""
        return len(shape(self.n)) == 2 and shape(self.n)[1] == 1 and shape(self.n)[0] == shape(self.vector)[0]


@dataclass(frozen=True)
class Weight(ABC):
    """The weight of one contraction inside a kernel under construction."""

    e: Emitter
    contract: Contraction

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
    def products(self, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        """Of what was loaded of a piece and the one row of x the products, [rows, lanes]: added up over lanes and pieces they are the product."""

    def added(self, total: SSAValue | None, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        """The sums so far with those `products` added; None: there are none yet."""
        products = self.products(loaded, x, piece)
        return products if total is None else self.e.b.add(total, products)

    def reducible(self, op: ReduceOp, piece: Piece) -> SSAValue:
        """What `op`, which reduces the row of x or what is computed from it, reduces of a piece: a block that those of other pieces are combined with."""
        return self.e.reducible(op, piece.place)

    def reduced(self, op: ReduceOp, block: SSAValue) -> SSAValue:
        """What `op` reduces the row to, from the `reducible` of all its pieces, combined."""
        b = self.e.b
        return REDUCTION_RULES[op.kind.data].along(b, b.reshape(block, (prod(shape(block)),)), 0, keep_dims=False)

    def summed(self, total: SSAValue, rows: int) -> SSAValue:
        """The products of so many rows from the finished sums [rows, lanes], or what `products` gave of them."""
        return self.e.b.reduce(total, "sum", 1)

    def unit(self, block: int) -> int:
        """Columns, of `block` neighbours, that are multiplied at once."""
        return block

    @property
    def paired(self) -> bool:
        """Whether two such pieces of columns share the bytes that are read for them."""
        return False

    def start(self, tokens: int, rows: int, down: bool) -> list[SSAValue]:
        """The sums before the first product: [tokens, rows], or [rows, tokens] if weight rows go `down`, and no fewer columns than a product has."""
        columns = max(tokens, kernel.MIN_DOT_N)
        return [self.e.b.named("acc", self.e.b.full((rows, columns) if down else (tokens, rows), 0.0, f32))]

    def ahead(self, rows: Rows, start: Operand, size: int, unit: int) -> list[SSAValue]:
        """What `multiply` reads besides the weight for `size` columns from `start` on: loads that a loop does not pipeline."""
        return []

    def ahead_each(self, rows: Rows, start: SSAValue, offsets: range, unit: int) -> list[list[SSAValue]]:
        """What is read `ahead` for the columns from each of `offsets` behind `start` on, a multiple of where they end."""
        return [self.ahead(rows, self.e.b.add(start, offset), offsets.step, unit) for offset in offsets]

    @abstractmethod
    def multiply(
        self, xs: Sequence[SSAValue], sums: Sequence[SSAValue], rows: Rows, pieces: Sequence[Piece], held: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """The sums with the products of neighbouring pieces of x, each [tokens, size], added, on the tensor cores; `held` is what was read `ahead`."""

    def total(self, sums: Sequence[SSAValue], tokens: int, down: bool) -> SSAValue:
        """The products of all columns, [tokens, rows], or [rows, tokens], from the sums."""
        b, (total,) = self.e.b, sums
        if not down or shape(total)[1] == tokens:
            return total
        # All columns are those of the one token, which was repeated.
        return b.mul(b.reduce(total, "sum", 1, keep_dims=True), 1.0 / shape(total)[1])

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

    @property
    def matrix(self) -> SSAValue:
        """What lies in memory."""
        return self.contract.weight

    def lanes(self, size: int) -> int:
        return size

    def load(self, rows: Rows, piece: Piece) -> Sequence[SSAValue]:
        b, at = self.e.b, piece.place
        assert at.cols is not None
        with b.source(self.source):
            self.e.hinted("row_start", b.mul(rows.n, self.columns))
            mask = b.expand(at.col_mask, 0) if at.col_mask is not None else None
            return (b.named("w", self.read(self.matrix, rows, b.expand(at.cols, 0), mask, once=True)),)

    def products(self, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        b, hinted = self.e.b, self.e.hinted
        xs = self.e.emit(x, piece.place)
        with b.source(self.source):
            wide = hinted("x_f32", b.cast(xs, f32))
            return hinted("product", b.mul(hinted("w_f32", b.cast(loaded[0], f32)), b.expand(wide, 0)))

    def multiply(
        self, xs: Sequence[SSAValue], sums: Sequence[SSAValue], rows: Rows, pieces: Sequence[Piece], held: Sequence[SSAValue]
    ) -> list[SSAValue]:
        b, (acc,) = self.e.b, sums
        with b.source(self.source):
            for x, piece in zip(xs, pieces, strict=True):
                acc = self.dot(x, self.tile(rows, piece), acc, rows.down)
        return [acc]

    def tile(self, rows: Rows, piece: Piece) -> SSAValue:
        """The numbers of the rows in a piece."""
        b = self.e.b
        across = self.e.hinted("k", b.expand(b.add(b.arange(piece.size), piece.start), 0 if rows.down else 1))
        mask = None if self.columns % piece.size == 0 else b.lt(across, self.columns)
        return b.named("w", self.read(self.matrix, rows, across, mask))

    def dot(self, xs: SSAValue, w: SSAValue, acc: SSAValue | None, down: bool) -> SSAValue:
        """`acc` with the products of x and a block of the weight added, in the element type of the weight."""
        return product(self.e.b, self.e.b.cast(xs, element_type(w.type)), w, acc, down)


def scaled_rows(e: Emitter, sums: SSAValue, scales: SSAValue, rows: Rows, source: str) -> SSAValue:
    """Finished sums, of each row or each token and row, times the one scale of each row."""
    b, block = e.b, len(shape(sums)) > 1
    n, mask = (rows.n, rows.inside) if block else (rows.vector, rows.vector_mask)
    with b.source(source):
        scale = e.hinted("scale", b.cast(b.load(e.pointers[scales], n, mask), f32))
        return b.mul(sums, scale)


def product(b: KernelBuilder, xs: SSAValue, w: SSAValue, acc: SSAValue | None, down: bool) -> SSAValue:
    """x [tokens, k] times w [k, rows]; or `down`, w [rows, k] times x transposed, repeated where it is one token. Added to `acc`, where there is one."""
    if not down:
        return b.dot(xs, w, acc)
    return b.dot(w, b.trans(b.broadcast(xs, (max(shape(xs)[0], kernel.MIN_DOT_N), shape(xs)[1]))), acc)

"""How a contraction of several tokens reads packed words: as tiles of bytes, which become the numbers that tensor cores multiply.

The whole numbers are multiplied, and the sum over the columns that share a scale is scaled: no product is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import Attribute, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.kernel import MIN_DOT_N
from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.tile import DequantizeOp
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.kernel_folds import number
from lamella.lowering.tile_to_kernel.packed_places import byte_of, signed_number
from lamella.lowering.tile_to_kernel.places import INT32_ELEMENTS
from lamella.lowering.tile_to_kernel.weight import Piece, Rows, Weight, product, scaled_rows
from lamella.passes.packed_columns import paired, unit

HALF = 1 / 16
"""Numbers out of halves of bytes come 16 times as large: the scale takes that back."""


@dataclass(frozen=True)
class PackedTiles(Weight):
    """Words of packed numbers, scales, and perhaps mins, read as tiles of bytes."""

    op: DequantizeOp

    @property
    def deferred(self) -> bool:
        """Whether the scale of a row multiplies its sum."""
        return self.op.mins is None and self.op.super_scales is None and self.op.groups == 1

    @property
    def paired(self) -> bool:
        return paired(self.op)

    @property
    def step(self) -> float:
        """What one unit of the numbers of `tiles` stands for, in steps of the scale."""
        return HALF if self.paired else 1.0

    def unit(self, block: int) -> int:
        return unit(self.op, block)

    def scaled(self, sums: SSAValue, rows: Rows) -> SSAValue:
        return scaled_rows(self.e, sums, self.op.scales, rows, self.source) if self.deferred else sums

    def bytes_of(self, rows: Rows, column: SSAValue, mask: SSAValue | None, *, once: bool = False) -> SSAValue:
        """The bytes of the rows at `column` of the bytes of a row. `once`: nobody reads them again."""
        e, b = self.e, self.e.b
        height, width = shape_of(self.op.words)
        wide = 4 * height * width > INT32_ELEMENTS
        n, k = (b.cast(rows.n, i64), b.cast(column, i64)) if wide else (rows.n, column)
        words = e.pointers[self.op.words]
        pointer = b.named(f"{(words.name_hint or 'packed').removesuffix('_ptr')}_bytes", b.as_bytes(words))
        offsets = e.hinted("offsets", b.add(b.mul(n, 4 * width), k))
        return b.named("packed", b.load(pointer, offsets, b.all_of(rows.inside, mask), eviction="first" if once else None))

    def tiles(self, rows: Rows, pieces: Sequence[Piece], element: Attribute | None = None) -> list[SSAValue]:
        """The numbers of the rows in each of neighbouring pieces, around zero; of `element`, or bytes. Of `paired` weights the pieces are pairs."""
        e, b, axis = self.e, self.e.b, 0 if rows.down else 1

        def across(piece: Piece, first: Operand) -> SSAValue:
            return e.hinted("column", b.expand(b.add(b.arange(piece.size), first), axis))

        found: list[SSAValue] = []
        if self.paired:
            for low in pieces[::2]:
                held = self.bytes_of(rows, across(low, b.floordiv(low.start, 2)), None)
                found += [b.named("lower", b.lower_half(held)), b.named("upper", b.upper_half(held))]
        for piece in () if self.paired else pieces:
            column = across(piece, piece.start)
            mask = None if self.columns % piece.size == 0 else b.lt(column, self.columns)
            found.append(self.bytes_of(rows, column, mask) if self.op.packing.bits == 8 else self.one_by_one(rows, column, mask))
        return found if element is None else [b.named("q", b.cast(tile, element)) for tile in found]

    def one_by_one(self, rows: Rows, column: SSAValue, mask: SSAValue | None) -> SSAValue:
        """Numbers of four bits at any columns: the half of its byte that each lies in moves to the top of a word, and back down with its sign."""
        byte, bit = byte_of(self.e.b, column, self.op.packing)
        return signed_number(self.e.b, self.bytes_of(rows, byte, mask), bit, 4)

    def ahead_each(self, rows: Rows, start: SSAValue, offsets: range, unit: int) -> list[list[SSAValue]]:
        """What multiplies scales is read once where all these columns share it."""
        over: list[SSAValue] = []
        together = self.op.per_super * self.op.packing.group.data
        if together and together % offsets.stop == 0:
            with self.e.b.source(self.source):
                over = self.above(rows, self.e.b.floordiv(start, together), None)
        return [self.ahead(rows, self.e.b.add(start, offset), offsets.step, unit, over) for offset in offsets]

    def ahead(self, rows: Rows, start: Operand, size: int, unit: int, over: Sequence[SSAValue] = ()) -> list[SSAValue]:
        """Scales of the groups, each followed by its least values, and both by what multiplies them, which is `over` if that is known."""
        if self.deferred:
            return []
        whole = self.op.groups == 1
        step = size if whole else max(unit, self.op.packing.group.data)
        found: list[SSAValue] = []
        with self.e.b.source(self.source):
            for first in range(0, size, step):
                group = self.e.b.constant(0) if whole else self.group_of(self.e.b.add(start, first))
                found += self.factors_of(rows, group, None)
                if self.op.per_super:
                    found += over or self.above(rows, self.e.b.floordiv(group, self.op.per_super), None)
        return found

    def factors_of(self, rows: Rows, group: SSAValue, mask: SSAValue | None) -> list[SSAValue]:
        """Scales, and perhaps least values, of the rows in some groups, as they lie in memory."""
        parts = (("scale", self.op.scales), ("least", self.op.mins))
        return [self.e.b.named(name, self.of_group(part, rows, group, mask)) for name, part in parts if part is not None]

    def above(self, rows: Rows, block: SSAValue, mask: SSAValue | None) -> list[SSAValue]:
        """What multiplies scales, and perhaps least values, of the rows, as it lies in memory; `block` says which of a row, of each group or of all."""
        parts = (("super_scale", self.op.super_scales), ("super_least", self.op.super_mins))
        return [self.e.b.named(name, self.of_group(part, rows, block, mask)) for name, part in parts if part is not None]

    def widened(self, held: Sequence[SSAValue]) -> list[SSAValue]:
        """What `factors_of` gave, followed by what was `above`, as scales and perhaps least values in float32, which holds their products exactly."""
        b, wide = self.e.b, [self.e.b.cast(value, f32) for value in held]
        if not self.op.per_super:
            return wide
        own, over = wide[: len(wide) // 2], wide[len(wide) // 2 :]
        return [b.mul(factor, above) for factor, above in zip(own, over, strict=True)]

    def multiply(
        self, xs: Sequence[SSAValue], sums: Sequence[SSAValue], rows: Rows, pieces: Sequence[Piece], held: Sequence[SSAValue]
    ) -> list[SSAValue]:
        b, (acc,) = self.e.b, sums
        with b.source(self.source):
            tiles = self.tiles(rows, pieces, element_type(xs[0].type))
            if self.deferred:
                for x, tile in zip(xs, tiles, strict=True):
                    acc = product(b, x, tile, acc, rows.down)
                return [acc]
            for members, (scale, least) in zip(self.by_group(pieces), self.factors(held), strict=True):
                total: SSAValue | None = None
                for member in members:
                    total = product(b, xs[member], tiles[member], total, rows.down)
                assert total is not None
                acc = b.add(acc, b.mul(total, scale))
                if least is not None:
                    acc = b.add(acc, self.least_sums([xs[member] for member in members], rows, least))
        return [acc]

    def total(self, sums: Sequence[SSAValue], tokens: int, down: bool) -> SSAValue:
        total = super().total(sums, tokens, down)
        return self.e.b.mul(total, self.step) if self.deferred and self.paired else total

    def of_group(self, value: SSAValue, rows: Rows, group: SSAValue, mask: SSAValue | None) -> SSAValue:
        """Scales or least values of the rows in some groups."""
        b, together = self.e.b, self.op.together
        if not together:
            return self.read(value, rows, group, mask)
        first, column = group, rows.n
        if together > 1:
            first, column = b.floordiv(group, together), b.add(b.mul(rows.n, together), b.mod(group, together))
        offsets = self.e.hinted("offsets", b.add(b.mul(first, shape_of(value)[1]), column))
        return b.load(self.e.pointers[value], offsets, b.all_of(rows.inside, mask))

    def factors(self, held: Sequence[SSAValue]) -> list[tuple[SSAValue, SSAValue | None]]:
        """Of each group, from what was read ahead: scales for the numbers of `tiles`, and what a number of 0 stands for, if that is not 0."""
        b = self.e.b
        each = len(self.op.operands) - 1
        found: list[tuple[SSAValue, SSAValue | None]] = []
        for at in range(0, len(held), each):
            scale, *least = self.widened(held[at : at + each])
            found.append((b.mul(scale, self.step), b.add(least[0], b.mul(scale, float(self.op.packing.zero))) if least else None))
        return found

    def least_sums(self, xs: Sequence[SSAValue], rows: Rows, least: SSAValue) -> SSAValue:
        """What a number of 0 stands for in a group, times the sum of x there: [tokens, rows], or [rows, tokens] if they go down."""
        b, one = self.e.b, shape(xs[0])[0] == 1
        if rows.down and shape(xs[0])[0] >= MIN_DOT_N:
            # As a product with ones the sums lie as the other products do; as a reduction they would have to be moved there.
            ones = b.full((shape(rows.vector)[0], shape(xs[0])[1]), 1.0, element_type(xs[0].type))
            sums = reduce(lambda total, x: product(b, x, ones, total, down=True), xs, None)
            assert sums is not None
            return b.mul(b.named("x_sum", sums), least)
        x_sum = reduce(
            b.add, [b.reduce(b.cast(b.reshape(x, shape(x)[1:]) if one else x, f32), "sum", 0 if one else 1, keep_dims=not one) for x in xs]
        )
        x_sum.name_hint = "x_sum"
        return b.mul(b.trans(x_sum) if rows.down and not one else x_sum, least)

    def by_group(self, pieces: Sequence[Piece]) -> list[list[int]]:
        """Which of neighbouring pieces lie in one group, group by group."""
        whole = self.op.groups == 1
        together = len(pieces) if whole else max(1, self.op.packing.group.data // pieces[0].size)
        return [list(range(first, min(first + together, len(pieces)))) for first in range(0, len(pieces), together)]

    def group_of(self, start: Operand) -> SSAValue:
        """The group that holds the columns from `start` on."""
        b, group = self.e.b, self.op.packing.group.data
        known = number(start) if isinstance(start, SSAValue) else start
        return b.constant(int(known) // group) if known is not None else b.floordiv(start, group)

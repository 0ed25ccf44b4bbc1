"""One token times packed weights on the tensor cores, read as a row of numbers is read best: a piece of a row is cut into eight runs of 64 bytes.

A product of the tensor cores has at least eight columns. For one token they are the eight runs of a piece of x, and each row of a weight makes eight rows of
the product, one a run: of the 64 numbers of a row that come out, those where run meets run count, and their sum is what is wanted. A warp thus reads 512
neighbouring bytes of a row at once, and each thread multiplies what it loaded: the order of columns inside a run, which a sum does not know, is the
tensor cores' own, so that nothing moves between threads. Where a group of columns has a scale, it multiplies the sum of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

from xdsl.dialects.builtin import BFloat16Type, f32
from xdsl.ir import Attribute, SSAValue

from lamella.dialects.attributes import element_type_of
from lamella.dialects.kernel import raised_by
from lamella.dialects.kernel.types import element, element_type, shape
from lamella.dialects.tile import ReduceOp, SwapPairsOp
from lamella.lowering.tile_to_kernel.decode_tiles import PackedTiles
from lamella.lowering.tile_to_kernel.emitter import source_of
from lamella.lowering.tile_to_kernel.places import Place
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES, added_squares
from lamella.lowering.tile_to_kernel.weight import Piece, Rows
from lamella.passes.packed_columns import RUN_BYTES, RUNS, run_columns

THREAD, WORD = 16, 4
"""Bytes that a thread loads at once, and those of them that one product takes together."""
THREADS = RUN_BYTES // THREAD
"""Threads that share a run."""
MOST_RAISED = 1 << 8
"""What numbers may be raised by: sums in float32 lose as many bits as it has. With the 1032 of half a byte in f16, and one x of 25,000 among ones, products were off by 5e-5 of the largest."""
HALF, HALVES = 8, 2
"""Numbers of x, of two bytes, that a thread loads at once: half of what meets its bytes of the weight."""
PAIR = 2
"""Numbers in a register of the tensor cores, pairs of a word, and words of a half."""


@dataclass(frozen=True)
class RunWeight(PackedTiles):
    """A weight of bytes, of two numbers a byte, or of eight-bit floats, whose rows are cut into runs."""

    @property
    def run(self) -> int:
        """Columns of a run."""
        return run_columns(self.op)

    @property
    def parts(self) -> tuple[str, ...]:
        """The numbers of a byte, in the order in which their columns follow each other."""
        return ("lower", "upper") if self.op.packing.bits == 4 else ("whole",)

    def run_of(self, rows: int) -> SSAValue:
        """Of each of so many rows of a product, [rows, 1], the number of its run."""
        return self.e.hinted("run", self.e.b.expand(self.e.b.mod(self.e.b.arange(rows), RUNS), 1))

    def lanes(self, size: int) -> int:
        return RUNS

    def load(self, rows: Rows, piece: Piece) -> Sequence[SSAValue]:
        """The bytes of a piece of eight runs of each row; `rows` name each row eight times. Then scales, and perhaps least values, of their groups."""
        e, b = self.e, self.e.b
        with b.source(self.source):
            run = self.run_of(shape(rows.vector)[0])
            inside = b.add(b.mul(run, RUN_BYTES), b.expand(b.arange(RUN_BYTES), 0))
            column = e.hinted("column", b.add(inside, piece.over(b, self.run // RUN_BYTES)))
            if self.op.packing.floats:
                found = [b.named("packed", self.read(self.op.words, rows, column, None, once=True))]
            else:
                found = [self.bytes_of(rows, column, None, once=True)]
            if not self.deferred:
                found += self.factors_of(rows, self.group_of_run(run, piece), None)
        return found

    def group_of_run(self, run: SSAValue, piece: Piece) -> SSAValue:
        """The group of each run of a piece."""
        b, group = self.e.b, self.op.packing.group.data
        if self.op.groups == 1:
            return b.constant(0)
        first = b.add(run, piece.over(b, self.run))
        return self.e.hinted("group", b.floordiv(first, group // self.run) if group > self.run else first)

    def products(self, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        return self.added(None, loaded, x, piece)

    def added(self, total: SSAValue | None, loaded: Sequence[SSAValue], x: SSAValue, piece: Piece) -> SSAValue:
        """Where no scale comes between, products are added up where they are made."""
        e, b = self.e, self.e.b
        packed, *held = loaded
        halves = [self.x_of(x, piece, number) for number in range(len(self.parts))]
        with b.source(self.source):
            found = None if held else total
            columns = [self.joined(half, self.as_loaded) for half in halves]
            for part, x_part in zip(self.parts, columns, strict=True):
                found = b.dot(self.in_order(self.wide(part, packed, element_type_of(x))), b.trans(x_part), found)
            assert found is not None
            if held:
                scale, *least = self.widened(held)
                found = b.mul(found, scale)
                if least:
                    # A number of 0 without sign stands for the least value, and lies `zero` below the number of 0 that is stored.
                    own = b.add(least[0], b.mul(scale, float(self.op.packing.zero - self.raised(element(x)))))
                    found = b.add(found, b.mul(own, self.x_sum(shape(packed)[0], columns)))
        product = e.hinted("product", found)
        return b.add(total, product) if held and total is not None else product

    def places(self, piece: Piece, part: int) -> tuple[Place, Place]:
        """Where x meets a part of the bytes of each run, [8, 32] twice: for each thread of a run the first and the second half of its columns."""
        e, b = self.e, self.e.b
        lane = b.arange(RUN_BYTES // 2)
        across = b.add(b.mul(b.floordiv(lane, HALF), THREAD), b.mod(lane, HALF))
        down = b.expand(b.mul(b.arange(RUNS), self.run), 1)
        first = e.hinted("first", b.add(b.add(down, b.expand(across, 0)), piece.start))
        starts = (part * RUN_BYTES, part * RUN_BYTES + HALF)
        found = [e.elsewhere(piece.place, e.hinted("cols", b.add(first, offset))) for offset in starts]
        return found[0], found[1]

    def x_of(self, x: SSAValue, piece: Piece, part: int) -> tuple[SSAValue, SSAValue]:
        """x at those places."""
        first, second = self.places(piece, part)
        stored = x.owner.x if isinstance(x.owner, SwapPairsOp) else x
        return self.e.emit(stored, first), self.e.emit(stored, second)

    def raised(self, to: str) -> int:
        """How much larger than they are numbers are multiplied: where the sum of x over a run is there, nothing need be taken off each of them."""
        by = None if self.op.mins is None else raised_by(self.parts[0], to)
        return by if by is not None and by <= MOST_RAISED else 0

    def wide(self, part: str, packed: SSAValue, to: Attribute) -> SSAValue:
        """The numbers in a part of bytes in the element type of x, exactly, but for what they are `raised` by."""
        b = self.e.b
        if not self.op.packing.floats:
            return b.named(part, b.widen(part, packed, to, raised=self.raised(str(to)) > 0))
        # From f16, which float8 becomes first, to bf16 there is only a slow instruction for one number; from f32 one for two.
        return b.named("w_wide", b.cast(b.cast(packed, f32) if isinstance(to, BFloat16Type) else packed, to))

    def reducible(self, op: ReduceOp, piece: Piece) -> SSAValue:
        """Of a sum of squares of x, or of a row like it, products of its runs with each other, [16, 8]; else a block of [8, 32]."""
        b = self.e.b
        numbers = range(len(self.parts))
        squared = self.multiplied_by_itself(op)
        if squared is not None:
            as_loaded = self.as_loaded or squared is not self.contract.x
            columns = [self.joined(self.x_of(squared, piece, number), as_loaded) for number in numbers]
            with b.source(source_of(op)):
                total: SSAValue | None = None
                for x in columns:
                    # The tensor cores take sixteen rows: each run twice.
                    twice = b.reshape(b.broadcast(b.expand(x, 0), (2, RUNS, RUN_BYTES)), (2 * RUNS, RUN_BYTES))
                    total = b.dot(twice, b.trans(x), total)
                assert total is not None
                return self.e.hinted("squares", total)
        blocks = [self.e.reducible(op, place) for number in numbers for place in self.places(piece, number)]
        with b.source(source_of(op)):
            return reduce(partial(REDUCTION_RULES[op.kind.data].combine, b), blocks)

    def multiplied_by_itself(self, op: ReduceOp) -> SSAValue | None:
        """The row whose squares `op` adds up, where it has the type of x, which products take."""
        squared = added_squares(op)
        return squared if squared is not None and element_type_of(squared) == element_type_of(self.contract.x) else None

    def reduced(self, op: ReduceOp, block: SSAValue) -> SSAValue:
        if self.multiplied_by_itself(op) is not None:
            # Each run met itself twice.
            return self.e.b.reduce(self.summed(block, 2), "max", 0)
        return super().reduced(op, block)

    def x_sum(self, rows: int, joined: Sequence[SSAValue]) -> SSAValue:
        """The sum of x over each run, [rows, 8], in every row alike: as a product with ones it lies as the other products do."""
        b, total = self.e.b, None
        ones = b.named("ones", b.full((rows, RUN_BYTES), 1.0, element_type(joined[0].type)))
        for x in joined:
            total = b.dot(ones, b.trans(x), total)
        assert total is not None
        return self.e.hinted("x_sum", total)

    @property
    def as_loaded(self) -> bool:
        """Whether a product takes neighbouring pairs of x as memory has them; else each is moved beside the other.

        Floats are widened two by two, and a product takes both pairs of a word; whole numbers word by word, and a product takes the first pairs of two words, then the
        second, which x that was stored for it has side by side (`swap-pairs`).
        """
        return self.op.packing.floats or isinstance(self.contract.x.owner, SwapPairsOp)

    def in_order(self, numbers: SSAValue) -> SSAValue:
        """The numbers of runs, [rows, 64], in the order of products, each of which takes two pairs of a thread."""
        b, rows = self.e.b, shape(numbers)[0]
        if self.op.packing.floats:
            pairs = b.reshape(numbers, (rows, THREADS, HALVES, PAIR, PAIR, PAIR))
            return b.reshape(b.trans(pairs, (0, 2, 4, 1, 3, 5)), (rows, RUN_BYTES))
        words = b.reshape(numbers, (rows, THREADS, THREAD // WORD, WORD))
        return b.reshape(b.trans(words, (0, 2, 1, 3)), (rows, RUN_BYTES))

    def joined(self, halves: tuple[SSAValue, SSAValue], as_loaded: bool) -> SSAValue:
        """The two halves of x in each run in that order, [8, 64]."""
        b = self.e.b
        if as_loaded:
            first, second = (b.reshape(half, (RUNS, THREADS, PAIR, PAIR, PAIR)) for half in halves)
            return b.reshape(b.trans(b.join(first, second), (0, 5, 3, 1, 2, 4)), (RUNS, RUN_BYTES))
        first, second = (b.reshape(half, (RUNS, THREADS, HALF // WORD, WORD)) for half in halves)
        return b.reshape(b.trans(b.join(first, second), (0, 4, 2, 1, 3)), (RUNS, RUN_BYTES))

    def summed(self, total: SSAValue, rows: int) -> SSAValue:
        """What is wanted of finished sums [8 · rows, 8]: of each row those where a run of it meets the same of x, [rows]."""
        b = self.e.b
        own = b.where(b.eq(self.run_of(shape(total)[0]), b.expand(b.arange(RUNS), 0)), total, 0.0)
        return b.reduce(b.reshape(own, (rows, RUNS * RUNS)), "sum", 1)

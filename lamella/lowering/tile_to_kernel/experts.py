"""The skeletons of mixtures of experts: a program makes the choice of a token, or multiplies a row by weight rows of the expert it chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import python_int, shape_of
from lamella.dialects.kernel.types import shape
from lamella.dialects.tile import ContractExpertsOp, FusedOp, RouteOp, ScheduleAttr, SortChoicesOp
from lamella.lowering.kernel_builder import KernelBuilder, Operand
from lamella.lowering.tile_to_kernel.emitter import Emitter, source_of
from lamella.lowering.tile_to_kernel.places import Place
from lamella.lowering.tile_to_kernel.weight import Piece, Rows, Weight
from lamella.lowering.tile_to_kernel.weights import weight_of
from lamella.passes.contractions import WORDS_UNROLLED, takes_words


def lower_route(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """One token a program: a softmax over its experts, then the largest probability and its first index, as often as there are choices."""
    op = next(o for o in fused.body.block.ops if isinstance(o, RouteOp))
    e = Emitter(fused, name, schedule)
    b = e.b
    (tokens, experts), top_k = shape_of(op.logits), python_int(op.top_k)
    with b.source(source_of(op)):
        row = b.named("row", b.program_id(0)) if tokens > 1 else b.constant(0)
        index = b.arange(schedule.get("columns"))
        inside = None if experts == schedule.get("columns") else b.lt(index, experts)
        logits = b.cast(b.load(e.pointers[op.logits], b.add(b.mul(row, experts), index), inside, -math.inf), f32)
        exponent = b.named("exponent", b.exp(b.sub(logits, b.reduce(logits, "max", 0))))
        left = b.named("probability", b.div(exponent, b.reduce(exponent, "sum", 0)))
        size = 1 << max(0, top_k - 1).bit_length()
        choice = b.named("choice", b.arange(size))
        weights, chosen = b.full((size,), 0.0, f32), b.full((size,), 0, i32)
        for place in range(top_k):
            largest = b.reduce(left, "max", 0)
            expert = b.reduce(b.where(b.eq(left, largest), index, experts - 1), "min", 0)
            here = b.eq(choice, place)
            # One choice is no column: rows of one number are stored as numbers.
            weights = largest if top_k == 1 else b.where(here, largest, weights)
            chosen = expert if top_k == 1 else b.where(here, expert, chosen)
            left = b.where(b.eq(index, expert), -1.0, left)
        if op.normalized.value.data:
            weights = b.div(weights, weights if top_k == 1 else b.reduce(weights, "sum", 0))
    at = Place(row, choice, None, None if size == top_k else b.lt(choice, top_k))
    e.define(op.weights, at, b.named("weights", weights))
    e.define(op.chosen, at, b.named("chosen", chosen))
    for item in e.stores:
        e.store(item, at)
    return b.finish(), (tokens, 1, 1)


def lower_experts(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """Programs over (column tiles, choices): a program multiplies one row of x by `rows` weight rows of one expert, `k` columns at a time.

    So a step of one token reads the weights of the experts it chose, and of no other.
    """
    e = Emitter(fused, name, schedule)
    b = e.b
    contracts = [op for op in fused.body.block.ops if isinstance(op, ContractExpertsOp)]
    first = contracts[0]
    rows, width = shape_of(first.result)
    block_n = schedule.get("rows")
    with b.source(source_of(first)):
        row = b.named("row", b.program_id(1)) if rows > 1 else b.constant(0)
        expert = b.named("expert", b.load(e.pointers[first.chosen], row))
        n = b.named("n", b.add(b.mul(b.program_id(0), block_n), b.arange(block_n)))
        n_mask = None if width % block_n == 0 else b.lt(n, width)
        x_row = b.floordiv(row, first.share) if first.share > 1 else row
        taken = rows_of(b, b.named("weight_row", b.add(b.mul(expert, width), n)), n_mask, 1)
    weights = [weight_of(e, contract) for contract in contracts]
    at = Place(row, n, None, n_mask)
    for contract, weight, total in zip(contracts, weights, OneRow(e, weights, taken, x_row, schedule.get("k")).sums(), strict=True):
        with b.source(source_of(contract)):
            e.define(contract.result, at, b.named("y", weight.scaled(b.reduce(total, "sum", 1), taken)))
    for item in e.stores:
        e.store(item, at)
    return b.finish(), (-(-width // block_n), rows, 1)


@dataclass(frozen=True)
class OneRow:
    """The products of one row of x with weight rows of one expert."""

    e: Emitter
    weights: Sequence[Weight]
    taken: Rows
    row: Operand
    """Of x."""
    block_k: int

    def sums(self) -> list[SSAValue]:
        """The products of each contraction, [rows, lanes], with all pieces of K added."""
        contracts = [weight.contract for weight in self.weights]
        k = self.weights[0].columns
        starts = range(0, k, self.block_k)
        words = all(takes_words(contract) for contract in contracts)
        if len(starts) <= (WORDS_UNROLLED if words else 1):
            pieces = [self.piece(start) for start in starts]
            loaded = [self.load(piece) for piece in pieces]
            sums: list[SSAValue] = []
            for piece, held in zip(pieces, loaded, strict=True):
                sums = self.added(sums, piece, held)
            return sums
        return self.in_a_loop(starts[-1] if words else k, words)

    def in_a_loop(self, end: int, ahead: bool) -> list[SSAValue]:
        """Piece by piece; with `ahead` each trip asks for the next piece before it takes its own apart, and what follows the loop for none."""
        e, b = self.e, self.e.b
        height = shape(self.taken.vector)[0]
        start = [b.named("acc", b.full((height, weight.lanes(self.block_k)), 0.0, f32)) for weight in self.weights]
        carried = [start, *(self.load(self.piece(0)) if ahead else ())]
        with b.for_(0, end, self.block_k, init=[value for own in carried for value in own]) as loop, e.scope():
            piece = self.piece(loop.index)
            following = self.load(self.piece(b.add(loop.index, self.block_k))) if ahead else []
            sums, *held = apart(loop.values, carried)
            loop.yields(*self.added(sums, piece, held or self.load(piece)), *(value for read in following for value in read))
        sums, *held = apart(loop.results, carried)
        return self.added(sums, self.piece(end), held) if ahead else sums

    def piece(self, start: Operand) -> Piece:
        """The piece of K from `start` on."""
        return Piece(start, self.block_k, self.e.columns(self.row, None, start, self.block_k, self.weights[0].columns))

    def load(self, piece: Piece) -> list[Sequence[SSAValue]]:
        """What is read of each weight for a piece."""
        return [weight.load(self.taken, piece) for weight in self.weights]

    def added(self, sums: Sequence[SSAValue], piece: Piece, held: Sequence[Sequence[SSAValue]]) -> list[SSAValue]:
        """The sums so far (none yet: empty) with the products of a piece."""
        products = [weight.products(own, weight.contract.x, piece) for weight, own in zip(self.weights, held, strict=True)]
        return [self.e.b.add(total, product) for total, product in zip(sums, products, strict=True)] if sums else products


def lower_sort(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """A program takes `rows` choices: the place of each is the number of those that come before it, by expert and then by number."""
    op = next(o for o in fused.body.block.ops if isinstance(o, SortChoicesOp))
    e = Emitter(fused, name, schedule)
    b = e.b
    count, block = shape_of(op.result)[0], schedule.get("rows")
    with b.source(source_of(op)):
        own = b.named("choice", b.add(b.mul(b.program_id(0), block), b.arange(block)))
        inside = None if count % block == 0 else b.lt(own, count)
        expert = b.named("expert", b.load(e.pointers[op.chosen], own, inside, 0))
        with b.for_(0, count, block, init=[b.named("place", b.full((block,), 0, i32))]) as loop, e.scope():
            other = b.named("other", b.add(b.arange(block), loop.index))
            there = None if count % block == 0 else b.lt(other, count)
            # What is not there comes after everything.
            theirs = b.named("theirs", b.expand(b.load(e.pointers[op.chosen], other, there, 2**31 - 1), 0))
            mine = b.expand(expert, 1)
            earlier = b.and_(b.eq(theirs, mine), b.lt(b.expand(other, 0), b.expand(own, 1)))
            before = b.named("before", b.or_(b.lt(theirs, mine), earlier))
            loop.yields(b.add(loop.values[0], b.reduce(b.where(before, 1, 0), "sum", 1)))
    with b.source("store"):
        b.store(e.stores[0].pointer, loop.results[0], own, inside)
    return b.finish(), (-(-count // block), 1, 1)


def lower_expert_tiles(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """Programs over (tiles of `m` sorted choices, column tiles), on the tensor cores: a tile multiplies by the weights of each expert it names.

    The choices of one expert lie side by side, so most tiles name one or two, and neighbouring programs share the weights of an expert.
    A tile computes all its rows for each of its experts and stores those that chose it.
    """
    e = Emitter(fused, name, schedule, num_stages=schedule.get("stages"))
    b = e.b
    contracts = [op for op in fused.body.block.ops if isinstance(op, ContractExpertsOp)]
    first = contracts[0]
    assert first.order is not None
    (rows, width), k = shape_of(first.result), shape_of(first.x)[1]
    block_m, block_n, block_k = schedule.get("m"), schedule.get("n"), schedule.get("k")
    weights = [weight_of(e, contract) for contract in contracts]
    with b.source(source_of(first)):
        m = b.named("m", b.add(b.mul(b.program_id(0), block_m), b.arange(block_m)))
        inside = None if rows % block_m == 0 else b.lt(m, rows)
        choice = b.named("choice", b.load(e.pointers[first.order], m, inside, 0))
        chosen = b.named("chosen", b.load(e.pointers[first.chosen], choice, inside, -1))
        n = b.named("n", b.add(b.mul(b.program_id(1), block_n), b.arange(block_n)))
        # Beyond the last choice there is no expert.
        least = chosen if inside is None else b.where(inside, chosen, python_int(first.experts))
        low, high = b.named("low", b.reduce(least, "min", 0)), b.named("high", b.add(b.reduce(chosen, "max", 0), 1))
    with b.for_(low, high, 1) as named, e.scope():
        expert = b.named("expert", named.index)
        mine = b.named("mine", b.eq(chosen, expert))
        chosen_here = b.named("chosen_here", b.gt(b.reduce(b.where(mine, 1, 0), "sum", 0), 0))
        n_mask = None if width % block_n == 0 else b.lt(n, width)
        across = b.expand(n_mask, 0) if n_mask is not None else None
        at = Place(b.named("row", b.expand(choice, 1)), b.expand(n, 0), b.expand(mine, 1), across)
        x_row = b.floordiv(at.rows, first.share) if first.share > 1 else at.rows
        taken = rows_of(b, b.named("weight_row", b.add(b.mul(expert, width), n)), n_mask, 0)
        with b.if_(chosen_here), e.scope():
            starts = [weight.start(block_m, block_n, False) for weight in weights]
            stages = schedule.get("stages") if k > block_k else None
            with b.for_(0, k, block_k, init=[value for own in starts for value in own], num_stages=stages) as loop, e.scope():
                sums = apart(loop.values, starts)
                rows_of_x = ManyRows(e, x_row, at.row_mask, loop.index, block_k)
                loop.yields(*(value for w, own in zip(weights, sums, strict=True) for value in rows_of_x.times(w, own, taken)))
            totals = apart(loop.results, starts)
            for contract, weight, own in zip(contracts, weights, totals, strict=True):
                e.define(contract.result, at, weight.scaled(weight.total(own, block_m, False), taken))
            for item in e.stores:
                e.store(item, at)
    return b.finish(), (-(-rows // block_m), -(-width // block_n), 1)


@dataclass
class ManyRows:
    """Some columns of rows of x that one expert multiplies, in pieces as each weight wants them."""

    e: Emitter
    rows: Operand
    mask: SSAValue | None
    start: SSAValue
    size: int
    pieces: dict[tuple[int, int], Piece] = field(default_factory=dict[tuple[int, int], Piece])
    """By distance from `start` and by size: weights of one layout read x once."""

    def piece(self, offset: int, size: int, k: int) -> Piece:
        """So many columns of K."""
        if (offset, size) not in self.pieces:
            start = self.e.b.add(self.start, offset)
            self.pieces[offset, size] = Piece(start, size, self.e.columns(self.rows, self.mask, start, size, k))
        return self.pieces[offset, size]

    def times(self, weight: Weight, sums: list[SSAValue], taken: Rows) -> list[SSAValue]:
        """The sums with the products with the weight rows `taken` added."""
        unit = weight.unit(self.size)
        together = 2 * unit if weight.paired else unit
        offsets = range(0, self.size, together)
        held = weight.ahead_each(taken, self.start, offsets, unit)
        for offset, read in zip(offsets, held, strict=True):
            pieces = [self.piece(offset + own, unit, weight.columns) for own in range(0, together, unit)]
            xs = [self.e.emit(weight.contract.x, piece.place) for piece in pieces]
            sums = weight.multiply(xs, sums, taken, pieces, read)
        return sums


def rows_of(b: KernelBuilder, rows: SSAValue, mask: SSAValue | None, axis: int) -> Rows:
    """Rows of a weight that lie across the other axis than `axis` of a block."""
    return Rows(rows, mask, b.expand(rows, axis), b.expand(mask, axis) if mask is not None else None)


def apart(values: Sequence[SSAValue], like: Sequence[Sequence[SSAValue]]) -> list[list[SSAValue]]:
    """Values one after the other as lists of the lengths of `like`."""
    left = list(values)
    return [[left.pop(0) for _ in own] for own in like]

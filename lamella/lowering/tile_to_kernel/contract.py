"""Regions around contractions, and the skeleton for one token, `gemv`: programs take rows of the weights. `mma.py` has that for several.

Contractions whose results meet in one epilogue are computed side by side; the others split the grid between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from xdsl.dialects.builtin import f32
from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import python_int, shape_of
from lamella.dialects.kernel import DescriptorType
from lamella.dialects.kernel.types import shape
from lamella.dialects.messages import location, subject
from lamella.dialects.tile import (
    AddColumnsOp,
    ContractMergeOp,
    ContractOp,
    ContractPartialOp,
    FusedOp,
    ReduceOp,
    RotateOp,
    ScatterOp,
    ScheduleAttr,
    YieldOp,
)
from lamella.errors import PassError
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.quotients import quotient, remainder
from lamella.lowering.tile_to_kernel.divided_grid import over_parts
from lamella.lowering.tile_to_kernel.emitter import NO_DESCRIPTORS, Emitter, source_of
from lamella.lowering.tile_to_kernel.places import Place, Store
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES
from lamella.lowering.tile_to_kernel.weight import Piece, Rows, Weight
from lamella.lowering.tile_to_kernel.weights import weight_of
from lamella.passes.contractions import reductions_on_the_way, written_out
from lamella.passes.packed_columns import RUNS, piece_columns
from lamella.passes.region_parts import Parts, parts
from lamella.passes.row_parts import data_operands

Loaded: TypeAlias = "Sequence[Sequence[Sequence[SSAValue]]]"
"""What was read of pieces of K: for each piece, of each weight, its blocks."""


@dataclass(frozen=True)
class Component:
    """Contractions side by side: their columns, the programs they take, and what is computed and stored after them."""

    contracts: list[ContractOp | ContractPartialOp]
    ops: list[Operation]
    stores: list[Store]
    width: int
    tiles: int


class ContractEmitter(Emitter):
    """An emitter that rotates the columns a program accumulated: partners lie side by side, so a pair is split, turned and joined."""

    def __init__(
        self,
        fused: FusedOp,
        name: str,
        schedule: ScheduleAttr,
        settled: Sequence[bool],
        *,
        num_stages: int = 1,
        described: Mapping[SSAValue, DescriptorType] = NO_DESCRIPTORS,
    ) -> None:
        """`settled` says of each input whether it may be read before the launches before this one end; `described` ones are descriptors."""
        super().__init__(fused, name, schedule, num_stages=num_stages, described=described)
        self.pairs: dict[Place, Operand] = {}
        """Places of accumulated columns, with the first column of each."""
        self._angles: dict[tuple[RotateOp, Place], tuple[SSAValue | None, SSAValue, SSAValue]] = {}
        self.x = next(op.x for op in self.block.ops if isinstance(op, ContractOp | ContractPartialOp))
        self.settled = settled

    def emit(self, value: SSAValue, place: Place) -> SSAValue:
        if isinstance(value.owner, RotateOp) and place in self.pairs:
            with self.b.source(source_of(value.owner)):
                return self._turn(value.owner, place)
        if value is self.x and place.col_mask is not None and isinstance(value.owner, Operation):
            return self._factor(value, place, place.col_mask)
        return super().emit(value, place)

    def _factor(self, x: SSAValue, place: Place, inside: SSAValue) -> SSAValue:
        """A computed x, 0 past its last column: what was loaded there is 0, but the prologue may have made infinity or NaN of it."""
        known = self.known(x, place)
        if known is not None:
            return known
        block = self.b.where(inside, super().emit(x, place), 0.0)
        self.define(x, place, block)
        return block

    def load_epilogue(self, component: Component, place: Place, start: Operand) -> None:
        """Loads what the epilogue reads besides the products before there are any: first what may be read before the launches before end.

        A load that came after the sums would wait for them.
        """
        self.pairs[place] = start
        inside = set(component.ops)
        loaded = [(op, v) for op in component.ops for v in data_operands(op) if v.owner not in inside]
        for early in (True, False):
            for op, value in loaded:
                if self.is_early(value) is not early:
                    continue
                match op:
                    case RotateOp() if value is op.rows:
                        self.angles(op, place)
                    case ScatterOp() if value is op.slots:
                        self.along_rows(value, place)
                    case _ if isinstance(value, BlockArgument) and shape_of(value)[-1:] == (component.width,):
                        self.emit(value, place)
                    case _:
                        pass

    def store(self, item: Store, place: Place) -> None:
        if isinstance(item.owner, AddColumnsOp) and place in self.pairs:
            self._store_sums(item.owner, item.pointer, place)
        else:
            super().store(item, place)

    def _store_sums(self, op: AddColumnsOp, pointer: SSAValue, place: Place) -> None:
        """Sums of neighbouring columns that this program accumulated, of one row."""
        b, columns, width = self.b, python_int(op.columns), shape_of(op.x)[1]
        with b.source(source_of(op)):
            block, start = self.emit(op.x, place), self.pairs[place]
            first = quotient(b, start, columns) if isinstance(start, SSAValue) else int(start) // columns
            count = shape(block)[-1] // columns
            sums = self.hinted("column_sums", b.reduce(b.reshape(block, (count, columns)), "sum", 1))
            at = b.add(b.arange(count), first)
            b.store(pointer, at, sums, None if place.col_mask is None else b.lt(at, width // columns))

    def reduced(self, op: ReduceOp, rows: Operand, result: SSAValue) -> None:
        """Says what the reduction of some rows is: how a skeleton hands over what it reduced itself."""
        self._reduced[-1][op.result, rows] = result

    def is_early(self, value: SSAValue) -> bool:
        """Whether all that `value` is computed from may be read before the launches before this one end."""
        if isinstance(value, BlockArgument):
            return self.settled[value.index]
        return isinstance(value.owner, Operation) and all(self.is_early(v) for v in value.owner.operands)

    def angles(self, op: RotateOp, place: Place) -> tuple[SSAValue | None, SSAValue, SSAValue]:
        """Which pairs of a place turn (None: all), and the cosines and sines of their angles."""
        known = self._angles.get((op, place))
        if known is None:
            with self.b.source(source_of(op)):
                known = self._angles[op, place] = self._load_angles(op, place)
        return known

    def _load_angles(self, op: RotateOp, place: Place) -> tuple[SSAValue | None, SSAValue, SSAValue]:
        b, dim, rotary = self.b, python_int(op.head_dim), python_int(op.rotary_dim)
        assert place.cols is not None
        sizes = shape(place.cols)
        # Pairs are counted, not columns: a remainder of neighbours is neighbours to Triton, half a remainder of every other number is not.
        start = self.pairs[place]
        before = quotient(b, start, 2) if isinstance(start, SSAValue) else int(start) // 2
        pair = self.hinted("pair", b.add(b.arange(sizes[-1] // 2), before))
        angle = self.hinted("angle", remainder(b, pair, dim // 2))
        turns = self.hinted("turns", b.lt(angle, rotary // 2)) if rotary < dim else None
        mask = turns
        width = shape_of(op.x)[1]
        if width % sizes[-1]:
            mask = b.all_of(mask, b.lt(pair, width // 2))
        if len(sizes) == 2:
            angle = b.expand(angle, 0)
            turns = b.expand(turns, 0) if turns is not None else None
            mask = b.expand(mask, 0) if mask is not None else None
        cos = b.named("cos", self.emit(op.rows, Place(place.rows, angle, place.row_mask, mask)))
        sine_at = Place(place.rows, b.add(angle, rotary // 2), place.row_mask, mask)
        return turns, cos, b.named("sin", self.emit(op.rows, sine_at))

    def _turn(self, op: RotateOp, place: Place) -> SSAValue:
        b = self.b
        x = self.emit(op.x, place)
        sizes = shape(x)
        even, odd = b.split(b.reshape(x, (*sizes[:-1], sizes[-1] // 2, 2)))
        even.name_hint, odd.name_hint = "even", "odd"
        turns, cos, sin = self.angles(op, place)
        first = self.hinted("turned_even", b.sub(b.mul(even, cos), b.mul(odd, sin)))
        second = self.hinted("turned_odd", b.add(b.mul(odd, cos), b.mul(even, sin)))
        if turns is not None:
            first, second = b.where(turns, first, even), b.where(turns, second, odd)
        return b.reshape(b.join(first, second), sizes)


def components(e: Emitter, split: Parts, columns: int) -> list[Component]:
    """The components of a region with their stores. Raises PassError when a stored value belongs to none."""
    stores: list[list[Store]] = [[] for _ in split.components]
    for item in e.stores:
        owner = item.owner
        if owner is None or owner not in split.component_of:
            raise PassError("a region stores a value that no contraction decides the place of", where=subject(e.fused))
        stores[split.component_of[owner]].append(item)
    out: list[Component] = []
    for number, (contracts, kept) in enumerate(zip(split.components, stores, strict=True)):
        width = shape_of(contracts[0].result)[-1]
        after = [op for op in split.epilogue if split.component_of[op] == number]
        out.append(Component(contracts, after, kept, width, -(-width // columns)))
    return out


def over_components(
    e: Emitter, found: list[Component], body: Callable[[Component, Operand], None], axis: int = 0, *, in_turn: bool = False
) -> None:
    """Runs `body(component, tile)` in the programs of each component, which `axis` of the grid numbers; `in_turn`: as `over_parts` says."""
    names = [part_name(c) for c in found]
    over_parts(e, [c.tiles for c in found], names, lambda number, tile: body(found[number], tile), axis, in_turn=in_turn)


def part_name(component: Component) -> str:
    """What a component is called in the printed text: the end of its first contraction's location."""
    return location(component.contracts[0]).rpartition(".")[2] or "part"


def finish_component(
    e: ContractEmitter,
    component: Component,
    place: Place,
    start: Operand,
    results: tuple[SSAValue, ...],
    whole: bool,
    finished: Sequence[ContractOp | ContractPartialOp | ContractMergeOp] = (),
) -> None:
    """Runs the epilogue of a component on its accumulated columns: the results of its contractions, or of the ops `finished`."""
    e.pairs[place] = start
    if whole:
        e.covers(place.rows, component.width, place)
    for op, block in zip(finished or component.contracts, results, strict=True):
        e.define(op.result, place, block)
    for item in component.stores:
        if not isinstance(item.owner, ContractPartialOp):
            e.store(item, place)


def lower_gemv(fused: FusedOp, name: str, schedule: ScheduleAttr, settled: Sequence[bool]) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """One token: a program multiplies x by `rows` whole weight rows, `k` columns at a time.

    The weights of all columns are loaded first, as one register tile, where that fits: they are most of what a step reads, and nothing
    else has to be there before them. Longer rows are taken in a loop.
    """
    e = ContractEmitter(fused, name, schedule, settled)
    block_n, block_k = schedule.get("rows"), schedule.get("k")
    split = parts([op for op in fused.body.block.ops if not isinstance(op, YieldOp)])
    gemv = Gemv(e, split, block_n, block_k, written_out(split, schedule), reductions_on_the_way(split, schedule))
    e.chunk = block_k
    found = components(e, split, block_n)
    over_components(e, found, gemv.component)
    return e.b.finish(), (sum(c.tiles for c in found), 1, 1)


@dataclass(frozen=True)
class Gemv:
    """The parts of the `gemv` skeleton that do not change between components."""

    e: ContractEmitter
    split: Parts
    block_n: int
    block_k: int
    written_out: bool
    """Whether the weights of whole rows are held at once."""
    inline: Sequence[ReduceOp]
    """Reductions of the row of x that are added up beside its products."""

    @property
    def x(self) -> SSAValue:
        """The row that all weights are multiplied with."""
        return self.split.contracts[0].x

    @property
    def k(self) -> int:
        """Columns of x and of each weight."""
        return shape_of(self.x)[1]

    def component(self, component: Component, tile: Operand) -> None:
        """The programs of one component: products with their weight rows, sums, epilogue."""
        e, b = self.e, self.e.b
        start = e.hinted("start", b.mul(tile, self.block_n))
        n = b.named("n", b.add(start, b.arange(self.block_n)))
        n_mask = None if component.width % self.block_n == 0 else b.lt(n, component.width)
        rows = Rows(n, n_mask, b.expand(n, 1), b.expand(n_mask, 1) if n_mask is not None else None)
        place = Place(0, n, None, n_mask)
        weights = [weight_of(e, c, runs=self.in_runs) for c in component.contracts]
        read = self.rows_in_runs(start, component.width) if self.in_runs else rows
        pieces = self.pieces() if self.written_out else self.trip(0)
        loaded = self.loaded(weights, read, pieces)
        e.load_epilogue(component, place, start)
        self.cover_sums()
        stage_prologue(e, self.split, Place(0, None), self.inline)
        if self.written_out:
            sums = self.products(weights, pieces, loaded)
        elif self.in_runs:
            sums = self.trip_by_trip(weights, read, self.products(weights, pieces, loaded))
        else:
            sums = self.in_a_loop(weights, rows, loaded[0])
        for op, block in zip(self.inline, sums[len(weights) :], strict=True):
            with b.source(source_of(op)):
                e.reduced(op, 0, weights[0].reduced(op, block))
        results: list[SSAValue] = []
        for w, total in zip(weights, sums[: len(weights)], strict=True):
            with b.source(w.source):
                results.append(b.named("y", w.scaled(w.summed(total, self.block_n), rows)))
        finish_component(e, component, place, start, tuple(results), self.block_n >= component.width)

    def cover_sums(self) -> None:
        """Lets sums of a split reduction that are more than a trip has columns be asked for at once, and not in a loop that waits for each trip's."""
        for op in self.split.prologue:
            width = shape_of(op.input)[1] if isinstance(op, ReduceOp) and isinstance(op.input, BlockArgument) else self.k
            if width != self.k:
                pieces = range(0, width, self.block_k)
                self.e.covers_in_pieces(0, width, [self.e.columns(0, None, start, self.block_k, width) for start in pieces])

    def loaded(self, weights: list[Weight], rows: Rows, pieces: list[Piece]) -> Loaded:
        """What is read of each weight for some pieces."""
        return [[w.load(rows, piece) for w in weights] for piece in pieces]

    @property
    def in_runs(self) -> bool:
        """Whether the tensor cores multiply, rows in runs."""
        return "runs" in self.e.schedule.options.data

    @property
    def size(self) -> int:
        """Columns of a piece: those of a trip over K, of which runs take several."""
        return piece_columns(self.split.contracts[0]) if self.in_runs else self.block_k

    def rows_in_runs(self, start: Operand, width: int) -> Rows:
        """The rows of a tile of runs: each of the program's rows once for every run."""
        b = self.e.b
        n = self.e.hinted("n_runs", b.add(start, b.floordiv(b.arange(self.block_n * RUNS), RUNS)))
        mask = None if width % self.block_n == 0 else b.lt(n, width)
        return Rows(n, mask, b.expand(n, 1), b.expand(mask, 1) if mask is not None else None)

    def trip(self, start: Operand) -> list[Piece]:
        """The pieces of a trip over K from `start` on."""
        return [self.piece(self.e.b.add(start, offset) if offset else start) for offset in range(0, self.block_k, self.size)]

    def pieces(self) -> list[Piece]:
        """The pieces of K."""
        if self.k <= self.size:
            place = self.e.whole(0, None, self.k)
            assert place.cols is not None
            return [Piece(0, shape(place.cols)[0], place)]
        pieces = [self.piece(first) for first in range(0, self.k, self.size)]
        self.e.covers_in_pieces(0, self.k, [piece.place for piece in pieces])
        return pieces

    def products(self, weights: list[Weight], pieces: list[Piece], loaded: Loaded, sums: Sequence[SSAValue] = ()) -> list[SSAValue]:
        """For each weight the products of what was loaded of it with x, and what each reduction beside them reduces, pieces and the sums so far combined."""
        found = list(sums)
        for piece, held in zip(pieces, loaded, strict=True):
            found = self.added(found, weights, piece, held)
        return found

    def added(self, sums: Sequence[SSAValue], weights: list[Weight], piece: Piece, held: Sequence[Sequence[SSAValue]]) -> list[SSAValue]:
        """The sums so far (none yet: empty) with those of a piece: products added, reductions beside them combined."""
        b, count = self.e.b, len(weights)
        before = [*sums[:count]] or [None] * count
        found = [w.added(total, own, self.x, piece) for w, total, own in zip(weights, before, held, strict=True)]
        more = [weights[0].reducible(op, piece) for op in self.inline]
        rules = [partial(REDUCTION_RULES[op.kind.data].combine, b) for op in self.inline]
        return found + ([combine(*two) for combine, *two in zip(rules, sums[count:], more, strict=True)] if sums else more)

    def piece(self, start: Operand) -> Piece:
        """The piece of K from `start` on."""
        return Piece(start, self.size, self.e.columns(0, None, start, self.size, self.k))

    def trip_by_trip(self, weights: list[Weight], rows: Rows, sums: Sequence[SSAValue]) -> list[SSAValue]:
        """The sums of the first trip over K with those of the others: each loads all its pieces before it multiplies one. Other programs hide its wait."""
        e, b = self.e, self.e.b
        with b.for_(self.block_k, self.k, self.block_k, init=sums) as loop, e.scope():
            pieces = self.trip(loop.index)
            loop.yields(*self.products(weights, pieces, self.loaded(weights, rows, pieces), loop.values))
        return list(loop.results)

    def in_a_loop(self, weights: list[Weight], rows: Rows, loaded: Sequence[Sequence[SSAValue]]) -> list[SSAValue]:
        """Piece by piece, from what was loaded of the first on: each trip asks for the next piece before it multiplies its own."""
        e, b = self.e, self.e.b
        counts = [len(held) for held in loaded]
        start = [b.named("acc", b.full((self.block_n, w.lanes(self.block_k)), 0.0, f32)) for w in weights]
        last = (-(-self.k // self.block_k) - 1) * self.block_k

        def added(values: Sequence[SSAValue], piece: Piece) -> list[SSAValue]:
            flat = list(values[len(start) :])
            held = [[flat.pop(0) for _ in range(count)] for count in counts]
            return self.added(values[: len(start)], weights, piece, held)

        with b.for_(0, last, self.block_k, init=[*start, *(v for held in loaded for v in held)]) as loop, e.scope():
            following = [v for w in weights for v in w.load(rows, self.piece(b.add(loop.index, self.block_k)))]
            loop.yields(*added(loop.values, self.piece(loop.index)), *following)
        return added(loop.results, self.piece(last))


def stage_prologue(e: Emitter, split: Parts, place: Place, later: Sequence[ReduceOp] = ()) -> None:
    """Emits the reductions that no contraction feeds (those of a norm, whether its scale comes before or after the product) once.

    Those of `later` are left out.
    """
    for op in split.prologue:
        if isinstance(op, ReduceOp) and op not in later:
            e.reduce(op, place)

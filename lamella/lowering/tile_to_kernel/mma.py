"""The contract skeleton for several tokens: programs take tiles of tokens by weight rows, on the tensor cores.

With few tokens the weight rows go where the hardware takes the most rows (swapped operands, "swap AB"), and where that makes few programs
several share the columns of K of one tile, the last of which adds up what all left (split K).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import python_int, shape_of
from lamella.dialects.kernel.types import shape
from lamella.dialects.messages import subject
from lamella.dialects.tile import ContractMergeOp, ContractOp, ContractPartialOp, FusedOp, ReduceOp, ScheduleAttr, YieldOp
from lamella.errors import PassError
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.contract import (
    Component,
    ContractEmitter,
    components,
    finish_component,
    over_components,
    stage_prologue,
)
from lamella.lowering.tile_to_kernel.descriptors import described_arguments, described_products, finish_halves, in_halves
from lamella.lowering.tile_to_kernel.divided_grid import by_the_last
from lamella.lowering.tile_to_kernel.emitter import source_of
from lamella.lowering.tile_to_kernel.places import Place
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES
from lamella.lowering.tile_to_kernel.weight import Piece, Rows, Weight
from lamella.lowering.tile_to_kernel.weights import weight_of
from lamella.passes.contractions import reductions_on_the_way
from lamella.passes.region_parts import Parts, parts

TOGETHER = 16
"""Tiles of tokens that share the weights they read: 2048 tokens of 4096 numbers, which the cache holds, and one reading of the weights."""


def lower_mma(fused: FusedOp, name: str, schedule: ScheduleAttr, settled: Sequence[bool]) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """Several tokens: a program accumulates a tile of `m` tokens by `n` weight rows, `k` columns at a time, on the tensor cores.

    The tiles of tokens come first in the grid: programs that run at the same time then share the weights that they read, and weights, which no
    cache holds, are read once for `TOGETHER` tiles of tokens. With `swap` the product is computed transposed.
    """
    described = described_arguments(fused, schedule)
    e = ContractEmitter(fused, name, schedule, settled, num_stages=schedule.get("stages"), described=described)
    b, block_m = e.b, schedule.get("m")
    split = parts([op for op in fused.body.block.ops if not isinstance(op, YieldOp)])
    tokens = shape_of(split.contracts[0].x)[0]
    e.chunk = schedule.get("k")
    found = components(e, split, schedule.get("n"))
    tiles = -(-tokens // block_m)
    groups = -(-tiles // TOGETHER)
    together = -(-tiles // groups)
    first: Operand = 0
    if tiles > 1:
        tile_of_tokens = b.program_id(0) if groups == 1 else b.add(b.mul(b.program_id(2), together), b.program_id(0))
        first = b.mul(tile_of_tokens, block_m)
    m = b.add(first, b.arange(block_m))
    rows = b.named("m", b.expand(m, 1))
    row_mask = None if together * groups * block_m == tokens else b.lt(rows, tokens)
    inline = reductions_on_the_way(split, schedule)
    stage_prologue(e, split, Place(rows, None, row_mask), inline)
    mma = Mma(e, split, schedule, first, rows, row_mask, inline, bool(described))
    over_components(e, found, mma.component, axis=1 if tiles > 1 else 0, in_turn=not mma.swapped)
    programs = sum(c.tiles for c in found)
    return b.finish(), (together, programs, groups) if tiles > 1 else (programs, mma.splits, 1)


@dataclass(frozen=True)
class Mma:
    """The parts of the `mma` skeleton that do not change between components."""

    e: ContractEmitter
    split: Parts
    schedule: ScheduleAttr
    first: Operand
    """The first token of the tile."""
    rows: SSAValue
    row_mask: SSAValue | None
    inline: Sequence[ReduceOp]
    """Reductions of rows of x that are added up in the loop that multiplies them."""
    described: bool = False
    """Whether tiles are loaded through descriptors."""

    @property
    def splits(self) -> int:
        """Programs that share the columns of K of one tile."""
        first = self.split.contracts[0]
        return python_int(first.splits) if isinstance(first, ContractPartialOp) else 1

    @property
    def swapped(self) -> bool:
        """Whether weight rows are the rows of the product, and tokens its columns."""
        return self.schedule.get("swap") == 1

    @property
    def digits(self) -> bool:
        """Whether x is multiplied digit by digit."""
        return "digits" in self.schedule.options.data

    def component(self, component: Component, tile: Operand) -> None:
        """The programs of one component: products with their weight rows, and what follows."""
        e, b, block_n = self.e, self.e.b, self.schedule.get("n")
        start = e.hinted("start", b.mul(tile, block_n))
        vector = b.add(start, b.arange(block_n))
        n = b.named("n", b.expand(vector, 0))
        n_mask = None if component.width % block_n == 0 else b.lt(n, component.width)
        down = b.named("n_down", b.expand(vector, 1)) if self.swapped else n
        down_mask = None if n_mask is None else b.lt(down, component.width)
        weights = [weight_of(e, c, digits=self.digits) for c in component.contracts]
        if self.described:
            totals = described_products(e, component.contracts, self.schedule, self.first, start)
        else:
            totals = self.loop(weights, Rows(vector, None, down, down_mask))
        if self.swapped:
            totals = [b.trans(total) for total in totals]
        if self.described and in_halves(component, block_n):
            finish_halves(e, component, weights, Place(self.rows, None, self.row_mask), start, totals)
            return
        results = [w.scaled(total, Rows(vector, None, n, n_mask)) for w, total in zip(weights, totals, strict=True)]
        place = Place(self.rows, n, self.row_mask, n_mask)
        whole = block_n >= component.width
        if self.splits == 1:
            finish_component(e, component, place, start, tuple(results), whole)
        else:
            self.merge(component, place, start, results, whole)

    def loop(self, weights: Sequence[Weight], taken: Rows) -> list[SSAValue]:
        """The products of the tile with this program's columns of K; the inline reductions are known afterwards."""
        e, b = self.e, self.e.b
        block_m, block_n, block_k = (self.schedule.get(name) for name in ("m", "n", "k"))
        x = self.split.contracts[0].x
        k = shape_of(x)[1]
        unit = min(w.unit(block_k) for w in weights)
        together = unit * 2 if any(w.paired for w in weights) else unit
        zeros = [w.start(block_m, block_n, self.swapped) for w in weights]
        if block_k % together or (unit < block_k and k % block_k):
            got = f"{block_k} of {k} columns at once"
            raise PassError("pieces of K of packed weights do not end with their groups", where=subject(e.fused), got=got)
        rules = [REDUCTION_RULES[op.kind.data] for op in self.inline]
        partials = [b.named("partial", b.full((block_m, unit), rule.identity, f32)) for rule in rules]
        trips = -(-k // block_k)
        first, end = self.share(k, block_k)
        stages = self.schedule.get("stages") if trips > self.splits else None
        carried = [*zeros, partials]
        with b.for_(first, end, block_k, init=[v for own in carried for v in own], num_stages=stages) as loop, e.scope():
            *sums, reduced = self.apart(loop.values, carried)
            steps = range(0, block_k, together)
            # Loads that the loop does not pipeline: all of a trip are asked for before the first is waited for.
            held = [w.ahead_each(taken, loop.index, steps, unit) for w in weights]
            for offset, read in zip(steps, zip(*held, strict=True), strict=True):
                starts = [b.add(loop.index, offset + own) for own in range(0, together, unit)]
                pieces = [Piece(start, unit, e.columns(self.rows, self.row_mask, start, unit, k)) for start in starts]
                xs = [b.broadcast(e.emit(x, piece.place), (block_m, unit)) for piece in pieces]
                sums = [w.multiply(xs, own, taken, pieces, early) for w, own, early in zip(weights, sums, read, strict=True)]
                for number, (op, rule) in enumerate(zip(self.inline, rules, strict=True)):
                    with b.source(source_of(op)):
                        for piece in pieces:
                            reduced[number] = rule.combine(b, reduced[number], e.reducible(op, piece.place))
            loop.yields(*(v for own in [*sums, reduced] for v in own))
        *totals, found = self.apart(loop.results, carried)
        for op, rule, value in zip(self.inline, rules, found, strict=True):
            with b.source(source_of(op)):
                e.reduced(op, self.rows, rule.along(b, value, 1, keep_dims=True))
        return [w.total(own, block_m, self.swapped) for w, own in zip(weights, totals, strict=True)]

    @staticmethod
    def apart(values: Sequence[SSAValue], like: Sequence[Sequence[SSAValue]]) -> list[list[SSAValue]]:
        """Values one after the other as lists of the lengths of `like`."""
        left = list(values)
        return [[left.pop(0) for _ in own] for own in like]

    def share(self, k: int, block_k: int) -> tuple[Operand, Operand]:
        """The columns of K that this program multiplies: from, and before."""
        if self.splits == 1:
            return 0, k
        b, whole = self.e.b, python_int(self.partial(self.split.contracts[0]).chunk)
        first = b.named("first", b.mul(b.program_id(1), whole))
        return first, b.add(first, whole) if whole * self.splits == k else b.minimum(b.add(first, whole), k)

    def partial(self, contract: ContractOp | ContractPartialOp) -> ContractPartialOp:
        """A contraction of a region whose contractions are split. Raises PassError where it is not."""
        if not isinstance(contract, ContractPartialOp):
            raise PassError("one contraction of a region is split and another is not", where=subject(self.e.fused))
        return contract

    def merge(self, component: Component, place: Place, start: Operand, results: Sequence[SSAValue], whole: bool) -> None:
        """Leaves this program's sums in memory; the last program of the tile adds up those of all, in order, and goes on."""
        e, b = self.e, self.e.b
        pointer = {item.value: item.pointer for item in e.stores}
        partials = [self.partial(c) for c in component.contracts]
        merges = [self.merge_of(partial) for partial in partials]
        counters = merges[0].arrivals
        if counters is None:
            raise PassError("partial sums without a counted merge", where=subject(e.fused))
        tokens = shape_of(partials[0].x)[0]
        mask = b.all_of(place.row_mask, place.col_mask)

        def cells(part: Operand) -> SSAValue:
            row = b.add(b.mul(part, tokens), place.rows)
            assert place.cols is not None
            return b.add(b.mul(row, component.width), place.cols)

        with b.source(source_of(merges[0])):
            here = e.hinted("cell", b.broadcast(cells(b.program_id(1)), shape(results[0])))
            for partial, sums in zip(partials, results, strict=True):
                b.store(pointer[partial.result], here, sums, mask)
            with by_the_last(e, e.pointers[counters], b.program_id(0), self.splits):
                totals: list[SSAValue] = []
                for partial in partials:
                    parts_of_all = [b.load(pointer[partial.result], cells(part), mask, 0.0, cache="cg") for part in range(self.splits)]
                    totals.append(b.named("total", reduce(b.add, parts_of_all)))
                finish_component(e, component, place, start, tuple(totals), whole, merges)

    def merge_of(self, partial: ContractPartialOp) -> ContractMergeOp:
        """The merge of some partial sums. Raises PassError where the region has none."""
        users: list[Operation] = [use.operation for use in partial.result.uses]
        found = next((op for op in users if isinstance(op, ContractMergeOp)), None)
        if found is None:
            raise PassError("partial sums without a merge in their region", where=subject(self.e.fused))
        return found

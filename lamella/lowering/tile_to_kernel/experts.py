"""The skeletons of mixtures of experts: a program makes the choice of a token, or multiplies a row by weight rows of the expert it chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import f32, i32, i64
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import shape_of
from lamella.dialects.kernel.types import shape
from lamella.dialects.tile import ContractExpertsOp, FusedOp, RouteOp, ScheduleAttr, SortChoicesOp
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.emitter import INT32_ELEMENTS, Emitter, python_int, source_of
from lamella.lowering.tile_to_kernel.places import Place


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
    tile = ExpertTile(e, contracts, row, expert, n, n_mask, schedule.get("k"))
    at = Place(row, n, None, n_mask)
    for contract, total in zip(contracts, tile.sums(), strict=True):
        with b.source(source_of(contract)):
            e.define(contract.result, at, b.named("y", b.reduce(total, "sum", 1)))
    for item in e.stores:
        e.store(item, at)
    return b.finish(), (-(-width // block_n), rows, 1)


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
    with b.source(source_of(first)):
        m = b.named("m", b.add(b.mul(b.program_id(0), block_m), b.arange(block_m)))
        inside = None if rows % block_m == 0 else b.lt(m, rows)
        choice = b.named("choice", b.load(e.pointers[first.order], m, inside, 0))
        chosen = b.named("chosen", b.load(e.pointers[first.chosen], choice, inside, -1))
        n = b.named("n", b.expand(b.add(b.mul(b.program_id(1), block_n), b.arange(block_n)), 0))
        # Beyond the last choice there is no expert.
        least = chosen if inside is None else b.where(inside, chosen, python_int(first.experts))
        low, high = b.named("low", b.reduce(least, "min", 0)), b.named("high", b.add(b.reduce(chosen, "max", 0), 1))
    with b.for_(low, high, 1) as named, e.scope():
        expert = b.named("expert", named.index)
        mine = b.named("mine", b.eq(chosen, expert))
        chosen_here = b.named("chosen_here", b.gt(b.reduce(b.where(mine, 1, 0), "sum", 0), 0))
        n_mask = None if width % block_n == 0 else b.lt(n, width)
        at = Place(b.named("row", b.expand(choice, 1)), n, b.expand(mine, 1), n_mask)
        x_row = b.floordiv(at.rows, first.share) if first.share > 1 else at.rows
        with b.if_(chosen_here), e.scope():
            zeros = [b.named("acc", b.full((block_m, block_n), 0.0, f32)) for _ in contracts]
            stages = schedule.get("stages") if k > block_k else None
            with b.for_(0, k, block_k, init=zeros, num_stages=stages) as loop, e.scope():
                cols = b.named("cols", b.add(b.arange(block_k), loop.index))
                k_mask = None if k % block_k == 0 else b.lt(cols, k)
                across = b.expand(k_mask, 0) if k_mask is not None else None
                x = b.load(e.pointers[first.x], b.add(b.mul(x_row, k), b.expand(cols, 0)), b.all_of(at.row_mask, across))
                xs = b.named("x", x)
                sums: list[SSAValue] = []
                for contract, acc in zip(contracts, loop.values, strict=True):
                    with b.source(source_of(contract)):
                        wide = shape_of(contract.weight)[0] * k > INT32_ELEMENTS
                        own, place, down = (b.cast(v, i64) for v in (expert, n, cols)) if wide else (expert, n, cols)
                        offsets = e.hinted("offsets", b.add(b.mul(b.add(b.mul(own, width), place), k), b.expand(down, 1)))
                        mask = b.all_of(n_mask, b.expand(k_mask, 1) if k_mask is not None else None)
                        sums.append(b.dot(xs, b.named("w", b.load(e.pointers[contract.weight], offsets, mask)), acc))
                loop.yields(*sums)
            for contract, total in zip(contracts, loop.results, strict=True):
                e.define(contract.result, at, total)
            for item in e.stores:
                e.store(item, at)
    return b.finish(), (-(-rows // block_m), -(-width // block_n), 1)


@dataclass(frozen=True)
class ExpertTile:
    """The weight rows `n` of one expert and the row of x that they multiply."""

    e: Emitter
    contracts: Sequence[ContractExpertsOp]
    row: SSAValue
    expert: SSAValue
    n: SSAValue
    n_mask: SSAValue | None
    block_k: int

    @property
    def k(self) -> int:
        """Columns of x and of the weights."""
        return shape_of(self.contracts[0].x)[1]

    def sums(self) -> list[SSAValue]:
        """The products of each contraction, [rows, k], with all pieces of K added."""
        b = self.e.b
        zeros = [b.named("acc", b.full((*shape(self.n), self.block_k), 0.0, f32)) for _ in self.contracts]
        if self.k <= self.block_k:
            return [self._product(contract, 0) for contract in self.contracts]
        with b.for_(0, self.k, self.block_k, init=zeros) as loop, self.e.scope():
            products = [self._product(contract, loop.index) for contract in self.contracts]
            loop.yields(*(b.add(acc, product) for acc, product in zip(loop.values, products, strict=True)))
        return list(loop.results)

    def _product(self, contract: ContractExpertsOp, start: Operand) -> SSAValue:
        """One piece of the weight rows times that piece of the row of x."""
        e, b = self.e, self.e.b
        outputs, share = shape_of(contract.result)[1], contract.share
        with b.source(source_of(contract)):
            cols = e.hinted("cols", b.add(b.arange(self.block_k), start))
            inside = None if self.k % self.block_k == 0 else b.lt(cols, self.k)
            x_row = b.floordiv(self.row, share) if share > 1 else self.row
            x = b.load(e.pointers[contract.x], b.add(b.mul(x_row, self.k), cols), inside)
            wide = shape_of(contract.weight)[0] * self.k > INT32_ELEMENTS
            expert, n, across = (b.cast(v, i64) for v in (self.expert, self.n, cols)) if wide else (self.expert, self.n, cols)
            weight_row = e.hinted("weight_row", b.add(b.mul(expert, outputs), n))
            offsets = e.hinted("offsets", b.add(b.expand(b.mul(weight_row, self.k), 1), b.expand(across, 0)))
            mask = b.all_of(
                b.expand(self.n_mask, 1) if self.n_mask is not None else None, b.expand(inside, 0) if inside is not None else None
            )
            w = b.named("w", b.load(e.pointers[contract.weight], offsets, mask))
            return e.hinted("product", b.mul(b.cast(w, f32), b.expand(b.cast(x, f32), 0)))

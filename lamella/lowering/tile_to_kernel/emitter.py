"""Pulls the values of a region into a kernel: each is emitted where it is needed, at the rows and columns that need it."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from types import MappingProxyType

from xdsl.dialects.builtin import MemRefType, f32, i32, i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects.attributes import element_of, element_type_of, shape_of
from lamella.dialects.kernel import DescriptorType, PointerType
from lamella.dialects.kernel.types import shape
from lamella.dialects.messages import location, subject
from lamella.dialects.tile import (
    CastOp,
    FusedOp,
    MapOp,
    ReduceOp,
    ScatterOp,
    ScheduleAttr,
    SwapPairsOp,
)
from lamella.dialects.tile.movement import FOUR_PAIRS
from lamella.errors import PassError, nearest
from lamella.lowering.kernel_builder import KernelBuilder, Operand
from lamella.lowering.tile_to_kernel.places import INT32_ELEMENTS, Place, Store, swapped_pairs
from lamella.lowering.tile_to_kernel.rules import RULES
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES
from lamella.lowering.tile_to_kernel.scatter import store_scattered

NO_DESCRIPTORS: Mapping[SSAValue, DescriptorType] = MappingProxyType({})


class Emitter:
    """The kernel of one region under construction. Skeletons decide places; `emit` and `store` follow the region's ops."""

    def __init__(
        self,
        fused: FusedOp,
        name: str,
        schedule: ScheduleAttr,
        *,
        num_stages: int = 1,
        described: Mapping[SSAValue, DescriptorType] = NO_DESCRIPTORS,
    ) -> None:
        """`described` are the arguments of the region that the kernel takes as descriptors, not as pointers."""
        self.fused = fused
        self.schedule = schedule
        self.block = fused.body.block
        parameters: dict[str, PointerType | DescriptorType] = {}
        yielded = fused.terminator.values
        names = [a.name_hint or "arg" for a in self.block.args]
        names += [f"{(v.name_hint or 'out')}_out" for v in yielded]
        types = [described.get(a) for a in self.block.args] + [None] * len(yielded)
        for raw, buffer, type in zip(names, [*fused.ins, *fused.outs], types, strict=True):
            assert isinstance(buffer.type, MemRefType)
            unique = hint = re.sub(r"\W", "_", re.sub(r"^layers\.\d+\.", "", raw))
            number, suffix = 1, "ptr" if type is None else "desc"
            while f"{unique}_{suffix}" in parameters:
                unique, number = f"{hint}_{number}", number + 1
            parameters[f"{unique}_{suffix}"] = type or PointerType(element_type_of(buffer))
        self.b = KernelBuilder(name, parameters, num_warps=schedule.get("warps"), num_stages=num_stages)
        inputs = self.b.parameters[: len(fused.ins)]
        self.pointers: dict[SSAValue, SSAValue] = dict(zip(self.block.args, inputs, strict=True))
        self.stores = self._stores(yielded, self.b.parameters[len(fused.ins) :])
        self.chunk = schedule.get("columns") if "columns" in schedule.options.data else 1 << 30
        self._memo: list[dict[tuple[SSAValue, Place], SSAValue]] = [{}]
        self._reduced: list[dict[tuple[SSAValue, Operand], SSAValue]] = [{}]
        self._wide: dict[tuple[Operand, int], Place] = {}
        self._pieces: dict[tuple[Operand, int], list[Place]] = {}
        self._vectors: dict[Place, Place] = {}
        self._along: dict[Operand, Place] = {}
        self._elsewhere: dict[tuple[Place, SSAValue, SSAValue | None], Place] = {}

    def _stores(self, yielded: Sequence[SSAValue], pointers: Sequence[SSAValue]) -> list[Store]:
        out: list[Store] = []
        for value, pointer in zip(yielded, pointers, strict=True):
            if isinstance(value.owner, SwapPairsOp):
                out.append(Store(value.owner.x, pointer, swapped=True))
            elif not isinstance(value.owner, ScatterOp):
                out.append(Store(value, pointer))
            chain: list[ScatterOp] = []
            written = value.owner
            while isinstance(written, ScatterOp):
                chain.append(written)
                written = written.cache.owner
            out.extend(Store(scatter.values, pointer, scatter) for scatter in reversed(chain))
        return out

    @contextmanager
    def scope(self) -> Generator[None]:
        """Values emitted inside are not used outside: the body of a loop or a branch."""
        self._memo.append({})
        self._reduced.append({})
        wide = dict(self._wide)
        try:
            yield
        finally:
            self._memo.pop()
            self._reduced.pop()
            self._wide = wide

    def known(self, value: SSAValue, place: Place) -> SSAValue | None:
        """The block of `value` at `place`, where it was emitted already."""
        return next((memo[value, place] for memo in reversed(self._memo) if (value, place) in memo), None)

    def define(self, value: SSAValue, place: Place, block: SSAValue) -> None:
        """Says that `value` at `place` is `block`: how a skeleton hands over what it computed itself."""
        self._memo[-1][value, place] = block

    def covers_in_pieces(self, rows: Operand, width: int, places: list[Place]) -> None:
        """Says that `places` together hold whole rows of `width` columns: reductions over that width add up what is loaded there."""
        self._pieces[rows, width] = places

    def covers(self, rows: Operand, width: int, place: Place) -> None:
        """Says that `place` holds whole rows of `width` columns, so that reductions over that width use it."""
        self._wide[rows, width] = place

    def hinted(self, name: str, value: SSAValue) -> SSAValue:
        """`value`, called `name` unless it has a name already."""
        if value.name_hint is None:
            value.name_hint = name
        return value

    # Places

    def columns(self, rows: Operand, row_mask: SSAValue | None, start: Operand, size: int, width: int) -> Place:
        """The place of `size` columns from `start`, of a value `width` columns wide."""
        cols = self.hinted("cols", self.b.add(self.b.arange(size), start))
        mask = None if width % size == 0 else self.hinted("col_mask", self.b.lt(cols, width))
        if isinstance(rows, SSAValue) and len(shape(rows)) == 2:
            cols = self.hinted("cols", self.b.expand(cols, 0))
            mask = self.hinted("col_mask", self.b.expand(mask, 0)) if mask is not None else None
        return Place(rows, cols, row_mask, mask)

    def along(self, rows: Operand) -> Place:
        """The place of a vector's numbers at `rows`, unmasked; the same object each time."""
        found = self._along.get(rows)
        if found is None:
            found = self._along[rows] = Place(rows, None)
        return found

    def whole(self, rows: Operand, row_mask: SSAValue | None, width: int) -> Place:
        """The place of whole rows, made once for each width."""
        found = self._wide.get((rows, width))
        if found is None:
            found = self.columns(rows, row_mask, 0, 1 << max(0, width - 1).bit_length(), width)
            self._wide[rows, width] = found
        return found

    # Values

    def emit(self, value: SSAValue, place: Place) -> SSAValue:
        """The block of `value` at `place`. Raises PassError for an op that no rule emits."""
        known = self.known(value, place)
        if known is not None:
            return known
        if isinstance(value, BlockArgument):
            block = self.load(value, shape_of(value), place)
        else:
            assert isinstance(value.owner, Operation)
            with self.b.source(source_of(value.owner)):
                rule = RULES.get(type(value.owner))
                if rule is None:
                    raise PassError(f"{value.owner.name} has no form inside this kernel", where=subject(self.fused))
                block = rule(self, value.owner, place)
        if block.name_hint is None:
            block.name_hint = hint_of(value)
        self._memo[-1][value, place] = block
        return block

    def load(self, argument: SSAValue, sizes: tuple[int, ...], place: Place) -> SSAValue:
        """The numbers at `place` of an argument of the region, which lies in memory row by row, seen as a tensor of `sizes`."""
        pointer = self.pointers[argument]
        hint = (argument.name_hint or "value").rpartition(".")[2]
        with self.b.source("load"):
            if len(sizes) == 0:
                return self.b.named(hint, self.b.load(pointer, 0))
            if len(sizes) == 1 and place.cols is not None:
                return self.b.named(hint, self.b.load(pointer, place.cols, place.col_mask))
            if len(sizes) == 1:
                return self.b.named(hint, self.b.load(pointer, place.rows, place.row_mask))
            offsets, mask = self.offsets(sizes, place)
            return self.b.named(hint, self.b.load(pointer, offsets, mask))

    def offsets(self, sizes: Sequence[int], place: Place, *, stored: bool = False) -> tuple[Operand, SSAValue | None]:
        """Element offsets and mask of `place` in a row-major matrix of `sizes`; an axis of size 1 stretches.

        What is `stored` keeps the mask of a place of one row: of sequences that share the only row, one has it.
        """
        assert len(sizes) == 2
        b, rows, cols, width = self.b, place.rows, place.cols, sizes[1]
        if sizes[0] * width > INT32_ELEMENTS and isinstance(rows, SSAValue):
            rows, cols = b.cast(rows, i64), None if cols is None else b.cast(cols, i64)
        by_row = 0 if sizes[0] == 1 else b.mul(rows, width)
        if isinstance(by_row, SSAValue):
            self.hinted("row_start", by_row)
        own = stored and place.row_mask is not None and shape(place.row_mask)[:1] == (1,)
        if width == 1 or cols is None:
            return by_row, None if sizes[0] == 1 and not own else place.row_mask
        # One row is read by all rows of a place, unless each has columns of its own.
        stretched = sizes[0] == 1 and not (len(shape(cols)) == 2 and shape(cols)[0] > 1)
        mask = b.all_of(None if stretched and not own else place.row_mask, place.col_mask)
        return self.hinted("offsets", b.add(by_row, cols)), None if mask is None else self.hinted("mask", mask)

    def elsewhere(self, place: Place, cols: SSAValue, col_mask: SSAValue | None = None) -> Place:
        """The place of other columns of the same rows, under the same mask unless `col_mask` is given; the same object each time."""
        found = self._elsewhere.get((place, cols, col_mask))
        if found is None:
            found = self._elsewhere[place, cols, col_mask] = Place(place.rows, cols, place.row_mask, col_mask or place.col_mask)
        return found

    def along_rows(self, value: SSAValue, place: Place) -> SSAValue:
        """A vector with one number a row, at the rows of `place`."""
        return self.emit(value, self._vector(place))

    def _vector(self, place: Place) -> Place:
        found = self._vectors.get(place)
        if found is None:
            found = self._vectors[place] = Place(place.rows, None, place.row_mask)
        return found

    # Reductions

    def reduce(self, op: ReduceOp, place: Place) -> SSAValue:
        """A reduction over whole rows, whatever the columns of `place`: in one block, or chunk by chunk."""
        for reduced in reversed(self._reduced):
            if (op.result, place.rows) in reduced:
                return reduced[op.result, place.rows]
        rule = REDUCTION_RULES.get(op.kind.data)
        if rule is None:
            raise PassError(f"no reduction {op.kind.data}", where=subject(op), remedy=nearest(op.kind.data, REDUCTION_RULES))
        width = shape_of(op.input)[-1]
        covered = (place.rows, width) in self._wide
        if covered or width <= self.chunk:
            whole = self.whole(place.rows, place.row_mask, width)
            block = self.reducible(op, whole)
        else:
            block = self._accumulate(op, place, width)
        with self.b.source(source_of(op)):
            axis = len(shape(block)) - 1
            # One column of one row is loaded as a scalar, and is its own reduction.
            result = rule.along(self.b, block, axis, keep_dims=axis > 0) if axis >= 0 else block
        self._reduced[-1][op.result, place.rows] = result
        return result

    def _accumulate(self, op: ReduceOp, place: Place, width: int) -> SSAValue:
        """The chunks of `op`'s operand combined column by column: one chunk that is left to reduce."""
        rule = REDUCTION_RULES[op.kind.data]
        pieces = self._pieces.get((place.rows, width))
        if pieces is not None:
            blocks = [self.reducible(op, piece) for piece in pieces]
            with self.b.source(source_of(op)):
                return reduce(partial(rule.combine, self.b), blocks)
        rows = shape(place.rows)[:1] if isinstance(place.rows, SSAValue) and len(shape(place.rows)) == 2 else ()
        start = self.b.named("partial", self.b.full((*rows, self.chunk), rule.identity, f32))
        with self.b.for_(0, width, self.chunk, init=[start]) as loop, self.scope():
            piece = self.columns(place.rows, place.row_mask, loop.index, self.chunk, width)
            block = self.reducible(op, piece)
            with self.b.source(source_of(op)):
                loop.yields(rule.combine(self.b, loop.values[0], block))
        return loop.results[0]

    def reducible(self, op: ReduceOp, place: Place) -> SSAValue:
        """What `op` reduces, at some columns of it: past the last one, what changes nothing."""
        return self._neutral(self.emit(op.input, place), place, REDUCTION_RULES[op.kind.data].identity)

    def _neutral(self, block: SSAValue, place: Place, identity: float) -> SSAValue:
        return block if place.col_mask is None else self.b.where(place.col_mask, block, identity)

    def stage(self, values: Sequence[SSAValue], place: Place) -> None:
        """Emits the reductions that `values` need before a loop over columns starts, so that the loop does not repeat them."""
        inside: set[Operation] = set()
        work = [v.owner for v in values]
        while work:
            op = work.pop()
            if isinstance(op, Operation) and op not in inside and op.parent is self.block:
                inside.add(op)
                work.extend(v.owner for v in op.operands)
        for op in self.block.ops:
            if op in inside and isinstance(op, ReduceOp):
                self.reduce(op, place)

    # Stores

    def store(self, item: Store, place: Place) -> None:
        """Stores one of the region's values, or one of its scatters, at `place`."""
        if item.scatter is not None:
            store_scattered(self, item.scatter, item.pointer, place, source_of(item.scatter))
            return
        block = self.emit(item.value, place)
        sizes = shape_of(item.value)
        if item.swapped:
            block, place = self._swapped(block, place)
        with self.b.source("store"):
            if len(sizes) == 1:
                self.b.store(item.pointer, place.rows, block, place.row_mask)
                return
            offsets, mask = self.offsets(sizes, place, stored=True)
            if sizes[1] == 1 and place.cols is not None and _in_columns(block, place.cols):
                # A contraction with one row of weights computes columns all the same; the mask leaves the first.
                offsets, mask = self.b.add(offsets, place.cols), self.b.all_of(place.row_mask, place.col_mask)
            if not isinstance(offsets, SSAValue) and shape(block):
                # One number of one row, reduced in a tile.
                offsets, mask = self.b.full(shape(block), offsets, i32), place.row_mask
            self.b.store(item.pointer, offsets, block, mask)

    def _swapped(self, block: SSAValue, place: Place) -> tuple[SSAValue, Place]:
        """A block and its place with the middle two of each four pairs of columns swapped: in the block, where it has all four, else in the place."""
        assert place.cols is not None
        with self.b.source("swap_pairs"):
            *rows, columns = shape(block)
            if columns < FOUR_PAIRS or shape(place.cols)[-1] != columns:
                return block, self.elsewhere(place, swapped_pairs(self.b, place.cols))
            pairs = len(rows) + 1
            order = (*range(pairs), pairs + 1, pairs, pairs + 2)
            apart = self.b.reshape(block, (*rows, columns // FOUR_PAIRS, 2, 2, 2))
            return self.b.reshape(self.b.trans(apart, order), shape(block)), place


def _in_columns(block: SSAValue, cols: SSAValue) -> bool:
    """Whether a block has a number for each of several columns, or (of one row) is a vector of them."""
    own = shape(block)
    return own[-1:] == shape(cols)[-1:] and (own[-1] > 1 or len(own) == 1)


def source_of(op: Operation) -> str:
    """What a printed line says of its origin: the model location without the layer, which all layers of a kernel share."""
    where = re.sub(r"^layers\.\d+\.", "", location(op))
    kind = op.kind.data if isinstance(op, MapOp | ReduceOp) else op.name.partition(".")[2]
    return f"{where}: {kind}" if where else kind


def hint_of(value: SSAValue) -> str | None:
    """What the variable of a value is called: its own name, else what computes it: `silu`, `row_sum`, `x_f32`."""
    if value.name_hint or isinstance(value, BlockArgument):
        return (value.name_hint or "value").rpartition(".")[2]
    match value.owner:
        case MapOp() as op:
            return op.kind.data
        case ReduceOp() as op:
            return f"row_{op.kind.data}"
        case CastOp() as op:
            name = hint_of(op.input)
            return f"{re.sub('_(bf16|f16|f32|f8|i8)$', '', name)}_{element_of(op.result)}" if name else None
        case _:
            return None

"""The sample skeleton: a program draws the token of one row of logits, taking the vocabulary in chunks.

Thresholds for top-k and top-p (that of min-p is a sum) are found by bisection on the order-preserving integer image of a float32: 32 halvings are exact, need no
sort and treat ties as one. Noise comes from the counter-based generator of `semantics.sampling`, computed here in the same integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import FusedOp, SampleOp, SampleTopOp, ScheduleAttr, TopPartialOp
from lamella.lowering.kernel_builder import KernelBuilder, Operand
from lamella.lowering.tile_to_kernel.emitter import Emitter, source_of

SMALLEST, LARGEST = -(2**31), 2**31 - 1


def signed(word: int) -> int:
    """A 32-bit word as the int32 of the same bits."""
    return word - 2**32 if word >= 2**31 else word


POSITION_STEP, INDEX_STEP = signed(0x9E3779B9), signed(0x85EBCA6B)
FIRST_FACTOR, SECOND_FACTOR = signed(0x7FEB352D), signed(0x846CA68B)


def mix(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """lowbias32 on the bits of an int32 (`semantics.sampling.mix`)."""
    x = b.xor(x, b.lshr(x, 16))
    x = b.mul(x, FIRST_FACTOR)
    x = b.xor(x, b.lshr(x, 15))
    x = b.mul(x, SECOND_FACTOR)
    return b.xor(x, b.lshr(x, 16))


@dataclass(frozen=True)
class Row:
    """One row of logits in memory, and how a program walks it."""

    e: Emitter
    pointer: SSAValue
    base: Operand
    width: int
    chunk: int

    def walk(
        self,
        start: list[SSAValue],
        high: Operand,
        step: Callable[[SSAValue, SSAValue, SSAValue | None, tuple[SSAValue, ...]], list[SSAValue]],
    ) -> tuple[SSAValue, ...]:
        """Folds `step(logits, index, mask, state)` over the chunks up to `high`; NaN reads as -inf, and so does what lies past the end."""
        b = self.e.b
        with b.for_(0, high, self.chunk, init=start) as loop:
            index = b.named("index", b.add(b.arange(self.chunk), loop.index))
            mask = None if self.width % self.chunk == 0 else b.lt(index, self.width)
            logits = b.load(self.pointer, b.add(index, self.base), mask, -math.inf)
            logits = b.named("logits", b.where(b.eq(logits, logits), logits, -math.inf))
            loop.yields(*step(logits, index, mask, loop.values))
        return loop.results

    def largest(self, high: Operand, score: Callable[[SSAValue, SSAValue], SSAValue]) -> tuple[SSAValue, SSAValue]:
        """The largest score(logits, index) and the least index that has it."""
        b, size = self.e.b, (self.chunk,)
        best = b.named("best", b.full(size, -math.inf, f32))
        where = b.named("where", b.add(b.arange(self.chunk), 0))

        def step(logits: SSAValue, index: SSAValue, mask: SSAValue | None, state: tuple[SSAValue, ...]) -> list[SSAValue]:
            value = score(logits, index)
            better = b.gt(value, state[0])
            return [b.where(better, value, state[0]), b.where(better, index, state[1])]

        best, where = self.walk([best, where], high, step)
        top = b.named("top", b.reduce(best, "max", 0))
        return top, b.named("token", b.reduce(b.where(b.eq(best, top), where, self.width - 1), "min", 0))


def lower(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """The kernel of a sample region and its grid."""
    op = next(o for o in fused.body.block.ops if isinstance(o, SampleOp | SampleTopOp | TopPartialOp))
    if isinstance(op, TopPartialOp):
        return lower_top(op, fused, name, schedule)
    e = Emitter(fused, name, schedule)
    b = e.b
    count, width = shape_of(op.logits)
    with b.source(source_of(op)):
        r = b.named("row", b.program_id(0)) if count > 1 else b.constant(0)
        row = Row(e, e.pointers[op.logits], b.mul(r, width), width, schedule.get("columns"))
        if isinstance(op, SampleTopOp):
            top, greedy = _of_chunks(e, op, r)
        else:
            top, greedy = row.largest(width, lambda logits, index: logits)
        temperature = b.named("temperature", b.load(e.pointers[op.temperature], r))
        drawing = b.named("drawing", b.gt(temperature, 0.0))
        divisor = b.named("divisor", b.where(drawing, temperature, 1.0))
        # A greedy row walks nothing more: its loops end where they start.
        high = b.named("high", b.where(drawing, width, 0))
        floor = _top_k(e, op, row, r, divisor, high)
        peak = b.named("peak", b.div(top, divisor))
        floor = _top_p(e, op, row, r, divisor, high, floor, peak)
        floor = _min_p(e, op, r, floor, peak)
        seed, position = b.load(e.pointers[op.seed], r), b.load(e.pointers[op.position], r)
        key = b.named("key", mix(b, b.xor(mix(b, seed), b.mul(position, POSITION_STEP))))

        def noisy(logits: SSAValue, index: SSAValue) -> SSAValue:
            z = b.div(logits, divisor)
            h = mix(b, b.xor(b.mul(index, INDEX_STEP), key))
            u = b.minimum(b.add(b.mul(b.cast(b.lshr(h, 8), f32), 2.0**-24), 2.0**-25), 1.0 - 2.0**-24)
            gumbel = b.neg(b.log(b.neg(b.log(u))))
            return b.where(b.ge(ordered(b, z), floor), b.add(z, gumbel), -math.inf)

        _, drawn = row.largest(high, noisy)
        token = b.where(drawing, drawn, greedy)
    e.define(op.result, e.along(r), token)
    for item in e.stores:
        e.store(item, e.along(r))
    return b.finish(), (count, 1, 1)


def _of_chunks(e: Emitter, op: SampleTopOp, r: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The largest of the chunks' largest logits, and its index; chunks lie in order, so ties go to the least index."""
    b, (_, splits) = e.b, shape_of(op.best)
    size = 1 << max(0, splits - 1).bit_length()
    chunk = b.arange(size)
    mask = None if size == splits else b.lt(chunk, splits)
    cell = b.named("cell", b.add(chunk, b.mul(r, splits)))
    best = b.named("best", b.load(e.pointers[op.best], cell, mask, -math.inf))
    index = b.named("index", b.load(e.pointers[op.index], cell, mask, LARGEST))
    top = b.named("top", b.reduce(best, "max", 0))
    return top, b.named("greedy", b.reduce(b.where(b.eq(best, top), index, LARGEST), "min", 0))


def lower_top(op: TopPartialOp, fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """The largest logit of one chunk of one row a program."""
    e = Emitter(fused, name, schedule)
    b = e.b
    (count, width), (_, splits) = shape_of(op.logits), shape_of(op.best)
    share = -(-width // splits)
    size = 1 << max(0, share - 1).bit_length()
    pointer = {item.value: item.pointer for item in e.stores}
    with b.source(source_of(op)):
        chunk = b.named("chunk", b.program_id(0))
        r = b.named("row", b.program_id(1)) if count > 1 else b.constant(0)
        within = b.arange(size)
        index = b.named("index", b.add(b.mul(chunk, share), within))
        mask = b.all_of(b.lt(index, width), None if size == share else b.lt(within, share))
        logits = b.load(e.pointers[op.logits], b.add(index, b.mul(r, width)), mask, -math.inf)
        logits = b.named("logits", b.where(b.eq(logits, logits), logits, -math.inf))
        best = b.named("best", b.reduce(logits, "max", 0))
        first = b.reduce(b.where(b.eq(logits, best), index, width - 1), "min", 0)
        cell = b.named("cell", b.add(chunk, b.mul(r, splits)))
        b.store(pointer[op.best], cell, best)
        b.store(pointer[op.index], cell, b.minimum(first, width - 1))
    return e.b.finish(), (splits, count, 1)


def ordered(b: KernelBuilder, z: SSAValue) -> SSAValue:
    """The int32 whose order is that of the float32 `z`: its bits, with all but the sign flipped where it is negative."""
    bits = b.bitcast(b.add(z, 0.0), i32)
    return b.where(b.ge(bits, 0), bits, b.xor(bits, LARGEST))


def _top_k(e: Emitter, op: SampleOp | SampleTopOp, row: Row, r: SSAValue, divisor: SSAValue, high: SSAValue) -> SSAValue:
    """The largest image that at least k values reach; the smallest image of all when k is 0 or covers the vocabulary."""
    b = e.b
    k = b.named("k", b.load(e.pointers[op.top_k], r))
    active = b.and_(b.gt(k, 0), b.lt(k, row.width))
    trips = b.where(b.and_(active, b.gt(high, 0)), 32, 0)
    low, up = b.named("low", b.full((1,), SMALLEST, i32)), b.named("up", b.full((1,), LARGEST, i32))
    with b.for_(0, trips, 1, init=[low, up]) as loop:
        low, up = loop.values
        # The ceiling of the average, without overflow.
        middle = b.named("middle", b.sub(b.or_(low, up), b.shr(b.xor(low, up), 1)))

        def count(logits: SSAValue, index: SSAValue, mask: SSAValue | None, state: tuple[SSAValue, ...]) -> list[SSAValue]:
            reaches = b.ge(ordered(b, b.div(logits, divisor)), middle)
            return [b.add(state[0], b.where(b.all_of(mask, reaches) or reaches, 1, 0))]

        (counts,) = row.walk([b.named("counts", b.full((row.chunk,), 0, i32))], high, count)
        enough = b.ge(b.reduce(counts, "sum", 0), k)
        loop.yields(b.where(enough, middle, low), b.where(enough, up, b.sub(middle, 1)))
    return b.named("floor", b.reduce(loop.results[0], "max", 0))


def _top_p(
    e: Emitter, op: SampleOp | SampleTopOp, row: Row, r: SSAValue, divisor: SSAValue, high: SSAValue, floor: SSAValue, peak: SSAValue
) -> SSAValue:
    """The smallest image, not below `floor`, above which less than p of the kept probability lies."""
    b = e.b
    p = b.named("p", b.load(e.pointers[op.top_p], r))
    active = b.and_(b.lt(p, 1.0), b.gt(high, 0))
    trips, walked = b.where(active, 32, 0), b.where(active, high, 0)

    def mass_above(bound: SSAValue, end: Operand, *, strictly: bool) -> SSAValue:
        def add(logits: SSAValue, index: SSAValue, mask: SSAValue | None, state: tuple[SSAValue, ...]) -> list[SSAValue]:
            z = b.div(logits, divisor)
            image = ordered(b, z)
            inside = b.gt(image, bound) if strictly else b.ge(image, bound)
            return [b.add(state[0], b.where(inside, b.exp(b.sub(z, peak)), 0.0))]

        (masses,) = row.walk([b.named("mass", b.full((row.chunk,), 0.0, f32))], end, add)
        return b.reduce(masses, "sum", 0)

    budget = b.named("budget", b.mul(p, mass_above(floor, walked, strictly=False)))
    low = b.named("low", b.maximum(b.full((1,), SMALLEST, i32), floor))
    up = b.named("up", b.full((1,), LARGEST, i32))
    with b.for_(0, trips, 1, init=[low, up]) as loop:
        low, up = loop.values
        # The floor of the average, without overflow.
        middle = b.named("middle", b.add(b.and_(low, up), b.shr(b.xor(low, up), 1)))
        fits = b.lt(mass_above(middle, walked, strictly=True), budget)
        loop.yields(b.where(fits, low, b.add(middle, 1)), b.where(fits, middle, up))
    # The bisection ends on one image when it ran, and its lower end is the floor when it did not.
    found = b.where(active, b.reduce(loop.results[1], "max", 0), floor)
    # The largest value always stays, also where p is 0.
    return b.named("threshold", b.minimum(found, ordered(b, peak)))


def _min_p(e: Emitter, op: SampleOp | SampleTopOp, r: SSAValue, floor: SSAValue, peak: SSAValue) -> SSAValue:
    """The image of peak + log(min_p), not below `floor` nor above that of the largest value; `floor` where min_p is 0."""
    b = e.b
    p = b.named("min_p", b.load(e.pointers[op.min_p], r))
    least = b.minimum(peak, b.add(peak, b.log(p)))
    return b.named("floor", b.where(b.gt(p, 0.0), b.maximum(floor, ordered(b, least)), floor))

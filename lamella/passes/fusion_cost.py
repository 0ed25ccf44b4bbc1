"""Two groups of ops go in; what joining them saves and costs, in microseconds on a device, leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import ConstantOp, ContractOp, GatherOp, ReduceOp, ReshapeOp, ScatterOp, ScheduleAttr
from lamella.passes.contractions import FEW_ROWS, weight_bits, weight_values
from lamella.passes.device import Device
from lamella.passes.packed_columns import decoder, in_runs, streamed, unit
from lamella.passes.region_graph import Group, value_bytes
from lamella.passes.region_parts import Parts
from lamella.passes.row_parts import data_operands, result_rows
from lamella.passes.schedules import RUN_ROWS, WARP_GROUP_ROWS

SQUARING, HIDDEN, NORM_US = 2.2, 0.48, 3.0
"""What adding up squares of x beside products takes, a token for each weight row that a program multiplies, as a share of the time that its weights take;
the share that hides behind them; and the microseconds of a launch that adds them up once for all programs. Measured on an H200 with 4, 8 and 32
tokens of Llama-3.1-8B: of 32 tokens and 32, 64 and 128 rows a program the products took 2.9, 1.6 and 1.0 times their weights (benchmarks/results)."""
UNGROUPED = 0.24
"""What the products of a program take longer, as a share of the time that its weights take, where sums beside them keep its warps from multiplying as a
group: gate and up of Llama-3.1-8B, 32 tokens, on an H200 (benchmarks/results)."""
NUMBER_US = 1e-4
"""Microseconds of a multiprocessor for each number of x that a program of one warp computes itself, in runs, before it can multiply a weight: between 3e-5 (Llama-3.2-1B,
int8) and 3e-4 (q, k and v of Llama-3.1-8B, int4, whose registers then run out), measured on an H200 (benchmarks/results)."""
SQUARES_US = 7e-6
"""The same where a program only adds up the squares of x beside its products: at most 6e-6 with gate and up of Llama-3.2-1B or of Llama-3.1-8B
and with q, k and v in fp8, measured in the step on an H200 (benchmarks/results)."""
SUMS_US = 3e-6
"""The same for each sum of a split reduction, which a program loads and adds up: by its instructions, a third of those of a square for as many bytes; not measured."""
STEP, STEP_US = 256, 0.1
"""Columns of a step over K of weights of bytes, and microseconds that computing x adds to one: measured on an H200 (benchmarks/results)."""


@dataclass(frozen=True)
class Account:
    """The terms of a join. Bytes stay on chip, launches are saved; the rest are microseconds that it costs."""

    bytes: int
    launches: int
    recomputation: float = 0.0
    parallelism: float = 0.0
    compile: float = 0.0

    def gain(self, target: Device) -> float:
        """Microseconds saved."""
        return self.bytes / target.bandwidth * 1e6 + self.launches * target.launch_us

    @property
    def cost(self) -> float:
        """Microseconds spent."""
        return self.recomputation + self.parallelism + self.compile

    def benefit(self, target: Device) -> float:
        """Microseconds saved, less those spent."""
        return self.gain(target) - self.cost


def join_account(producer: Group, consumer: Group, *, copied: bool = False) -> Account:
    """A join of two row groups, or of a chain with the anchor before it. Nothing is computed twice, unless the producer is `copied`.

    A copied producer leaves its original to other readers: the launch stays, and the copy reads what the producer reads.
    """
    inside = {*producer.ops, *consumer.ops}
    fed = set(consumer.ops)
    kept = 0
    for op in (*producer.ops, *consumer.ops):
        for result in op.results:
            other = fed if op not in fed else set(producer.ops)
            readers = [use.operation for use in result.uses]
            if any(r in other for r in readers):
                kept += value_bytes(result) * (1 if copied or any(r not in inside for r in readers) else 2)
    shared = _inputs(producer.ops, inside) & _inputs(consumer.ops, inside)
    kept += sum(value_bytes(v) for v in shared)
    if copied:
        kept -= sum(value_bytes(v) for v in _inputs(producer.ops, inside))
    return Account(kept, 0 if copied else 1)


def _inputs(ops: Iterable[Operation], inside: set[Operation]) -> set[SSAValue]:
    """What a region reads as a whole: operands from outside of it, but not tables, of which it reads rows."""
    skipped = {op.table for op in ops if isinstance(op, GatherOp)} | {op.cache for op in ops if isinstance(op, ScatterOp)}
    return {v for op in ops for v in op.operands if v.owner not in inside and v not in skipped}


def spread(producer: Group, consumer: Group, target: Device) -> float:
    """Microseconds that the rows of `consumer` spend on computing a single row of `producer` once each, from the L2 cache.

    None where `consumer` reads nothing of it, or a reshape divides the row between programs.
    """
    made = {r for op in producer.ops for r in op.results}
    if not any(v in made for op in consumer.ops for v in data_operands(op)):
        return 0.0
    if any(isinstance(op, ReshapeOp) for op in (*producer.ops, *consumer.ops)):
        return 0.0
    rows = [max((_rows(op) for op in group.ops), default=1) for group in (producer, consumer)]
    if rows[0] >= rows[1]:
        return 0.0
    read = sum(value_bytes(v) for v in _inputs(producer.ops, set(producer.ops)))
    return (rows[1] // rows[0] - 1) * read / target.cache_bandwidth * 1e6


def _rows(op: Operation) -> int:
    sizes = () if isinstance(op, ConstantOp) else result_rows(op)
    return sizes[0] if len(sizes) > 1 else 1


def recomputation(before: Sequence[Operation], around: Sequence[Operation], outputs: Sequence[SSAValue], target: Device) -> float:
    """Microseconds spent where every program of the contractions of `around` computes `outputs` itself, by the ops `before`.

    What programs read again comes from the L2 cache while weights stream from memory: it costs only what exceeds that stream (roofline).
    """
    contracts = [op for op in around if isinstance(op, ContractOp)]
    tokens = shape_of(contracts[0].x)[0]
    inputs = _inputs(before, set(before))
    # What the contraction reads anyway: x itself, where only a row scale of it is in question.
    read_anyway = {v for op in around for v in op.operands} & inputs
    # A program that tiles K reads x once for the reduction and once for the product; at one token a whole row stays in registers, and with
    # few the loop over K adds up a row scale beside the product.
    on_the_way = tokens <= FEW_ROWS and all(v in read_anyway for v in inputs if len(shape_of(v)) == 2)
    passes = 1 if tokens == 1 or on_the_way else 2
    x_bytes = sum(value_bytes(v) for v in {*outputs, *read_anyway})
    input_bytes = passes * sum(value_bytes(v) for v in inputs if len(shape_of(v)) < 2 or shape_of(v)[0] <= tokens)
    weights = sum(value_bytes(v) for c in contracts for v in weight_values(c))
    columns = sum(shape_of(c.result)[1] for c in contracts)
    # Tiles as choose-schedule makes them: 4 rows of weights at one token, more of packed ones, else tiles of up to 128 tokens and 64 columns.
    bits = max(weight_bits(c) for c in contracts)
    column_programs = max(1, columns // (64 if tokens > 1 else 4 if bits >= 16 else 64 // bits))
    row_programs = -(-tokens // 128)
    stream = weights / target.bandwidth

    waits = 0.0
    if tokens == 1 and in_runs(contracts):
        # Two weights side by side count twice, though one program has both: an estimate from above.
        x = contracts[0].x
        sums = (op for op in before if isinstance(op, ReduceOp))
        summed = sum(shape_of(op.input)[1] * (SQUARES_US if shape_of(op.input) == shape_of(x) else SUMS_US) for op in sums)
        each = NUMBER_US * shape_of(x)[1] if x.owner in before else summed
        waits = each * columns / RUN_ROWS[bits] / target.multiprocessors
    elif streamed(contracts, tokens):
        # Programs of one warp, which wait for x in each step over K before they make digits of it, and which cannot share columns with others.
        k = shape_of(contracts[0].x)[1]
        waits = STEP_US * k / min(unit(op, STEP) for op in map(decoder, contracts) if op is not None)

    def seconds(bytes_of_x: int) -> float:
        return max(stream, (weights * row_programs + bytes_of_x * column_programs) / target.cache_bandwidth)

    return waits + max(0.0, (seconds(input_bytes) - seconds(x_bytes)) * 1e6)


def summed_beside(split: Parts, before: Sequence[Operation], schedule: ScheduleAttr, target: Device) -> float:
    """Microseconds that few tokens take longer where each program adds up rows of x beside its products, beyond those of a launch that does."""
    tokens = shape_of(split.contracts[0].x)[0]
    swapped = schedule.options.data.get("swap") is not None and schedule.get("swap") == 1
    if not swapped or streamed(split.contracts, tokens) or not any(isinstance(op, ReduceOp) for op in before):
        return 0.0
    rows = schedule.get("n") * max(len(c) for c in split.components)
    stream = sum(value_bytes(v) for c in split.contracts for v in weight_values(c)) / target.bandwidth * 1e6
    held_back = UNGROUPED if schedule.get("n") >= WARP_GROUP_ROWS else 0.0
    return max(0.0, stream * (SQUARING * schedule.get("m") / rows - HIDDEN + held_back) - NORM_US)


def lost_parallelism(split: Parts, schedule: ScheduleAttr, target: Device) -> float:
    """Microseconds that a contraction takes longer because its epilogue reduces rows, which leaves fewer programs than multiprocessors."""
    if not any(isinstance(op, ReduceOp) for op in split.epilogue):
        return 0.0
    columns = schedule.get("rows" if schedule.skeleton.data == "gemv" else "n")
    programs = sum(-(-shape_of(c[0].result)[1] // columns) for c in split.components)
    if schedule.skeleton.data == "mma":
        programs *= -(-shape_of(split.contracts[0].x)[0] // schedule.get("m"))
    weights = sum(value_bytes(v) for c in split.contracts for v in weight_values(c))
    busy = min(1.0, programs / target.multiprocessors)
    return weights / target.bandwidth * (1 / busy - 1) * 1e6


def depth(ops: Sequence[Operation]) -> int:
    """Ops on the longest path of a region; constants are no step."""
    longest: dict[Operation, int] = {}
    for op in ops:
        before = [longest[v.owner] for v in op.operands if isinstance(v.owner, Operation) and v.owner in longest]
        longest[op] = max(before, default=0) + (not isinstance(op, ConstantOp))
    return max(longest.values(), default=0)


def crossing_bytes(made: Iterable[Operation], left: set[Operation], inside: set[Operation]) -> int:
    """Bytes written and read between the `made` ops of a chain and the ones `left`; what others (not `inside`) need is written anyway."""
    total = 0
    for op in made:
        for result in op.results:
            readers = [use.operation for use in result.uses]
            if any(r in left for r in readers):
                total += value_bytes(result) * (1 if any(r not in inside and r not in left for r in readers) else 2)
    return total

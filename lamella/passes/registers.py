"""A region and its schedule go in; an estimate of the registers that a thread of its kernel needs leaves.

The estimate counts the block elements that are alive at once: the tiles a skeleton keeps, and the values of the region that stay alive
across one of its ops. It is compared with what ptxas allocates for the kernels of a Llama (tests/numeric/test_registers.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.tile import AttendOp, AttendPartialOp, CastOp, ConstantOp, ContractExpertsOp, RotateOp, ScheduleAttr, TopPartialOp
from lamella.passes.contractions import WORDS_UNROLLED, takes_words, weight_bits, written_out
from lamella.passes.packed_columns import RUNS
from lamella.passes.region_parts import Parts, parts, stored_values
from lamella.passes.row_parts import RowPart, row_parts

THREADS = 32
"""Threads of a warp."""
MOST = 255
"""Registers a thread can have: what exceeds them lies in memory."""
SPILLED = 36
"""Registers that attention of many queries may ask for beyond those. With 128 rows of heads of 128 it leaves some offsets in memory, most of them
before and after its loops: 470 TFLOP/s where 64 rows reach 340 (H200, 8192 tokens)."""
ADDRESSES = 16
"""Registers of pointers, offsets and loop state in the smallest kernels."""
MMA_ADDRESSES = 32
"""The same where tiles of several operands advance through K."""
RUN_VALUES = 48
"""Registers for a piece of x and one of a weight as products take them, where rows are cut into runs."""
SAMPLING = 6
"""Values a program that draws keeps a column: score, its image and index, noise, and the best of two kinds."""


def registers(ops: Sequence[Operation], schedule: ScheduleAttr) -> int:
    """32-bit registers a thread, before the assembler's limit of 255."""
    threads = THREADS * schedule.get("warps")
    match schedule.skeleton.data:
        case "gemv":
            return _gemv(parts(ops), schedule, threads)
        case "mma":
            return _mma(parts(ops), schedule, threads)
        case "attend":
            return _attend(ops, schedule, threads)
        case "expert_tiles":
            side = sum(isinstance(op, ContractExpertsOp) for op in ops)
            return MMA_ADDRESSES + schedule.get("m") * schedule.get("n") * side // threads
        case "experts":
            return _experts([op for op in ops if isinstance(op, ContractExpertsOp)], schedule, threads)
        case "sample":
            alone = all(isinstance(op, TopPartialOp) for op in ops)
            return ADDRESSES + (1 if alone else SAMPLING) * _elements(schedule.get("columns"), threads)
        case _:
            return ADDRESSES + max((_row(part, schedule, threads) for part in row_parts(ops, stored_values(ops))), default=1)


def most_registers(schedule: ScheduleAttr) -> int:
    """Registers a thread that a schedule may ask for: those there are, and in attention of many queries `SPILLED` more."""
    many = schedule.skeleton.data == "attend" and schedule.get("queries") > 1 and schedule.get("splits") == 1
    return MOST + SPILLED if many else MOST


def alive(ops: Sequence[Operation]) -> int:
    """The most wide values that are alive across an op: made before it, used after it. Numbers of a row and constants are not wide."""
    place = {op: i for i, op in enumerate(ops)}
    most = 0
    spans: list[tuple[int, int]] = []
    for op in ops:
        if isinstance(op, ConstantOp) or not op.results or shape_of(op.results[0])[-1:] == (1,):
            continue
        uses = [place[use.operation] for use in op.results[0].uses if use.operation in place]
        if uses:
            spans.append((place[op], max(uses)))
    for i in range(len(ops)):
        most = max(most, sum(made < i < used for made, used in spans))
    return most


def _elements(block: int, threads: int) -> int:
    """Elements of a block that one thread holds."""
    return max(1, -(-block // threads))


def _row(part: RowPart, schedule: ScheduleAttr, threads: int) -> int:
    """The values of a part that are alive at once, as many columns of each as a program takes."""
    columns = min(schedule.get("columns"), 1 << max(0, part.width - 1).bit_length())
    return _elements(columns * schedule.get("rows"), threads) * max(1, alive(part.ops))


def _gemv(split: Parts, schedule: ScheduleAttr, threads: int) -> int:
    """The weights of all columns, and one piece of x, in float32 where something is computed on it or several products read it."""
    x = split.contracts[0].x
    block_k, k = schedule.get("k"), shape_of(x)[1]
    trips = -(-k // block_k)
    side = max(len(c) for c in split.components)
    if "runs" in schedule.options.data:
        words = schedule.get("rows") * block_k * side * max(weight_bits(c) for c in split.contracts) // 32
        return ADDRESSES + _elements(words, threads) + _elements(schedule.get("rows") * RUNS * RUNS * side, threads) + RUN_VALUES
    held = trips if written_out(split, schedule) else 2
    weights = schedule.get("rows") * block_k * held * side * max(weight_bits(c) for c in split.contracts) // 32
    accumulators = 0 if written_out(split, schedule) else schedule.get("rows") * block_k * side
    computed = bool(split.prologue) or side > 1
    piece = block_k * (4 if computed else ELEMENT_BYTES[element_of(x)]) // 4 * max(side, alive(split.prologue), 1)
    return ADDRESSES + _elements(weights, threads) + _elements(piece, threads) + accumulators // threads


def _experts(contracts: Sequence[ContractExpertsOp], schedule: ScheduleAttr, threads: int) -> int:
    """Weights and their products; of packed words those of two pieces, sums of a number for each word, and x as it is and scaled."""
    block_k, side = schedule.get("k"), len(contracts)
    block = schedule.get("rows") * block_k
    if not all(takes_words(c) for c in contracts):
        return ADDRESSES + 2 * side * _elements(block, threads)
    bits = max(weight_bits(c) for c in contracts)
    held = min(WORDS_UNROLLED, -(-shape_of(contracts[0].x)[1] // block_k))
    words = _elements(block * bits // 32, threads)
    return ADDRESSES + (held + 1) * side * words + 2 * _elements(block_k, threads)


def _mma(split: Parts, schedule: ScheduleAttr, threads: int) -> int:
    """Accumulators, twice where a rotation splits and joins them, and the part of x that a warp multiplies when there are few tokens.

    Beside tiles of descriptors a rotation takes wide ones in halves.
    """
    m, n, k = schedule.get("m"), schedule.get("n"), schedule.get("k")
    side = max(len(c) for c in split.components)
    turned = 0
    if any(isinstance(op, RotateOp) for op in split.epilogue):
        turned = n * side // (2 if schedule.options.data.get("descriptors") is not None and n * side >= 256 else 1)
    accumulators = m * (n * side + turned) // threads
    operand = 16 * k // 2 // THREADS if m < 64 else 0
    prologue = m * k * max(0, alive(split.prologue)) // threads if split.prologue else 0
    return MMA_ADDRESSES + accumulators + operand + prologue


def _attend(ops: Sequence[Operation], schedule: ScheduleAttr, threads: int) -> int:
    """Queries of 16 rows a warp, scores and their exponents, the accumulators; a split tile also keys and values, read before the wait and after.

    Two thirds of the latter are alive at once. Where a split tile has more than the 16 rows of a tensor core, the accumulators of its first
    step stay beside those of the loop. Both factors are from figures of ptxas for heads of 256.
    """
    rows, tile, dim = schedule.get("rows"), schedule.get("tile"), _head_dim(ops)
    size = next((ELEMENT_BYTES[element_of(op.q)] for op in ops if isinstance(op, AttendOp | AttendPartialOp)), 2)
    queries = 16 * dim * size // 4 // THREADS
    split = schedule.get("splits") > 1
    early = 4 * tile * dim * size // 4 // threads * 2 // 3 if split else 0
    accumulators = rows * dim // threads * (2 if split and rows > 16 else 1)
    return MMA_ADDRESSES + queries + rows * tile * 3 // 2 // threads + accumulators + early


def _head_dim(ops: Sequence[Operation]) -> int:
    """The head size of the region's attention."""
    for op in ops:
        if isinstance(op, AttendOp | AttendPartialOp):
            return op.head_dim.value.data
    raise AssertionError(f"no attention among {[op.name for op in ops if not isinstance(op, CastOp)]}")

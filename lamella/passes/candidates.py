"""A region goes in; the schedules that are worth a measurement leave, the cost model's own first.

The parameters are enumerated on a grid, those that do not fit are dropped (`passes/tuning.py`), and the rest is ranked by what decides
the speed of each skeleton: bytes in flight, programs for all multiprocessors, lanes that do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, log2

from xdsl.ir import Operation

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.tile import AttendOp, ScheduleAttr
from lamella.passes.contractions import FEW_ROWS, weight_bits
from lamella.passes.descriptors import DESCRIPTORS, describable
from lamella.passes.device import Device
from lamella.passes.packed_columns import RUNS, digits, in_runs, piece_columns, streamed
from lamella.passes.region_parts import parts
from lamella.passes.registers import THREADS
from lamella.passes.schedules import HELD_RUNS, minimum_columns, power_of_two, stages_in_flight
from lamella.passes.tuning import TUNABLE, why_not

MOST = 24
"""Candidates a region, the cost model's own among them: each costs a compilation and some milliseconds of the device."""
BYTES_A_THREAD = 96
"""Weights a thread of a gemv loads: six loads of 16 bytes in flight."""

MINOR: Mapping[str, str] = {"gemv": "k", "mma": "stages", "attend": "stages"}
"""The option of a skeleton that matters least."""
CROWDING = 0.4
"""What each better schedule that differs in the minor option only costs the score: a variety finds more than neighbours of one guess."""

Options = Mapping[str, int]


def candidates(ops: Sequence[Operation], model: ScheduleAttr, longest: int, target: Device, most: int = MOST) -> list[ScheduleAttr]:
    """At most `most` schedules of a region, `model` (the cost model's) first, the others from the most promising on."""
    skeleton = model.skeleton.data
    own = {name: model.get(name) for name in model.options.data}
    if skeleton not in TUNABLE:
        return [model]
    match skeleton:
        case "gemv":
            grid, rank = _gemv(ops), _rank_gemv
        case "mma":
            grid, rank = _mma(ops), _rank_mma
        case _:
            grid, rank = _attend(ops, longest), _rank_attend
    found: dict[tuple[tuple[str, int], ...], float] = {}
    for varied in grid:
        options = own | {name: value for name, value in varied.items() if name in own}
        if options != own and why_not(skeleton, options, ops, longest, target, model) is None:
            found.setdefault(tuple(sorted(options.items())), rank(options, ops, longest, target))
    ranked = _spread(skeleton, found)
    return [model, *(ScheduleAttr.of(skeleton, **dict(options)) for options in ranked[: most - 1])]


def _spread(skeleton: str, scores: Mapping[tuple[tuple[str, int], ...], float]) -> list[tuple[tuple[str, int], ...]]:
    """Options in the order of their scores, each pushed back by those before it that differ from it in the minor option only."""
    seen: dict[tuple[tuple[str, int], ...], int] = {}
    order: dict[tuple[tuple[str, int], ...], float] = {}
    for options in sorted(scores, key=lambda options: (scores[options], options)):
        family = tuple(item for item in options if item[0] != MINOR[skeleton])
        order[options] = scores[options] + CROWDING * seen.get(family, 0)
        seen[family] = seen.get(family, 0) + 1
    return sorted(order, key=lambda options: (order[options], options))


def _powers(low: int, high: int) -> list[int]:
    """Powers of two from `low` to `high`, both among them."""
    return [1 << n for n in range(low.bit_length() - 1, high.bit_length())]


# One token: rows of weights


def _gemv(ops: Sequence[Operation]) -> Iterator[Options]:
    split = parts(ops)
    k = power_of_two(shape_of(split.contracts[0].x)[1])
    need = max(minimum_columns(split, i) for i in range(len(split.components)))
    if in_runs(split.contracts):
        piece = piece_columns(split.contracts[0])
        whole = shape_of(split.contracts[0].x)[1] // piece
        for rows, held in product(sorted({2, 4, 8, 16, max(2, need)}), [n for n in range(1, min(whole, 16) + 1) if whole % n == 0]):
            yield {"rows": rows, "k": held * piece, "warps": 1, "runs": RUNS}
        return
    pieces = sorted({*(n for n in _powers(512, 4096) if n < k), k})
    for rows, piece, warps in product(sorted({*_powers(1, 16), need}), pieces, _powers(2, 16)):
        yield {"rows": rows, "k": piece, "warps": warps}


def _rank_gemv(options: Options, ops: Sequence[Operation], longest: int, target: Device) -> float:
    """Far from the best number of bytes a thread, too few programs, lanes past the end of a row: each counts in powers of two."""
    split = parts(ops)
    k = shape_of(split.contracts[0].x)[1]
    padded = ceil(k / options["k"]) * options["k"]
    side = max(len(c) for c in split.components)
    held = options["rows"] * padded * side * weight_bits(split.contracts[0]) / 8
    bytes_a_thread = held / (THREADS * options["warps"])
    programs = sum(ceil(shape_of(c[0].result)[1] / options["rows"]) for c in split.components)
    idle = max(0.0, log2(2 * target.multiprocessors / programs))
    if "runs" in options:
        trip = options["rows"] * options["k"] * side * weight_bits(split.contracts[0]) / 8
        return abs(log2(trip / HELD_RUNS)) + max(0.0, log2(8 * target.multiprocessors / programs))
    # Pieces count only between equals: the fewest, since each has its masks and sums.
    return abs(log2(bytes_a_thread / BYTES_A_THREAD)) + idle + 3 * log2(padded / k) + 0.3 * (padded // options["k"] - 1)


# Several tokens: tiles


def _mma(ops: Sequence[Operation]) -> Iterator[Options]:
    split = parts(ops)
    tokens, k = shape_of(split.contracts[0].x)
    widest = power_of_two(max(shape_of(c[0].result)[1] for c in split.components))
    columns = [n for n in (16, 32, 64, 128, 256) if n <= max(16, widest)]
    pieces = [piece for piece in (32, 64, 128, 256) if piece <= max(16, power_of_two(k))]
    as_digits, few = digits(split.contracts, tokens), streamed(split.contracts, tokens)
    if few or (tokens <= FEW_ROWS and element_of(split.contracts[0].x) != "f32"):
        # A warp takes 16 of the rows that go down the product, or 32; of bytes as many as 64.
        least, own = (1, (16, 32, 64)) if few else (8, (16, 32))
        for n, piece, rows, stages, splits in product(columns, [16, *pieces], own, (3, 5, 8), (1, 2, 4, 8)):
            m, warps = max(least, power_of_two(tokens)), max(1, n // rows)
            found = {"m": m, "n": n, "k": piece, "warps": warps, "stages": stages, "swap": 1, "splits": splits}
            yield {**found, "digits": 3} if as_digits else found
        return
    rows = power_of_two(max(16, tokens))
    ways = (1, 0) if describable(ops) else (0,)
    for m, n, piece, warps, stages, way in product(
        [m for m in (16, 32, 64, 128) if m <= rows], columns, pieces, (4, 8), (2, 3, 4, 5), ways
    ):
        yield {"m": m, "n": n, "k": piece, "warps": warps, "stages": stages, "swap": 0, "splits": 1, DESCRIPTORS: way}


def _rank_mma(options: Options, ops: Sequence[Operation], longest: int, target: Device) -> float:
    """With few tokens: bytes of weights in flight on a multiprocessor. With many: operands read an operation, and waves of programs."""
    split = parts(ops)
    tokens = shape_of(split.contracts[0].x)[0]
    side = max(len(c) for c in split.components)
    m, n = options["m"], options["n"] * side
    programs = ceil(tokens / m) * sum(ceil(shape_of(c[0].result)[1] / options["n"]) for c in split.components)
    waves = programs / target.multiprocessors
    threads = THREADS * options["warps"]
    work = abs(log2(m * n / threads / 64)) * 0.25
    if tokens <= FEW_ROWS:
        size = ELEMENT_BYTES.get(element_of(split.contracts[0].weight), 1)
        waves *= options["splits"]
        flight = options["stages"] * options["k"] * n * size * min(2.0, waves)
        # A warp takes 16 rows of what goes down the product; x is read by every program.
        down = abs(log2((options["n"] if options["swap"] else m) / 16 / options["warps"]))
        return abs(log2(flight / 65536)) + max(0.0, 1 - log2(waves)) + down + 2 * tokens / n + (0.0 if options["swap"] else 0.5)
    intensity = m * n / (m + n)
    utilization = waves / ceil(waves)
    stage = options["k"] * (m + n) * ELEMENT_BYTES[element_of(split.contracts[0].x)]
    deep = abs(options["stages"] - stages_in_flight(stage, programs, target)) * 0.1 + abs(log2(options["k"] / 64)) * 0.3
    return -log2(min(intensity, 86)) - log2(utilization) + work + deep


# Attention


def _attend(ops: Sequence[Operation], longest: int) -> Iterator[Options]:
    attend = next(op for op in ops if isinstance(op, AttendOp))
    group = attend.heads.value.data // attend.kv_heads.value.data
    context = shape_of(attend.block_table)[1] * shape_of(attend.cache)[3]
    tiles = [n for n in (16, 32, 64, 128) if n <= max(16, power_of_two(context))]
    held = sorted({max(1, min(longest, n // group)) for n in (16, 32, 64, 128)})
    for queries, tile, splits, warps, stages in product(held, tiles, _powers(1, 64), (1, 2, 4, 8), (1, 2, 3, 4)):
        if splits == 1 or splits * tile <= context:
            rows = max(16, power_of_two(queries * group))
            yield {"queries": queries, "rows": rows, "tile": tile, "splits": splits, "warps": warps, "stages": stages}


def _rank_attend(options: Options, ops: Sequence[Operation], longest: int, target: Device) -> float:
    """Programs for the device, warps for the rows, tiles in flight; keys are read once for each tile of queries."""
    attend = next(op for op in ops if isinstance(op, AttendOp))
    sequences, blocks = shape_of(attend.block_table)
    context = blocks * shape_of(attend.cache)[3]
    tiles = ceil(longest / options["queries"])
    waves = sequences * attend.kv_heads.value.data * tiles * options["splits"] / target.multiprocessors
    trips = context / 2 / options["splits"] / options["tile"] if longest == 1 else context / options["tile"]
    fill = max(0.0, -log2(waves)) if waves < 1 else 0.2 * log2(waves) if longest == 1 else -log2(waves / ceil(waves))
    reread = 0.0 if longest == 1 else 0.7 * log2(128 / options["rows"]) if options["rows"] < 128 else 0.0
    warps = abs(log2(options["warps"] * 16 / max(64, options["rows"]))) * 0.4
    depth = 0.15 * abs(options["stages"] - 2) + max(0.0, -log2(max(trips, 0.125)) * 0.5)
    merge = 0.2 * log2(options["splits"]) if longest > 1 else 0.0
    return fill + reread + warps + depth + merge + 0.2 * abs(log2(options["tile"] / 64))

"""The cost model behind `choose-schedule`: parameters of each skeleton from the shape of a region and the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, python_int, shape_of
from lamella.dialects.tile import AddColumnsOp, AttendOp, ContractExpertsOp, DequantizeOp, ReduceOp, RotateOp, ScheduleAttr
from lamella.passes.byte_products import of_bytes
from lamella.passes.contractions import FEW_ROWS, takes_words, weight_bits
from lamella.passes.descriptors import DESCRIPTORS, describable
from lamella.passes.device import Device
from lamella.passes.packed_columns import LEAST_BYTES, RUN_BYTES, RUNS, decoder, digits, in_runs, most_columns, piece_columns, streamed
from lamella.passes.region_parts import Parts, parts, stored_values
from lamella.passes.registers import THREADS, most_registers, registers
from lamella.passes.row_parts import MAX_ROW, row_parts

SMALL, LARGE = 2 << 20, 32 << 20
"""Bytes of weights up to which a region is bound by latency, and from which on only bandwidth counts."""

WARP_BYTES = 8192
"""Bytes of weights that a program of one warp takes: 64 registers a thread."""

HELD = 256 * 256
"""Bytes of registers of a program for weights as they were loaded: 64 a thread of 256."""

WARP_GROUP, WARP_GROUP_ROWS = 4, 64
"""Warps that multiply so many rows together, from tiles in shared memory that they read after the instruction is done: `passes/check_pipelines.py`."""

HELD_RUNS = 8 << 10
"""Bytes of weights that a warp asks for at once where their rows are in runs: 64 registers a thread, if all come at the same time."""

RUN_ROWS = {4: 4, 8: 2}
"""Weight rows of such a program, by the bits of a number."""
RUN_PROGRAMS = 4
"""Such programs a multiprocessor below which its four schedulers do not have a warp each, and nobody uses the time that a warp waits between trips."""
RUN_PIECES = 4
"""Pieces of K in a trip where the grid is divided between weights: each part of a kernel has its own, and long ones run out of the cache for instructions."""

MOST_BESIDE = 2
"""Warps of a program that adds up rows of x beside its products: less than a warp group, since the sums read the tiles of x too."""


def power_of_two(n: int) -> int:
    """The least power of two not below n: Triton's blocks have such sizes."""
    return 1 << max(0, n - 1).bit_length()


def row_schedule(ops: Sequence[Operation]) -> ScheduleAttr:
    """One program a row, or a head of one; vectors of one number a row are taken many rows a program."""
    found = row_parts(ops, stored_values(ops))
    width = max((part.width for part in found), default=0)
    rows = max((part.rows for part in found), default=1)
    columns = min(power_of_two(max(1, width)), MAX_ROW)
    block = 1 if width else min(power_of_two(rows), 128)
    return ScheduleAttr.of("row", columns=columns, rows=block, warps=4 if columns < 2048 else 8)


def minimum_columns(split: Parts, component: int) -> int:
    """Columns one program must hold for the epilogue of a component: a pair for a rotation, those that it adds up, all of them for a reduction."""
    ops = [op for op in split.epilogue if split.component_of.get(op) == component]
    width = shape_of(split.components[component][0].result)[1]
    if any(isinstance(op, ReduceOp) for op in ops):
        return power_of_two(width)
    summed = max((python_int(op.columns) for op in ops if isinstance(op, AddColumnsOp)), default=1)
    return max(summed, 2 if any(isinstance(op, RotateOp) for op in ops) else 1)


def gemv_schedule(ops: Sequence[Operation], target: Device) -> ScheduleAttr:
    """One token: a program takes `rows` whole weight rows, `k` columns at a time, as one register tile.

    16 KiB of each weight a program and 256 threads keep four 16-byte loads of every thread in flight; fewer rows where the grid would not
    fill the device three times, or where whole rows would not fit the registers (128 elements a thread). A region that reads less than
    SMALL bytes is all latency: programs of one warp need no barrier to add up their rows, two of them where it reads up to twice that. Measured on
    an H200 against 1, 2, 8 and 16 rows and 1, 2 and 4 warps: benchmarks/results.
    """
    split = parts(ops)
    k = shape_of(split.contracts[0].x)[1]
    bits = max(weight_bits(c) for c in split.contracts)
    side_by_side = max(len(c) for c in split.components)
    columns = sum(shape_of(c[0].result)[1] for c in split.components)
    need = needed_columns(split)
    total = sum(shape_of(c.result)[1] for c in split.contracts) * k * bits // 8
    if in_runs(split.contracts):
        return runs_schedule(split, bits, target)
    if bits < 16 and all(takes_words(c) for c in split.contracts):
        return packed_schedule(split, bits, target)
    few = need if total <= SMALL else max(need, 2)
    if (total <= SMALL or (k <= 1024 and total <= 2 * SMALL)) and k * bits // 8 * few <= WARP_BYTES:
        return ScheduleAttr.of("gemv", rows=few, k=min(power_of_two(k), 1024), warps=1)
    block_k = columns_at_once(k) if total > LARGE else min(power_of_two(k), 2048)
    padded = -(-k // block_k) * block_k
    rows = max(1, power_of_two(16384 // (min(padded, 2048) * bits // 8) + 1) // 2)
    while rows > 1 and (columns // rows < 3 * target.multiprocessors or rows * padded * side_by_side * bits // 8 > HELD):
        rows //= 2
    rows = max(min(rows, 16), need)
    warps = 8 if rows * padded * side_by_side * bits // 8 >= 16384 else 4
    return ScheduleAttr.of("gemv", rows=rows, k=block_k, warps=warps)


def packed_schedule(split: Parts, bits: int, target: Device) -> ScheduleAttr:
    """One token and packed words: 16 rows of numbers of 4 bits a program, 8 of 8, so that what x takes is shared by many of them.

    Fewer where the grid would not fill the device three times. Four warps; eight where the words of whole rows would be more than 64 a
    thread, two where they are few. Measured on an H200 against 1 to 16 rows and 1 to 8 warps with the shapes of Llama-3.1-8B: benchmarks/results.
    """
    side_by_side = max(len(c) for c in split.components)
    columns = sum(shape_of(c[0].result)[1] for c in split.components)
    return ScheduleAttr.of(
        "gemv", **word_options(shape_of(split.contracts[0].x)[1], columns, side_by_side, needed_columns(split), bits, target)
    )


def runs_schedule(split: Parts, bits: int, target: Device) -> ScheduleAttr:
    """One token and packed weights whose rows are cut into runs: programs of one warp, which need no barrier, a few rows each.

    Four rows of numbers of 4 bits, which x costs more beside, two of bytes; in each trip over K as many columns as fit HELD_RUNS bytes, half as many
    of two weights side by side, at most half of a row where the grid is divided between weights, and as leave none over. Two weights of 4 bits side
    by side are taken in whole rows where as many bytes hold two rows of each; two rows of one, where four in several trips leave fewer than
    RUN_PROGRAMS programs a multiprocessor. The first trip's columns are asked for before the launches before end. Measured on an H200 with the
    shapes of Llama-3.1-8B and Llama-3.2-1B against 2 to 16 rows, 1 to 8 programs a row and 1 to 4 warps, alone and in the step: benchmarks/results.
    """
    k, side_by_side = shape_of(split.contracts[0].x)[1], max(len(c) for c in split.components)
    need = needed_columns(split)
    rows = max(RUN_ROWS[bits], need)
    piece = piece_columns(split.contracts[0])
    pieces = k // piece
    piece_bytes = side_by_side * RUNS * RUN_BYTES
    if side_by_side > 1 and bits == 4:
        whole = next((n for n in (rows, max(2, need)) if n * pieces * piece_bytes <= HELD_RUNS), None)
        if whole is not None:
            return ScheduleAttr.of("gemv", rows=whole, k=k, warps=1, runs=RUNS)
    most = max(1, HELD_RUNS // side_by_side // (rows * piece_bytes))
    most = min(most, RUN_PIECES, max(1, pieces // 2)) if len(split.components) > 1 else most
    columns = sum(shape_of(c[0].result)[1] for c in split.components)
    if pieces > most and columns // rows < RUN_PROGRAMS * target.multiprocessors:
        rows = max(2, need)
    held = next(n for n in range(min(pieces, most), 0, -1) if pieces % n == 0)
    return ScheduleAttr.of("gemv", rows=rows, k=held * piece, warps=1, runs=RUNS)


def word_options(k: int, columns: int, side_by_side: int, needed: int, bits: int, target: Device) -> dict[str, int]:
    """Those options for so many columns of results, of which a program needs some at once, and contractions that meet in each."""
    most = 2048 if bits == 8 else 2048 // side_by_side
    block_k = min(columns_at_once(k), most) if k > most else power_of_two(k)
    rows = max(1, 64 // bits // side_by_side)
    while rows > 1 and columns // rows < 3 * target.multiprocessors:
        rows //= 2
    rows = max(rows, needed)
    words = rows * side_by_side * padded_to(block_k, k) * bits // 32
    return {"rows": rows, "k": block_k, "warps": 8 if words > 64 * 4 * THREADS else 4 if words > 16 * 2 * THREADS else 2}


def columns_at_once(k: int) -> int:
    """Columns of a piece of K that leave the fewest threads idle at its end: a power of two of at most 2048, and at most 8 pieces."""
    sizes = [size for size in (2048, 1024, 512, 256) if -(-k // size) <= 8] or [2048]
    return next((size for size in sizes if padded_to(size, k) <= k * 9 // 8), min(sizes, key=lambda size: padded_to(size, k)))


def padded_to(size: int, k: int) -> int:
    """The least multiple of `size` that is not below k."""
    return -(-k // size) * size


def mma_schedule(ops: Sequence[Operation], target: Device) -> ScheduleAttr:
    """Several tokens: tensor-core tiles of m tokens by n columns, k at a time, loads `stages` tiles ahead; few tokens are `swap`ped.

    Where x and weights are multiplied as they lie in memory, a tile of many tokens is as large as fills the device with the least work, up to
    256 columns; where the region is marked for them its loads go through `descriptors`. Measured on an H200 with the shapes of Llama-3.1-8B
    and 512 and 2048 tokens: benchmarks/results.
    """
    split = parts(ops)
    tokens, k = shape_of(split.contracts[0].x)
    exact = element_of(split.contracts[0].x) == "f32"
    if streamed(split.contracts, tokens):
        return stream_schedule(split, target)
    if tokens <= FEW_ROWS and not exact:
        return few_tokens_schedule(split, target)
    side_by_side = max(len(c) for c in split.components)
    columns = sum(shape_of(c[0].result)[1] for c in split.components)
    m = min(max(16, power_of_two(tokens)), 64 if exact else 128)
    n = 128 // side_by_side if m >= 64 and not exact else 32
    while n > 16 and -(-tokens // m) * (columns // n) < target.multiprocessors:
        n //= 2
    if any(op.per_super for op in map(decoder, split.contracts) if op is not None):
        # Scales of bytes pass through registers, not through shared memory: with as many columns hundreds of bytes a thread spilled (sm_90).
        n = max(16, n // 2)
    described = describable(ops)
    if m == target.tile_rows and as_stored(split):
        m, n = target.tile(tokens, columns * side_by_side, side_by_side)
        # Sums of float8 are held twice: of the columns at hand, and of all before.
        n = min(n, 128) if element_of(split.contracts[0].x) == "f8" else n
        # Angles take registers beside the products, unless a tile is taken in halves.
        n = max(16, (n if described or not any(isinstance(op, RotateOp) for op in split.epilogue) else min(n, 128)) // side_by_side)
    n = max(n, needed_columns(split), 16)
    as_bytes = of_bytes(split.contracts[0])
    columns_of_k = 128 if as_bytes else 32 if exact else 64 if m >= 64 else 128
    block_k = most_columns(split.contracts, min(max(LEAST_BYTES if as_bytes else 16, power_of_two(k)), columns_of_k))
    warps = 8 if m * n * side_by_side >= 128 * 128 else 4
    stages = 2 if exact else 3 if m >= 64 else 4
    if described:
        programs = -(-tokens // m) * sum(-(-shape_of(c[0].result)[1] // n) for c in split.components)
        stages = stages_in_flight(block_k * (m + n * side_by_side) * ELEMENT_BYTES[element_of(split.contracts[0].x)], programs, target)
    found = {"m": m, "n": n, "k": block_k, "warps": warps, "stages": stages, "swap": 0, "splits": 1}
    return ScheduleAttr.of("mma", **found, **({DESCRIPTORS: 1} if described else {}))


def stages_in_flight(stage_bytes: int, programs: int, target: Device) -> int:
    """Tiles that loads may be ahead: three, or four where the programs that share a multiprocessor leave the memory for it.

    Measured on an H200 with 512 tokens of Llama-3.1-8B: `down`, one program on a multiprocessor, 94 us with four and 125 with three; q, k and
    v, three programs on each, 55 us with four (then two fit) and 42 with three.
    """
    resident = max(1, min(-(-programs // target.multiprocessors), target.shared_memory // (3 * stage_bytes)))
    return max(2, min(4, target.shared_memory // (resident * stage_bytes)))


def as_stored(split: Parts) -> bool:
    """Whether x and the weights of a region are numbers of 16 or 8 bits that are multiplied as they lie in memory, and nothing reduces rows of x."""
    inside = set(split.prologue)
    if of_bytes(split.contracts[0]):
        return True
    if any(c.x.owner in inside or isinstance(c.weight.owner, DequantizeOp) or weight_bits(c) != 16 for c in split.contracts):
        return False
    return not any(isinstance(op, ReduceOp) for op in split.prologue)


def stream_schedule(split: Parts, target: Device) -> ScheduleAttr:
    """One token, or as few as take digits, and weights of a byte or less: a program of one warp takes 64 weight rows, or 32 of whole bytes.

    Each reads all of x and takes it apart, so that more rows cost less; what keeps memory busy are the tiles in flight, not warps. Up to eight
    programs share the columns of a tile where tiles are few. Measured on an H200 with the shapes of Llama-3.1-8B: benchmarks/results.
    """
    tokens, k = shape_of(split.contracts[0].x)
    side_by_side = max(len(c) for c in split.components)
    columns = sum(shape_of(c[0].result)[1] for c in split.components)
    bits = max(weight_bits(c) for c in split.contracts)
    n = (64 if bits < 8 else 32) // side_by_side
    block_k = most_columns(split.contracts, min(max(32, power_of_two(k)), 256))
    whole = any(isinstance(op, ReduceOp) for op in split.prologue)
    # Six programs on a multiprocessor, so that the last ones to end are few.
    busy, splits, trips = 6 * target.multiprocessors, 1, -(-k // block_k)
    while whole and n > 16 and -(-columns // n) < busy // 3:
        n //= 2
    n = max(n, needed_columns(split))
    tiles = -(-columns // n)
    while not whole and splits < 8 and tiles * splits < busy and trips >= 8 * splits and tiles <= target.counters:
        splits *= 2
    as_digits = digits(split.contracts, tokens)
    warps = warps_of(n // 64, whole)
    options = {"m": power_of_two(tokens), "n": n, "k": block_k, "warps": warps, "stages": 3, "swap": 1, "splits": splits}
    return ScheduleAttr.of("mma", **options, **({"digits": 3} if as_digits else {}))


@dataclass(frozen=True)
class FewTokens:
    """How programs of few tokens go through their weights: `k` columns at once, `stages` tiles in flight, and columns shared until a multiprocessor has so many `programs`."""

    k: int
    stages: int
    programs: int


FEW_TOKENS: Mapping[tuple[str, bool, bool], FewTokens] = {
    ("floats", False, False): FewTokens(128, 5, 3),
    ("floats", False, True): FewTokens(128, 5, 1),
    ("floats", True, False): FewTokens(128, 3, 2),
    ("floats", True, True): FewTokens(64, 3, 1),
    ("packed", False, False): FewTokens(256, 4, 3),
    ("packed", False, True): FewTokens(256, 4, 1),
    ("packed", True, False): FewTokens(256, 4, 2),
    ("packed", True, True): FewTokens(256, 4, 1),
    ("unpacked bytes", True, False): FewTokens(64, 3, 2),
    ("unpacked bytes", True, True): FewTokens(64, 3, 2),
    ("unpacked halves", True, False): FewTokens(128, 3, 2),
    ("unpacked halves", True, True): FewTokens(64, 3, 2),
}
"""By weights, whether tokens are more than 16, and whether two weights lie side by side. Measured on an H200 (benchmarks/results). Sums of two products left in memory cost more
than the second half of a wave: 224 programs of gate and up 51 us, twice as many 61. Where more tokens take weights apart, another program is worth more: int4, 32 tokens, 49 us for 63."""


def few_tokens_schedule(split: Parts, target: Device) -> ScheduleAttr:
    """Few tokens: bound by the weights, which are read once. A warp takes 16 weight rows, and their columns lie in flight in shared memory.

    More tokens take more rows a program, for each reads all of x from the cache; and where tiles of rows are too few to keep the device
    busy, up to four programs share the columns of one. Measured on an H200 with the shapes of Llama-3.1-8B, 8 and 32 tokens:
    benchmarks/results.
    """
    tokens, k = shape_of(split.contracts[0].x)
    columns = sum(shape_of(c[0].result)[1] for c in split.components)
    m = max(8, power_of_two(tokens))
    many, side_by_side = m > 16, max(len(c) for c in split.components) > 1
    n = 64 if many else 32
    own = FEW_TOKENS[weights_of_few(split, many, -(-columns // n), target), many, side_by_side]
    least = LEAST_BYTES if of_bytes(split.contracts[0]) else 16
    block_k = most_columns(split.contracts, min(max(least, power_of_two(k)), own.k))
    busy = own.programs * target.multiprocessors
    whole = any(isinstance(op, ReduceOp) for op in split.prologue)
    splits, trips = 1, -(-k // block_k)
    while not whole and splits < 4 and -(-columns // n) * splits < busy and trips >= 8 * splits:
        splits *= 2
    while whole and n > 16 and -(-columns // n) < target.multiprocessors:
        n //= 2
    n = max(n, needed_columns(split))
    # Five tiles in flight leave room for few programs on a multiprocessor, three for more: of 32 tokens 12.1 us for 14.2 (4096x4096).
    stages = 3 if own.stages == 5 and -(-columns // n) * splits >= busy else own.stages
    warps = warps_of(n // 16, whole)
    return ScheduleAttr.of("mma", m=m, n=n, k=block_k, warps=warps, stages=stages, swap=1, splits=splits)


def weights_of_few(split: Parts, many: bool, tiles: int, target: Device) -> str:
    """What the weights of few tokens are to FEW_TOKENS: floats; packed ones; or such as more than 16 tokens take apart while tiles of them are few for the device."""
    bits = max(weight_bits(c) for c in split.contracts)
    if bits > 8:
        return "floats"
    if not many or of_bytes(split.contracts[0]) or tiles >= 2 * target.multiprocessors:
        return "packed"
    return "unpacked bytes" if bits == 8 else "unpacked halves"


def warps_of(wanted: int, whole: bool) -> int:
    """Warps of a program whose weight rows go down the product; few where it adds up `whole` rows of x as well."""
    return max(1, min(MOST_BESIDE if whole else 8, wanted))


def needed_columns(split: Parts) -> int:
    """Columns one program must hold for the epilogue of any component."""
    return max(minimum_columns(split, i) for i in range(len(split.components)))


def experts_schedule(ops: Sequence[Operation], target: Device) -> ScheduleAttr:
    """A choice of a token: a program takes `rows` weight rows of the chosen expert, `k` columns at a time.

    As with `gemv`, 16 KiB of each weight, fewer where the grid would not fill the device three times, but no less than a warp's share; of
    packed words as many as `gemv` takes.
    """
    contracts = [op for op in ops if isinstance(op, ContractExpertsOp)]
    (choices, width), k = shape_of(contracts[0].result), shape_of(contracts[0].x)[1]
    bits = max(weight_bits(c) for c in contracts)
    if all(takes_words(c) for c in contracts):
        return ScheduleAttr.of("experts", **word_options(k, choices * width, len(contracts), 1, bits, target))
    # A weight of a byte takes the registers of one of two as soon as it is widened.
    size = max(bits, 16) // 8
    block_k = columns_at_once(k) if k > 1024 else power_of_two(k)
    rows = max(1, min(16, power_of_two(16384 // (block_k * size) + 1) // 2))
    least = min(rows, power_of_two(WARP_BYTES // (block_k * size) + 1) // 2)
    while rows > max(1, least) and choices * (width // rows) < 3 * target.multiprocessors:
        rows //= 2
    return ScheduleAttr.of("experts", rows=rows, k=block_k, warps=4 if rows * block_k * len(contracts) < 8192 else 8)


def expert_tiles_schedule(ops: Sequence[Operation]) -> ScheduleAttr:
    """Many tokens: tensor-core tiles of `m` sorted choices by `n` weight rows of an expert, `k` columns at a time.

    About as many choices as an expert has on average: a tile then meets two experts, and each reads its weights for little more than its own.
    """
    contracts = [op for op in ops if isinstance(op, ContractExpertsOp)]
    choices, k = shape_of(contracts[0].result)[0], shape_of(contracts[0].x)[1]
    exact = element_of(contracts[0].x) == "f32"
    m = min(max(16, power_of_two(-(-choices // contracts[0].experts.value.data))), 64)
    # Sums of a group are held beside those of all columns: half as many columns, and of a large tile twice the threads, leave room for them.
    groups = any(decode.groups > 1 or decode.mins is not None for decode in map(decoder, contracts) if decode is not None)
    n = 32 if exact else (64 if groups else 128) // len(contracts)
    block_k = most_columns(contracts, min(max(16, power_of_two(k)), 32 if exact else 64))
    return ScheduleAttr.of("expert_tiles", m=m, n=n, k=block_k, warps=8 if groups and m >= 64 else 4, stages=2 if exact else 3)


def sort_schedule() -> ScheduleAttr:
    """A program finds the places of `rows` choices, looking at as many others at a time."""
    return ScheduleAttr.of("sort", rows=64, warps=4)


def route_schedule(experts: int) -> ScheduleAttr:
    """A token a program, all experts at once."""
    return ScheduleAttr.of("route", columns=power_of_two(experts), rows=1, warps=1 if experts <= 128 else 4)


def attend_schedule(op: AttendOp, longest_query: int, target: Device) -> ScheduleAttr:
    """`queries` queries of the heads that share a key/value head are the rows of one program; few programs split the context.

    Heads of 128 are worth 128 rows where there are programs enough: each key and value is then read half as often. Heads of 64 have too little to
    multiply for that to be what they wait for (H200, us; 64 and 128 rows): heads of 128, 512 tokens 16.5 and 18.9, 2048 tokens 128 and 124, 8192
    tokens 1510 and 1190; heads of 64, 2048 tokens 66 and 76, 8192 tokens 686 and 818.
    A window bounds what there is to split: the positions that some query of a step sees.
    """
    group = op.heads.value.data // op.kv_heads.value.data
    dim = op.head_dim.value.data
    sequences, blocks = shape_of(op.block_table)
    context = blocks * shape_of(op.cache)[3]
    seen = context if op.window is None else min(context, op.window.value.data + longest_query - 1)
    exact = element_of(op.q) == "f32"
    wide = 64 < dim <= 128 and sequences * op.kv_heads.value.data * -(-longest_query * group // 128) >= 2 * target.multiprocessors
    most = 32 if exact or dim > 128 else 128 if wide else 64
    queries = max(1, min(longest_query, most // group))
    rows = max(16, power_of_two(queries * group))
    # A split context of one query a sequence is all latency: half the positions a program, on half the warps, took a quarter off (H200).
    decode = longest_query == 1
    # Of float8 twice the positions are as many bytes.
    tile = 32 if exact or (decode and element_of(op.cache) != "f8") else 64
    tile = min(tile, max(16, power_of_two(context)))
    programs = sequences * op.kv_heads.value.data * -(-longest_query // queries)
    splits, stages = 1, 2
    enough = target.multiprocessors + 1 if decode else -(-target.multiprocessors // 2)
    while programs * splits < enough and splits * 2 * tile <= max(tile, seen) and splits < 32:
        splits *= 2
        # What is split anyway is split further: 8 sequences of 1000 tokens 15 us in 512 programs, 18 in 256 (H200).
        enough = 2 * target.multiprocessors + 1 if decode else enough
    if decode and splits == 1 and not exact:
        # Programs that go through whole contexts wait for memory in each step: 32 sequences 42 us in steps of 64, 39 in steps of 128.
        tile, stages = (128, 3) if 64 < dim <= 128 and rows == 16 else (64, 2)
        tile = min(tile, max(16, power_of_two(context)))
    # Four warps also for 128 rows: two groups of warps wait for each other at every tile (H200, 8192 tokens: 1.2 ms instead of 1.7).
    warps = 2 if splits > 1 and decode and dim <= 64 and not exact else 4
    return within_registers(
        op, {"queries": queries, "rows": rows, "tile": tile, "splits": splits, "warps": warps, "stages": stages}, decode
    )


def within_registers(op: AttendOp, options: dict[str, int], decode: bool) -> ScheduleAttr:
    """The schedule, taken back until its registers are there (`passes/registers.py`): what spills waits for memory in every step of its loop.

    A split tile reads its first keys and values twice, before the wait and after, so that with many queries fewer of them to a program, and
    no split, cost least; then more warps, fewer positions and fewer queries.
    """
    group = op.heads.value.data // op.kv_heads.value.data
    schedule = ScheduleAttr.of("attend", **options)
    while registers([op], schedule) > most_registers(schedule):
        halved = {"queries": options["queries"] // 2, "rows": max(16, power_of_two(options["queries"] // 2 * group))}
        if options["splits"] > 1 and not decode:
            options |= {"splits": 1, **(halved if options["rows"] > 16 and options["queries"] > 1 else {})}
        elif options["warps"] < 8:
            options |= {"warps": options["warps"] * 2}
        elif options["tile"] > 16:
            options |= {"tile": options["tile"] // 2}
        elif options["queries"] > 1:
            options |= halved
        else:
            break
        schedule = ScheduleAttr.of("attend", **options)
    return schedule


def sample_schedule(rows: int, vocabulary: int, target: Device) -> ScheduleAttr:
    """Programs over rows and `splits` chunks of the vocabulary, `columns` at a time.

    One program takes some 13 us to read 128k logits, most of it latency; a chunk each of 8192 logits makes that two short launches.
    """
    columns = min(power_of_two(vocabulary), MAX_ROW)
    splits = min(-(-vocabulary // columns), max(1, target.multiprocessors // rows))
    return ScheduleAttr.of("sample", columns=columns, splits=splits, warps=16 if vocabulary > MAX_ROW else 8)

"""Questions about how packed weights lie along K: which columns a step over tiles takes at once, and which weights tensor cores take as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamella.dialects import transformer
from lamella.dialects.attributes import element_of, shape_of
from lamella.dialects.tile import Contraction, ContractOp, ContractPartialOp, DequantizeOp
from lamella.passes.byte_products import of_bytes

LEAST_UNIT = 16
"""Columns of the smallest product of tiles; halves of bytes that lie closer together are taken out one by one."""
LEAST_BYTES = 32
"""Columns of the smallest product of bytes."""
SMALL, LONG = 10 << 20, 4096
"""Bytes of the weights, side by side, of 4-bit numbers from which on one token goes to the tensor cores, and columns of which they are made; of shorter rows
it takes as many times more. What a smaller one waits for are launches, and FMA starts early. Measured on an H200, a step by digits rather than by FMA: q, k and v of
Llama-3.1-8B 4 us a layer less, its output 1.6 more, gate and up of Llama-3.2-1B 0.6 more (benchmarks/results)."""
RUNS, RUN_BYTES = 8, 64
"""Runs that a piece of a row is cut into, the fewest columns of a product, and bytes of each: four threads that load 16."""
LONGEST_RUNS = {"int4": 8192}
"""Columns up to which a program takes whole rows in runs; of longer rows of half bytes several programs share each, by digits. H200, eight layers of Llama-3.1-8B with
their rows of 14336 columns in runs, and by digits: int4 429 and 412 us, int8 552 and 565, fp8 552 and 575 (benchmarks/results)."""
FEW_DIGITS = 4
"""Tokens up to which x is multiplied as digits: each takes several columns of a product."""


def decoder(contract: Contraction) -> DequantizeOp | None:
    """What unpacks the weight of a contraction; None where it is plain."""
    owner = contract.weight.owner
    return owner if isinstance(owner, DequantizeOp) else None


def paired(op: DequantizeOp) -> bool:
    """Whether a tile of bytes holds two tiles of columns, one in the lower and one in the upper halves."""
    return op.packing.bits == 4 and op.packing.half >= LEAST_UNIT


def unit(op: DequantizeOp, block: int) -> int:
    """Columns, of `block` neighbours, that are multiplied at once: with one scale, and in one half of bytes."""
    if op.packing.floats:
        return block
    if paired(op):
        return op.packing.half
    return block if op.groups == 1 else min(block, op.packing.group.data)


def in_step(contracts: Iterable[Contraction]) -> bool:
    """Whether a step over K can take the columns of all weights together: halves of bytes, a tile of which is two of columns, in whole tiles."""
    decoders = [op for op in map(decoder, contracts) if op is not None]
    return all(unit(other, op.packing.half) == op.packing.half for op in decoders if paired(op) for other in decoders)


def takes_digits(contract: ContractOp | ContractPartialOp) -> bool:
    """Whether the weight of a contraction is whole numbers that tensor cores multiply as bytes, with as many digits of x."""
    op = decoder(contract)
    if op is None or op.packing.floats or of_bytes(contract) or shape_of(contract.x)[1] < LEAST_BYTES:
        return False
    # A row with one scale may end within a tile of bytes; halves of bytes and groups may not.
    return op.packing.in_bytes or (op.packing.bits == 8 and op.groups == 1)


def run_columns(op: DequantizeOp | transformer.DequantizeOp) -> int:
    """Columns of a run."""
    return RUN_BYTES * 8 // op.packing.bits


def piece_columns(contract: Contraction) -> int:
    """Columns of eight runs of a weight that is cut into them."""
    op = decoder(contract)
    assert op is not None
    return RUNS * run_columns(op)


def takes_runs(contract: ContractOp | ContractPartialOp) -> bool:
    """Whether a row of the weight of a contraction is whole pieces of eight runs, each with one scale, and x is floats of 16 bits."""
    op = decoder(contract)
    return op is not None and element_of(contract.x) in ("bf16", "f16") and whole_runs(op)


def whole_runs(op: DequantizeOp | transformer.DequantizeOp) -> bool:
    """The same of the weight alone."""
    k, run = op.groups * op.packing.group.data, run_columns(op)
    if op.super_scales is not None or k % (RUNS * run) or k > LONGEST_RUNS.get(op.packing.kind.data, k):
        return False
    if op.packing.bits == 4 and op.packing.half != RUN_BYTES:
        return False
    return op.groups == 1 or op.packing.group.data % run == 0


def in_runs(contracts: Sequence[ContractOp | ContractPartialOp]) -> bool:
    """Whether a program of one token multiplies whole rows of weights, all of as many bits, in runs (`tile_to_kernel/runs.py`)."""
    return all(map(takes_runs, contracts)) and len({op.packing.bits for op in map(decoder, contracts) if op is not None}) == 1


def streams(contracts: Sequence[ContractOp | ContractPartialOp]) -> bool:
    """Whether one token is multiplied on the tensor cores too: weights of bytes or of eight-bit floats, which FMA would take apart one by one, and
    halves of bytes, where there are many."""
    sizes = [shape_of(c.weight) for c in contracts if (op := decoder(c)) is not None and op.packing.bits == 4]
    halves = sum(rows * columns // 2 * min(columns, LONG) // LONG for rows, columns in sizes)
    return all(_streams(c, halves) for c in contracts)


def _streams(contract: ContractOp | ContractPartialOp, halves: int) -> bool:
    """Beside so many bytes of 4-bit numbers in rows of LONG columns."""
    op = decoder(contract)
    if of_bytes(contract):
        return True
    if op is None or op.packing.floats:
        return op is not None
    return takes_digits(contract) and (op.packing.bits == 8 or halves >= SMALL)


def streamed(contracts: Sequence[ContractOp | ContractPartialOp], tokens: int) -> bool:
    """Whether contractions of few tokens take as many columns of a product as they need, and no fewer: weights of a byte or less, all of them."""
    return digits(contracts, tokens) or (tokens == 1 and streams(contracts))


def digits(contracts: Iterable[ContractOp | ContractPartialOp], tokens: int) -> bool:
    """Whether few tokens are multiplied as digits, by weights all of which are bytes."""
    return tokens <= FEW_DIGITS and all(takes_digits(c) for c in contracts)


def most_columns(contracts: Iterable[Contraction], block: int) -> int:
    """At most `block` columns of K, a power of two, that a step over tiles can take at once: whole groups of packed weights, to the end of a row."""
    for contract in contracts:
        op = decoder(contract)
        if op is None or op.packing.floats:
            continue
        k = shape_of(contract.x)[1]
        if paired(op):
            block = max(2 * op.packing.half, min(block, k & -k))
        elif op.groups > 1:
            block = max(LEAST_UNIT, min(block, k & -k))
    return block

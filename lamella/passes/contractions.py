"""Questions about the contractions of a region: how their weights are stored, and what their loop over K takes along."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.tile import Contraction, ContractPartialOp, DequantizeOp, GatherColumnsOp, ReduceOp, ScheduleAttr
from lamella.passes.region_parts import ELEMENTWISE, Parts, ancestors

FEW_ROWS = 64
"""Tokens of a tile up to which weight rows are the rows of a product, and partial sums of rows are held beside it."""


UNROLLED, WORDS_UNROLLED = 8, 2
"""Pieces of K that are written out, so that the loads of all of them are in flight; and of packed words."""


def weight_values(contract: Contraction) -> tuple[SSAValue, ...]:
    """What a contraction reads as its weight from memory: the weight, or the words and scales that it is unpacked from."""
    owner = contract.weight.owner
    return tuple(owner.operands) if isinstance(owner, DequantizeOp) else (contract.weight,)


def weight_bits(contract: Contraction) -> int:
    """Bits of a weight of a contraction in memory, without its share of a scale."""
    owner = contract.weight.owner
    return owner.packing.bits if isinstance(owner, DequantizeOp) else 8 * ELEMENT_BYTES[element_of(contract.weight)]


def takes_words(contract: Contraction) -> bool:
    """Whether a weight is packed in words, which a program takes apart."""
    owner = contract.weight.owner
    return isinstance(owner, DequantizeOp) and not owner.packing.floats


def written_out(split: Parts, schedule: ScheduleAttr) -> bool:
    """Whether a program of one token holds the weights of whole rows at once, all pieces of K, instead of one piece and the next.

    Up to 8 pieces of floats; of rows in runs the trip says how many. Of packed words only 2: taking them apart waits between its steps, and what the waits leave idle goes to other
    programs, if there are registers for them.
    """
    trips = -(-shape_of(split.contracts[0].x)[1] // schedule.get("k"))
    if "runs" in schedule.options.data:
        return trips == 1
    return trips <= (WORDS_UNROLLED if all(takes_words(c) for c in split.contracts) else UNROLLED)


def weight_kind(contract: Contraction) -> str:
    """How a weight is stored: `bf16`, `int8`, `int4g128` with scales for groups, `int4g128m` also with mins, `int4g32ms` where others multiply those."""
    owner = contract.weight.owner
    if not isinstance(owner, DequantizeOp):
        return element_of(contract.weight)
    group = "" if owner.groups == 1 else f"g{owner.packing.group.data}"
    return f"{owner.packing.kind.data}{group}{'' if owner.mins is None else 'm'}{'s' if owner.per_super else ''}"


def reductions_on_the_way(split: Parts, schedule: ScheduleAttr) -> list[ReduceOp]:
    """Reductions of whole rows that a loop over K adds up beside its products: those of what it reads for x anyway, where x itself needs none.

    With few tokens only: of many, a program would hold a block of partial sums as large as its tile of x. Of one, only of weights in runs: where floats
    are multiplied, a program holds x as a whole.
    """
    first = split.contracts[0]
    if schedule.skeleton.data == "gemv":
        return beside_products(split) if "runs" in schedule.options.data else []
    if schedule.get("m") > FEW_ROWS or isinstance(first, ContractPartialOp) or schedule.get("k") >= shape_of(first.x)[1]:
        return []
    return beside_products(split)


def beside_products(split: Parts) -> list[ReduceOp]:
    """Reductions of whole rows of what is read for x, where x is not computed from them."""
    x = split.contracts[0].x
    inside = set(split.prologue)
    for_x = ancestors([x], inside)
    found: list[ReduceOp] = []
    for op in split.prologue:
        if isinstance(op, ReduceOp) and op not in for_x and shape_of(op.input) == shape_of(x):
            before = ancestors([op.input], inside)
            if all(isinstance(o, (*ELEMENTWISE, GatherColumnsOp)) for o in before):
                found.append(op)
    return found

"""A contraction enters; whether it multiplies bytes by bytes, and why it cannot where it should, leaves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.ir import Operation

from lamella.dialects.attributes import element_of
from lamella.dialects.tile import Contraction, DequantizeOp, ReduceOp

WEIGHTS = {"i8": "int8", "f8": "fp8"}
"""Of each element type of quantized rows the kind of the weights that they meet."""


def of_bytes(contract: Contraction) -> bool:
    """Whether x is numbers of eight bits with a scale for each row, which are multiplied as bytes."""
    return element_of(contract.x) in WEIGHTS


def weight_reason(contract: Contraction) -> str | None:
    """Why an x of bytes does not meet its weight; None where it does, or is floats."""
    wanted, op = WEIGHTS.get(element_of(contract.x)), contract.weight.owner
    if wanted is None:
        return None
    if not isinstance(op, DequantizeOp) or op.packing.kind.data != wanted or op.groups > 1 or op.mins is not None:
        return f"x is {element_of(contract.x)}, whose products need a weight of {wanted} with one scale a row"
    return None


def products_reason(contracts: Sequence[Contraction], prologue: Sequence[Operation], inside: Collection[Operation]) -> str | None:
    """Why contractions of one x of bytes cannot be a region with what comes before them; None where they can, or x is floats."""
    if not of_bytes(contracts[0]):
        return None
    if contracts[0].x.owner in inside or any(isinstance(op, ReduceOp) for op in prologue):
        return "rows of x are quantized once, by whole rows: each program would look for their largest numbers again"
    return next(filter(None, map(weight_reason, contracts)), None)

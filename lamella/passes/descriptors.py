"""A contraction goes in; whether its tiles can be loaded through tensor descriptors (TMA), and what that costs beside pointers, leaves.

A descriptor tells the hardware where a matrix lies; a program then asks for a whole tile of it at once and computes no addresses. So x has
to lie in memory as it is multiplied: nothing is computed on its way into the product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import CastOp, ConstantOp, Contraction, ContractOp, DequantizeOp, GatherColumnsOp, MapOp, ReduceOp
from lamella.passes.byte_products import WEIGHTS, of_bytes, weight_reason
from lamella.passes.device import Device

DESCRIPTORS = "descriptors"
"""The implementation, and the option of a schedule: 1 where its tiles are loaded through descriptors, 0 where through pointers all the same."""
ELEMENTS = ("bf16", "f16")
STRIDE = 16
"""Bytes that the distance of two rows is a multiple of."""
DESCRIBED_TOKENS = 128
"""Fewer tokens are bound by the weights, which a kernel with its prologue streams as fast."""


def by_descriptors(op: Operation) -> bool:
    """Whether an op is a contraction whose tiles are to be loaded through descriptors."""
    return isinstance(op, ContractOp) and op.implementation is not None and op.implementation.data == DESCRIPTORS


def stored_weight(contract: Contraction) -> SSAValue:
    """What a contraction reads as its weight where x and weight are multiplied as they lie in memory: the weight, or the bytes it stands for."""
    owner = contract.weight.owner
    return owner.words if of_bytes(contract) and isinstance(owner, DequantizeOp) else contract.weight


def not_describable(contract: ContractOp) -> str | None:
    """Why no descriptors can be made for x and the weight of a contraction; None where they can."""
    kinds = [element_of(contract.x), element_of(contract.weight)]
    if of_bytes(contract):
        reason = weight_reason(contract)
        if reason is not None:
            return reason
    elif kinds[0] not in ELEMENTS or kinds[0] != kinds[1]:
        return f"x is {kinds[0]} and the weight {kinds[1]}: tiles of descriptors are of {' or '.join(ELEMENTS)}"
    owner = stored_weight(contract).owner
    if isinstance(owner, Operation) and owner.name != "transformer.weight":
        return "its weight is not stored as it is multiplied"
    columns = shape_of(contract.x)[1]
    if columns * ELEMENT_BYTES[kinds[0]] % STRIDE:
        return f"rows of {columns} columns do not begin at multiples of {STRIDE} bytes"
    return None


def described_reason(ops: Sequence[Operation]) -> str | None:
    """Why a region with contractions for descriptors is none that a kernel computes; None where it is one."""
    inside, contracts = set(ops), [op for op in ops if isinstance(op, ContractOp)]
    other = next((c for c in contracts if not by_descriptors(c)), None)
    if other is not None:
        return f"the tiles of {location(other) or other.name} are not loaded through descriptors, and those of its neighbours are"
    if any(isinstance(c.x.owner, Operation) and c.x.owner in inside for c in contracts):
        return "x is loaded through a descriptor, so that it has to lie in memory as it is multiplied"
    after: set[Operation] = set(contracts)
    for op in ops:
        after |= {op} if any(v.owner in after for v in op.operands) else set()
        if isinstance(op, ReduceOp) and op not in after:
            return "tiles come through descriptors, and each program would read whole rows once more to reduce them"
    return None


def describable(ops: Sequence[Operation]) -> bool:
    """Whether x and the weights of a region can be read through one descriptor each, and are read by nothing else."""
    inside, contracts = set(ops), [op for op in ops if isinstance(op, ContractOp)]
    if not contracts:
        return False
    roles = {contracts[0].x: "x", **{stored_weight(c): "weight" for c in contracts}}
    for value, role in roles.items():
        if any(
            not isinstance(op, ContractOp) or (op.x if role == "x" else stored_weight(op)) is not value for op in readers(value, inside)
        ):
            return False
    return all(by_descriptors(c) and c.x is contracts[0].x and c.x is not stored_weight(c) for c in contracts)


def readers(value: SSAValue, inside: Collection[Operation]) -> Iterator[Operation]:
    """The ops of a region that read a value; of what words stand for, those that read that."""
    for op in [use.operation for use in value.uses if use.operation in inside]:
        yield from [use.operation for use in op.result.uses] if isinstance(op, DequantizeOp) else [op]


def normed(x: SSAValue) -> bool:
    """Whether a reduction of rows stands between x and what was stored last before it: a norm, which a region of pointers computes on its way.

    Quantized rows are stored before either.
    """
    if element_of(x) in WEIGHTS:
        return False
    work, seen = [x.owner], set[Operation]()
    while work:
        op = work.pop()
        if not isinstance(op, MapOp | CastOp | ReduceOp | ConstantOp | GatherColumnsOp) or op in seen:
            continue
        if isinstance(op, ReduceOp):
            return True
        seen.add(op)
        work.extend(v.owner for v in op.operands)
    return False


@dataclass(frozen=True)
class Estimate:
    """Microseconds by the cost model: of tiles through descriptors, of a norm that has to be a launch of its own for them, of tiles through pointers."""

    described: float
    norm: float
    pointers: float

    @property
    def pays(self) -> bool:
        """Whether descriptors are faster."""
        return self.described + self.norm < self.pointers

    def __str__(self) -> str:
        norm = f" and {self.norm:.1f} us for a norm of its own" if self.norm else ""
        return f"{self.described:.1f} us of tiles through descriptors{norm}, against {self.pointers:.1f} us through pointers"


def described_estimate(contracts: Sequence[ContractOp], target: Device) -> Estimate | None:
    """What the contractions of one x, which are one launch, cost either way; None where nobody measured this device.

    A norm is a launch that reads x once more and leaves a number a row.
    """
    x = contracts[0].x
    (tokens, k), columns, element = shape_of(x), sum(shape_of(c.weight)[0] for c in contracts), element_of(x)
    described = target.tiles_us(tokens, columns, k, element, described=True)
    pointers = target.tiles_us(tokens, columns, k, element)
    if described is None or pointers is None:
        return None
    read = tokens * k * ELEMENT_BYTES[element] / target.bandwidth * 1e6
    return Estimate(described, target.launch_us + read if normed(x) else 0.0, pointers)

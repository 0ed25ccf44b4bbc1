"""A contraction enters; how it reads its weight leaves: as floats, or decoded on the way."""

from __future__ import annotations

from lamella.dialects.tile import Contraction, DequantizeOp
from lamella.lowering.tile_to_kernel.byte_weight import ByteWeight
from lamella.lowering.tile_to_kernel.decode import PackedWeight
from lamella.lowering.tile_to_kernel.decode_float8 import FloatWeight
from lamella.lowering.tile_to_kernel.digits import DigitWeight
from lamella.lowering.tile_to_kernel.emitter import Emitter
from lamella.lowering.tile_to_kernel.runs import RunWeight
from lamella.lowering.tile_to_kernel.weight import PlainWeight, Weight
from lamella.passes.byte_products import of_bytes


def weight_of(e: Emitter, contract: Contraction, *, digits: bool = False, runs: bool = False) -> Weight:
    """How a contraction reads its weight; `digits` says that x is multiplied digit by digit, `runs` that rows are cut into runs."""
    owner = contract.weight.owner
    if not isinstance(owner, DequantizeOp):
        return PlainWeight(e, contract)
    if runs:
        return RunWeight(e, contract, owner)
    if owner.packing.floats:
        return FloatWeight(e, contract, owner)
    if of_bytes(contract):
        return ByteWeight(e, contract, owner)
    return (DigitWeight if digits else PackedWeight)(e, contract, owner)

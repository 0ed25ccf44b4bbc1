"""A contraction goes in; what a library of matrix products does of the ops around it, and what that costs beside tiles, leaves.

The library computes x @ wᵀ in float32, adds a residual or a bias to the sums if there is one, and rounds once: `call_of` finds these ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import CastOp, ContractOp, FusedOp, MapOp, ScheduleAttr, YieldOp
from lamella.passes.device import Device

LIBRARY = "library"
"""The implementation, and the skeleton of a region that has one such contraction."""
ELEMENTS = ("bf16", "f16")
"""What the library multiplies. Float32 it would either round to fewer bits (TF32) or compute no faster than we do."""
MIN_TOKENS = 512
"""Fewer tokens are bound by the weights, which a kernel with prologue and epilogue streams as fast: no launch of a library pays."""


@dataclass(frozen=True)
class LibraryCall:
    """One call: the contraction, the `residual` [M,O] or `bias` [O] that is added to the sums, and the value it leaves, of x's type."""

    contract: ContractOp
    ops: tuple[Operation, ...]
    result: SSAValue
    residual: SSAValue | None = None
    bias: SSAValue | None = None


@dataclass(frozen=True)
class Estimate:
    """Microseconds by the cost model: of the library, of a launch that stores what another has to read, and of a kernel of tiles."""

    library: float
    kept: float
    tiles: float

    @property
    def pays(self) -> bool:
        """Whether the library is faster."""
        return self.library + self.kept < self.tiles

    def __str__(self) -> str:
        own = f"{self.library:.1f} us by the library and {self.kept:.1f} us for a launch of its own"
        return f"{own}, against {self.tiles:.1f} us of tiles"


def in_library(op: Operation) -> bool:
    """Whether an op is a contraction that was given to the library."""
    return isinstance(op, ContractOp) and op.implementation is not None and op.implementation.data == LIBRARY


def only_user(value: SSAValue) -> Operation | None:
    """The op that uses a value, where there is one, and it uses it once."""
    uses = list(value.uses)
    return uses[0].operation if len(uses) == 1 else None


def call_of(contract: ContractOp) -> LibraryCall | str:
    """What the library does around a contraction, or why it can do nothing: its result, with or without an addend, has to be rounded to x's type."""
    element = element_of(contract.x)
    user = only_user(contract.result)
    if isinstance(user, CastOp) and element_of(user.result) == element:
        return LibraryCall(contract, (contract, user), user.result)
    if not isinstance(user, MapOp) or user.kind.data != "add" or len(user.inputs) != 2:
        return "what follows the product is neither a sum nor a rounding to the type of x"
    (other,) = [v for v in user.inputs if v is not contract.result]
    rounded = only_user(user.result)
    wide = other.owner
    if not isinstance(rounded, CastOp) or element_of(rounded.result) != element:
        return "the sum is not rounded to the type of x"
    if not isinstance(wide, CastOp) or element_of(wide.input) != element or only_user(wide.result) is not user:
        return "what is added to the product is not stored in the type of x"
    ops = (contract, wide, user, rounded)
    tokens, columns = shape_of(contract.result)
    if shape_of(wide.input) == (tokens, columns):
        return LibraryCall(contract, ops, rounded.result, residual=wide.input)
    if shape_of(wide.input) == (columns,):
        return LibraryCall(contract, ops, rounded.result, bias=wide.input)
    return "what is added to the product is neither a residual nor a bias"


def region_reason(ops: Sequence[Operation]) -> str | None:
    """Why a region that has a contraction of the library cannot be one call of it; None where it is one."""
    contracts = [op for op in ops if isinstance(op, ContractOp)]
    if len(contracts) > 1:
        return "it computes one product a launch"
    call = call_of(contracts[0])
    if isinstance(call, str):
        return call
    more = [op for op in ops if op not in call.ops]
    if more:
        telling = next((op for op in more if location(op) and not isinstance(op, CastOp)), more[0])
        return f"it computes the product and what it adds, and no {location(telling) or telling.name}"
    missing = next((op for op in call.ops if op not in ops), None)
    return None if missing is None else f"{missing.name} belongs to its call"


def library_call(fused: FusedOp) -> LibraryCall | None:
    """The call that a region is; None for one that a kernel of ours runs."""
    if fused.schedule is None or fused.schedule.skeleton.data != LIBRARY:
        return None
    ops = [op for op in fused.body.block.ops if not isinstance(op, YieldOp)]
    call = next((call_of(op) for op in ops if isinstance(op, ContractOp)), None)
    return call if isinstance(call, LibraryCall) and set(ops) == set(call.ops) else None


def library_schedule() -> ScheduleAttr:
    """The library chooses its own parameters."""
    return ScheduleAttr.of(LIBRARY)


def estimate(calls: Sequence[LibraryCall], target: Device, *, adds_residual: Sequence[bool], described: bool = False) -> Estimate | None:
    """What calls for the contractions of one x cost, and what tiles would, in one launch; None where nobody measured this device.

    `described`: the tiles would be loaded through descriptors. A kernel of ours takes up what follows, so that the library's result is stored
    and read once more, in a launch of its own; a residual that the library adds is what an epilogue would have added.
    """
    (tokens, k), element = shape_of(calls[0].contract.x), element_of(calls[0].contract.x)
    library, stored, widths = 0.0, 0.0, [shape_of(call.contract.weight)[0] for call in calls]
    for columns, added in zip(widths, adds_residual, strict=True):
        product = target.library_us(tokens, columns, k, element)
        if product is None:
            return None
        library += product
        stored += target.launch_us + (0.0 if added else 2 * tokens * columns * ELEMENT_BYTES[element] / target.bandwidth * 1e6)
    tiles = target.tiles_us(tokens, sum(widths), k, element, described=described)
    return None if tiles is None else Estimate(library, stored, tiles)

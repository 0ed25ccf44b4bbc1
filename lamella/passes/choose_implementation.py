"""Who computes which contractions of many tokens, a library or tiles of descriptors: decided before anything is fused to them, and written on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import signature
from lamella.dialects.attributes import element_of, element_type_of, python_value, shape_of
from lamella.dialects.messages import location, subject
from lamella.dialects.tile import CastOp, ContractOp, MapOp
from lamella.errors import PassError, nearest
from lamella.passes.descriptors import DESCRIBED_TOKENS, DESCRIPTORS, described_estimate, not_describable
from lamella.passes.device import Device, device
from lamella.passes.library import ELEMENTS, LIBRARY, MIN_TOKENS, LibraryCall, call_of, estimate, only_user

MODES = ("auto", "off", "on")
THRESHOLD = "lamella.library"
"""Attribute of a function of which the library computes something: the fewest tokens that it was allowed, which `check-plan` holds it to."""


@dataclass(frozen=True)
class ChooseImplementation(ModulePass):
    """Marks the contractions of many tokens whose tiles are loaded through tensor descriptors, and those that a library (cuBLAS) computes.

    Before:
        %c = tile.contract %x, %w {loc = "layers.0.attn.o"} : tensor<2048x4096xbf16>, tensor<4096x4096xbf16> -> tensor<2048x4096xf32>
        %o = tile.cast %c : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
        %of = tile.cast %o : … ; %rf = tile.cast %r : … ; %s = tile.map "add"(%of, %rf) : …
        %y = tile.cast %s : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
    After:
        %c = tile.contract %x, %w {implementation = "descriptors", …} : …
    With `library=on` instead; the residual is added to the sums, which are rounded once instead of twice, as the record says
        %c = tile.contract %x, %w {implementation = "library", …} : …
        %rf = tile.cast %r : … ; %s = tile.map "add"(%c, %rf) : …
        %y = tile.cast %s : …

    With many tokens a product is bound by arithmetic. Tiles that the hardware fetches by a descriptor leave the program free to multiply, but x
    has to lie in memory as it is multiplied: `fuse-regions` then leaves norms to row regions, and of a norm that became a scale of rows
    (`commute-row-scale`) only that scale. The library is as fast, but computes neither what comes before nor what comes after:
    `fuse-regions` leaves a contraction of its alone with its rounding and its addend, and norms, rotations and activations become row regions.

    `descriptors=auto` and `library=auto` ask the cost model, which needs measured rates of the target (`passes/device.py`); contractions of one x
    are one launch, and compared as one: descriptors are for all of them or none. `on` takes what can be taken, the library first; `off` takes none. Never for
    fewer than `descriptor-tokens` or `library-tokens` rows of x, nor in a decode step: those are bound by the weights. Only bfloat16 and
    float16 x and weights as the checkpoint has them: not packed, not of experts; descriptors want rows of multiples of 16 bytes, and take bytes times
    bytes too, int8 or float8 on both sides, at twice the rates of bfloat16, for nobody measured those.

    Expects static tile ops before `commute-row-scale`, which leaves the x of a contraction of the library normed and rounded. The function
    records the threshold of the library in `lamella.library`; where nothing was marked, `lamella.idle` says what came nearest.
    """

    name = "choose-implementation"

    arch: str = "sm_90"
    library: str = "auto"
    library_tokens: int = MIN_TOKENS
    descriptors: str = "auto"
    descriptor_tokens: int = DESCRIBED_TOKENS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for name, mode in (("library", self.library), ("descriptors", self.descriptors)):
            if mode not in MODES:
                raise PassError("unknown mode", where=name, expected=", ".join(MODES), got=mode, remedy=nearest(mode, MODES))
        target = device(self.arch)
        off = self.library == self.descriptors == "off"
        for function in signature.steps(op) if not off else ():
            self.mark(function, target)

    def mark(self, function: func.FuncOp, target: Device) -> None:
        """Marks the contractions of one function, and records what changed or why nothing did."""
        if decodes(function):
            return
        by_x: dict[SSAValue, list[ContractOp]] = {}
        for op in function.body.block.ops:
            if isinstance(op, ContractOp):
                by_x.setdefault(op.x, []).append(op)
        records: list[dict[str, str]] = []
        misses: list[str] = []
        for contracts in by_x.values():
            refused = self.undescribed(contracts, target)
            taken = self.for_library(contracts, target, refused is None, misses)
            for contract in contracts:
                if contract in taken:
                    give_to_library(contract, records)
                elif refused is None:
                    contract.implementation = StringAttr(DESCRIPTORS)
            if refused:
                misses.append(f"{subject(contracts[0])}: {refused}")
        if records:
            signature.record(function, records)
        marked = {op.implementation.data for op in function.body.block.ops if isinstance(op, ContractOp) and op.implementation}
        if LIBRARY in marked:
            function.attributes[THRESHOLD] = DictionaryAttr({"tokens": IntegerAttr(self.library_tokens, i64)})
        if not marked and misses:
            signature.note_idle(function, [{"pass": self.name, "reason": f"nearest: {misses[0]}"}])

    def undescribed(self, contracts: Sequence[ContractOp], target: Device) -> str | None:
        """Why the tiles of the contractions of one x are not loaded through descriptors (empty: that is not asked for); None where they are."""
        if self.descriptors == "off" or shape_of(contracts[0].x)[0] < self.descriptor_tokens:
            return ""
        reason = next(filter(None, map(not_describable, contracts)), None)
        if reason is not None or self.descriptors == "on":
            return reason
        cost = described_estimate(contracts, target)
        if cost is None:
            return f"nobody measured tiles of descriptors on {target.arch}"
        return None if cost.pays else f"slower: {cost}"

    def for_library(self, contracts: Sequence[ContractOp], target: Device, described: bool, misses: list[str]) -> list[ContractOp]:
        """Those of the contractions of one x that the library computes; why it does not compute others is added to `misses`.

        `described`: their tiles could be loaded through descriptors.
        """
        if self.library == "off" or shape_of(contracts[0].x)[0] < self.library_tokens:
            return []
        calls: dict[ContractOp, LibraryCall] = {}
        for contract in contracts:
            call = library_takes(contract)
            if isinstance(call, str):
                misses.append(f"{subject(contract)}: {call}")
            else:
                calls[contract] = call
        if not calls or self.library == "on":
            return list(calls)
        added = [residual_of(contract) is not None or call.residual is not None for contract, call in calls.items()]
        cost = estimate(list(calls.values()), target, adds_residual=added, described=described)
        if cost is None or not cost.pays:
            why = f"nobody measured a library on {target.arch}" if cost is None else f"slower: {cost}"
            misses.append(f"{subject(next(iter(calls)))}: {why}")
            return []
        return list(calls)


def library_takes(contract: ContractOp) -> LibraryCall | str:
    """The call of the library that computes a contraction, or why there is none."""
    kinds = [element_of(contract.x), element_of(contract.weight)]
    if kinds[0] not in ELEMENTS or kinds[0] != kinds[1]:
        return f"x is {kinds[0]} and the weight {kinds[1]}: the library takes {' or '.join(ELEMENTS)} of both"
    if isinstance(contract.weight.owner, Operation) and contract.weight.owner.name != "transformer.weight":
        return "its weight is not stored as it is multiplied"
    return call_of(contract)


def give_to_library(contract: ContractOp, records: list[dict[str, str]]) -> None:
    """Marks a contraction for the library, which adds the residual that follows; `records` get what that changes."""
    residual = residual_of(contract)
    if residual is not None:
        absorb(contract, residual)
        why = "the library adds the residual to the sums; the rounding of the product is dropped"
        records.append({"verdict": "folded", "kind": "residual", "what": location(contract) or contract.name, "reason": why})
    own_addend(contract)
    contract.implementation = StringAttr(LIBRARY)


def decodes(function: func.FuncOp) -> bool:
    """Whether a step of the function is a decode step, which feeds the next one."""
    bucket = function.attributes.get("lamella.bucket")
    return isinstance(bucket, DictionaryAttr) and "advance" in bucket.data and bool(python_value(bucket.data["advance"]))


@dataclass(frozen=True)
class Residual:
    """A rounded product and the residual that is added to it: `cast`, `cast`, `add`, whose sum is rounded again."""

    ops: tuple[CastOp, CastOp, MapOp]
    value: SSAValue
    """The residual in f32."""


def residual_of(contract: ContractOp) -> Residual | None:
    """The residual that follows a rounded product, which nothing else reads."""
    rounded = only_user(contract.result)
    wide = only_user(rounded.result) if isinstance(rounded, CastOp) else None
    added = only_user(wide.result) if isinstance(wide, CastOp) and element_of(wide.result) == "f32" else None
    if not isinstance(rounded, CastOp) or not isinstance(wide, CastOp) or not isinstance(added, MapOp) or added.kind.data != "add":
        return None
    (value,) = [v for v in added.inputs if v is not wide.result]
    last, element = only_user(added.result), element_of(rounded.result)
    if not is_widened(value, element, shape_of(contract.result)) or not isinstance(last, CastOp) or element_of(last.result) != element:
        return None
    return Residual((rounded, wide, added), value)


def absorb(contract: ContractOp, residual: Residual) -> None:
    """Adds the residual to the product itself, before it is rounded."""
    *_, added = residual.ops
    block = contract.parent_block()
    assert block is not None
    total = MapOp("add", [contract.result, residual.value], loc=location(added) or None)
    block.insert_op_before(total, added)
    added.result.replace_all_uses_with(total.result)
    for op in reversed(residual.ops):
        op.detach()
        op.erase()


def is_widened(value: SSAValue, element: str, shape: tuple[int, ...]) -> bool:
    """Whether a value is a stored one of this element type and shape, cast to f32."""
    return isinstance(value.owner, CastOp) and element_of(value.owner.input) == element and shape_of(value) == shape


def own_addend(contract: ContractOp) -> None:
    """Gives the sum that follows a contraction a widening cast of its own, so that nothing else reads what belongs to the call."""
    added = only_user(contract.result)
    if not isinstance(added, MapOp):
        return
    (other,) = [v for v in added.inputs if v is not contract.result]
    if not isinstance(other.owner, CastOp) or only_user(other) is added:
        return
    block = added.parent_block()
    assert block is not None
    copy = CastOp(other.owner.input, element_type_of(other), loc=location(other.owner) or None)
    block.insert_op_before(copy, added)
    for index, value in enumerate(added.operands):
        if value is other:
            added.operands[index] = copy.result

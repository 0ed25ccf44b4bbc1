"""A row scale before a contraction moves behind it: what is left of a norm is one number a row, and x enters the product as stored."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.signature import record
from lamella.dialects.tile import CastOp, ContractOp, MapOp
from lamella.passes.library import in_library


@dataclass(frozen=True)
class CommuteRowScale(ModulePass):
    """(x · s) @ wᵀ = (x @ wᵀ) · s for a scale s of one number a row; the rounding of x · s is dropped, which the record says.

    Before:
        %n = tile.map "mul"(%xf, %s) : tensor<1x8xf32>, tensor<1x1xf32> -> tensor<1x8xf32>
        %x16 = tile.cast %n : tensor<1x8xf32> -> tensor<1x8xbf16>
        %y = tile.contract %x16, %w : …
    After, where %xf is %x cast to f32:
        %c = tile.contract %x, %w : …
        %y = tile.map "mul"(%c, %s) : tensor<1x4xf32>, tensor<1x1xf32> -> tensor<1x4xf32>

    Only the truncation is dropped: products are of stored values and sums in float32, so the result is nearer to the exact one. Done where
    every user of the scaled value is a contraction of ours; else the value has to exist anyway, and the near miss is recorded. An RMS norm whose
    weight was folded (`fold-norm-scale`) takes this form; one that still multiplies by its weight, or subtracts a mean, does not.
    """

    name = "commute-row-scale"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                commute(function)


def commute(function: func.FuncOp) -> None:
    """Rewrites every value that qualifies, and records those and the near misses."""
    records: list[dict[str, str]] = []
    for op in list(function.body.block.ops):
        found = scaled(op)
        if found is None:
            continue
        x, scale = found
        users = [use.operation for use in op.results[0].uses]
        if not any(isinstance(user, ContractOp) for user in users):
            continue
        what = location(op) or op.name
        if not all(isinstance(user, ContractOp) and use_is_x(user, op.results[0]) for user in users):
            reason = "the scaled value is used outside contractions too, so it is stored and rounded anyway"
            records.append({"verdict": "refused", "kind": "row-scale", "what": what, "reason": reason})
            continue
        if any(in_library(user) for user in users):
            reason = "a library computes a product of it, and scales no rows: the scaled value is stored and rounded"
            records.append({"verdict": "refused", "kind": "row-scale", "what": what, "reason": reason})
            continue
        for user in users:
            assert isinstance(user, ContractOp)
            move_behind(function, user, x, scale)
        erase_dead(op)
        reason = "one number a row commutes with the sum; the rounding of the scaled value is dropped"
        records.append({"verdict": "folded", "kind": "row-scale", "what": what, "reason": reason})
    if records:
        record(function, records)


def erase_dead(op: Operation) -> None:
    """Erases `op` and what only it used."""
    if any(list(result.uses) for result in op.results):
        return
    feeding = [v.owner for v in op.operands]
    op.detach()
    op.erase()
    for owner in dict.fromkeys(feeding):
        if isinstance(owner, MapOp | CastOp) and owner.parent is not None:
            erase_dead(owner)


def scaled(op: Operation) -> tuple[SSAValue, SSAValue] | None:
    """(x, s) where `op` computes x · s, rounded to the type x is stored in, and s is one number a row."""
    product = op.input.owner if isinstance(op, CastOp) else op
    if not isinstance(product, MapOp) or product.kind.data != "mul" or (op is not product and len(list(product.result.uses)) > 1):
        return None
    shape, element = shape_of(product.result), element_type_of(op.results[0])
    if len(shape) != 2 or shape[1] == 1:
        return None
    for x, scale in (product.inputs, reversed(product.inputs)):
        if shape_of(scale) != (shape[0], 1) or shape_of(x) != shape:
            continue
        stored = x.owner.input if isinstance(x.owner, CastOp) else x
        if element_type_of(stored) == element:
            return stored, scale
    return None


def use_is_x(contract: ContractOp, value: SSAValue) -> bool:
    """Whether a contraction takes `value` as its rows and not as its weight."""
    return contract.x is value and contract.weight is not value


def move_behind(function: func.FuncOp, contract: ContractOp, x: SSAValue, scale: SSAValue) -> None:
    """Replaces (x · s) @ wᵀ by (x @ wᵀ) · s."""
    loc = location(contract) or None
    product = ContractOp(x, contract.weight, loc=loc)
    product.implementation = contract.implementation
    result = MapOp("mul", [product.result, scale], loc=loc)
    result.result.name_hint = contract.result.name_hint
    block = function.body.block
    block.insert_ops_before([product, result], contract)
    contract.result.replace_all_uses_with(result.result)
    contract.detach()
    contract.erase()

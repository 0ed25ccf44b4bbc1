"""A row scale before a contraction moves behind it: what is left of a norm is one number a row, and x enters the product as stored."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import BFloat16Type, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.signature import record
from lamella.dialects.tile import CastOp, ContractOp, MapOp
from lamella.passes.library import in_library
from lamella.passes.packed_columns import in_runs

MOVED = "one number a row commutes with the sum; the rounding of the scaled value is dropped"
MOVED_FROM_COLUMNS = "one number a row commutes with the sum; x is multiplied by its columns' numbers and rounded once, where it is made"


@dataclass(frozen=True)
class Scaled:
    """A value x · s, or x · s · g: one number a row, and perhaps one a column."""

    x: SSAValue
    scale: SSAValue
    """s, [N,1]."""
    columns: SSAValue | None = None
    """g, [K]."""


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
    weight was folded (`fold-norm-scale`) takes this form; one that subtracts a mean does not.

    With `columns=true` one that still multiplies by its weight g does too, where one token is multiplied by packed weights in runs:
    (x · s · g) @ wᵀ = ((x · g) @ wᵀ) · s. Whatever makes x then makes x · g beside it, in bfloat16, whose range holds it. Not in float16, whose does not.
    """

    name = "commute-row-scale"

    columns: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                commute(function, columns=self.columns)


def commute(function: func.FuncOp, *, columns: bool = False) -> None:
    """Rewrites every value that qualifies, and records those and the near misses. `columns`: also what is multiplied by one number a column."""
    records: list[dict[str, str]] = []
    for op in list(function.body.block.ops):
        found = scaled(op) or (scaled_columns(op) if columns else None)
        if found is None:
            continue
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
        contracts = [user for user in users if isinstance(user, ContractOp)]
        x, reason = found.x, MOVED
        if found.columns is not None:
            if shape_of(x)[0] != 1 or not in_runs(contracts):
                reason = "only one token times packed weights in runs adds up the squares of a row that is not its x"
                records.append({"verdict": "refused", "kind": "row-scale", "what": what, "reason": reason})
                continue
            assert isinstance(op, CastOp)
            x, reason = with_columns(function, op, found.x, found.columns), MOVED_FROM_COLUMNS
        for contract in contracts:
            move_behind(function, contract, x, found.scale)
        erase_dead(op)
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


def scaled(op: Operation) -> Scaled | None:
    """x and s where `op` computes x · s, rounded to the type x is stored in, and s is one number a row."""
    product = op.input.owner if isinstance(op, CastOp) else op
    if not isinstance(product, MapOp) or (op is not product and len(list(product.result.uses)) > 1):
        return None
    found = row_factors(product)
    if found is None:
        return None
    x = found.x.owner.input if isinstance(found.x.owner, CastOp) else found.x
    return Scaled(x, found.scale) if element_type_of(x) == element_type_of(op.results[0]) else None


def scaled_columns(op: Operation) -> Scaled | None:
    """x in float32, s and g where `op` computes x · s · g in bfloat16: s is one number a row, g one a column, and x · s may be rounded in between."""
    if not isinstance(op, CastOp) or not isinstance(element_type_of(op.result), BFloat16Type):
        return None
    product = op.input.owner
    if not isinstance(product, MapOp) or product.kind.data != "mul":
        return None
    for normed, columns in (product.inputs, reversed(product.inputs)):
        inner = unrounded(normed).owner
        if shape_of(columns) == shape_of(normed)[1:] and isinstance(inner, MapOp):
            found = row_factors(inner)
            if found is not None:
                return Scaled(found.x, found.scale, columns)
    return None


def row_factors(product: MapOp) -> Scaled | None:
    """x and s of a product x · s in float32, s one number a row of several."""
    shape = shape_of(product.result)
    if product.kind.data != "mul" or len(shape) != 2 or shape[1] == 1:
        return None
    for x, scale in (product.inputs, reversed(product.inputs)):
        if shape_of(scale) == (shape[0], 1) and shape_of(x) == shape:
            return Scaled(x, scale)
    return None


def unrounded(value: SSAValue) -> SSAValue:
    """`value` before it was rounded to fewer bits and widened again, if it was."""
    rounded = value.owner.input.owner if isinstance(value.owner, CastOp) else None
    return rounded.input if isinstance(rounded, CastOp) and element_type_of(rounded.input) == element_type_of(value) else value


def with_columns(function: func.FuncOp, op: CastOp, x: SSAValue, columns: SSAValue) -> SSAValue:
    """x · g, rounded to the type that `op` rounds to."""
    product = MapOp("mul", [x, columns], loc=location(op) or None)
    rounded = CastOp(product.result, element_type_of(op.result), loc=location(op) or None)
    rounded.result.name_hint = "scaled"
    function.body.block.insert_ops_before([product, rounded], op)
    return rounded.result


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

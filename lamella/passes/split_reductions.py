"""A sum of squares that scales products of whole rows goes in; sums of the columns that a program of the product before has leave, and the sum of those."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import signature
from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import AddColumnsOp, CastOp, ContractOp, MapOp, ReduceOp
from lamella.passes.choose_schedule import schedule_for
from lamella.passes.device import Device, device
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.library import only_user
from lamella.passes.packed_columns import decoder, in_runs

DIVIDED = "each program of the product before adds up the columns that it makes, and the products behind add up those sums"


@dataclass(frozen=True)
class SplitReductions(ModulePass):
    """Splits sums of whole rows whose columns a product of one token makes, for products behind it.

    Before, where %h is made of a product by packed weights, whose programs have two of its columns each, and %s scales such products (`commute-row-scale`):
        %q = tile.map "square"(%h) : tensor<1x8xf32> -> tensor<1x8xf32>
        %r = tile.reduce "sum" %q : tensor<1x8xf32> -> tensor<1x1xf32>
        %s = tile.map "rsqrt"(%r) : … ; %y = tile.map "mul"(%c, %s) : …
    After:
        %q = tile.map "square"(%h) : tensor<1x8xf32> -> tensor<1x8xf32>
        %p = tile.add_columns %q by 2 : tensor<1x8xf32> -> tensor<1x4xf32>
        %r = tile.reduce "sum" %p : tensor<1x4xf32> -> tensor<1x1xf32>
        %s = tile.map "rsqrt"(%r) : … ; %y = tile.map "mul"(%c, %s) : …

    No program has a whole row of its product, so that a norm behind it is a launch of its own, or each program of the next product squares the whole row again. The columns that a
    program makes it can square and add up at once, and fewer numbers are left to add up where they are needed: a half in int8, a quarter in int4, a 64th where rows of a weight are tiles of digits. linalg calls this a split reduction.

    Off unless `on=true`. Expects static tile ops after `commute-row-scale` and before `fuse-regions`, which leaves the two sums in two launches.
    """

    name = "split-reductions"

    arch: str = "sm_90"
    on: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not self.on:
            return
        target = device(self.arch)
        for function in signature.steps(op):
            split(function, target)


def split(function: func.FuncOp, target: Device) -> None:
    """Splits the sums of a function that qualify, and records them."""
    records: list[dict[str, str]] = []
    for op in list(function.body.block.ops):
        if not isinstance(op, ReduceOp) or op.kind.data != "sum":
            continue
        made_by = last_product(function, op.input)
        if made_by is None or not scales_products(op.result, made_by):
            continue
        columns = columns_of_a_program(made_by, target)
        if columns > 1 and shape_of(op.input)[1] % columns == 0:
            sums = AddColumnsOp(op.input, columns, loc=location(op) or None)
            sums.result.name_hint = "column_sums"
            function.body.block.insert_op_before(sums, op)
            op.operands[0] = sums.result
            records.append({"verdict": "divided", "kind": "reduction", "what": location(op) or op.name, "reason": DIVIDED})
    if records:
        signature.record(function, records)


def last_product(function: func.FuncOp, value: SSAValue) -> ContractOp | None:
    """The last product of one token from which a row is computed number by number."""
    found: list[ContractOp] = []
    seen: set[Operation] = set()
    work = [value]
    while work:
        op = work.pop().owner
        if isinstance(op, ContractOp) and shape_of(op.result) == shape_of(value):
            found.append(op)
        elif isinstance(op, MapOp | CastOp) and op not in seen and shape_of(op.results[0]) == shape_of(value):
            work += op.operands
        if isinstance(op, Operation):
            seen.add(op)
    if any(shape_of(op.x)[0] != 1 for op in found):
        return None
    return next((op for op in reversed(list(function.body.block.ops)) if isinstance(op, ContractOp) and op in found), None)


def columns_of_a_program(contract: ContractOp, target: Device) -> int:
    """Columns of its result that a program of a product by packed weights makes, if it has its x for itself; else 1."""
    weight = decoder(contract)
    answer = feasible_schedules([weight, contract]) if weight is not None and only_user(contract.x) is contract else None
    if weight is None or not answer:
        return 1
    skeleton = answer.skeletons[0]
    return schedule_for(skeleton, [weight, contract], 1, target).get("rows" if skeleton == "gemv" else "n")


def scales_products(value: SSAValue, made_by: ContractOp) -> bool:
    """Whether a number a row is used for nothing but to scale products of one token by packed weights in runs, others than the one that it is `made_by`."""
    work, products = [value], 0
    while work:
        for use in work.pop().uses:
            user = use.operation
            if not isinstance(user, MapOp):
                return False
            if shape_of(user.result) == shape_of(value):
                work.append(user.result)
                continue
            others = [v.owner for v in user.inputs if v is not user.inputs[use.index]]
            if user.kind.data != "mul" or not all(isinstance(o, ContractOp) and in_runs([o]) and o is not made_by for o in others):
                return False
            products += len(others)
    return products > 0

"""Mixtures of experts on tiles: the choice of a router, and contractions whose weight rows an index chooses."""

from __future__ import annotations

from typing import TypeAlias

from xdsl.dialects.builtin import AnyFloatConstr, Float32Type, IntegerAttr, StringAttr, TensorType, f32, i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_attr_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import element_of, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile.structured import ContractOp, ContractPartialOp, loc_attribute


@irdl_op_definition
class RouteOp(IRDLOperation):
    """The k = `top_k` likeliest of E experts of each token: logits[N,E] give weights[N,k] f32 and chosen[N,k] i32, likeliest first.

    Probabilities are a softmax in float32; of equals the first counts as likelier. If `normalized` the k weights are divided by their sum.
    """

    name = "tile.route"

    logits = operand_def(TensorType.constr(AnyFloatConstr))
    top_k = prop_def(IntegerAttr)
    normalized = prop_def(IntegerAttr)
    weights = result_def(TensorType.constr(Float32Type()))
    chosen = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$logits `top` $top_k `normalized` $normalized attr-dict `:` type($logits) `->` type($weights) `,` type($chosen)"

    def __init__(self, logits: SSAValue, *, top_k: int, normalized: bool, loc: str | None = None) -> None:
        shape = [shape_of(logits)[0], top_k]
        super().__init__(
            operands=[logits],
            properties={"top_k": IntegerAttr(top_k, i64), "normalized": IntegerAttr(int(normalized), i1)},
            result_types=[TensorType(f32, shape), TensorType(i32, shape)],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        shape, top_k = shape_of(self.logits), self.top_k.value.data
        if len(shape) != 2 or not 1 <= top_k <= shape[1]:
            raise VerifyException(f"{subject(self)}: logits have shape {shape}, expected a matrix with at least top_k = {top_k} columns")
        for what in ("weights", "chosen"):
            got = shape_of(getattr(self, what))
            if got != (shape[0], top_k):
                raise VerifyException(f"{subject(self)}: {what} has shape {got}, expected {(shape[0], top_k)}")


@irdl_op_definition
class SortChoicesOp(IRDLOperation):
    """chosen[N,k] i32 -> [N·k] i32: the numbers of the choices (row by row), sorted by the expert they name, those of one expert in order."""

    name = "tile.sort_choices"

    chosen = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$chosen attr-dict `:` type($chosen) `->` type($result)"

    def __init__(self, chosen: SSAValue, *, loc: str | None = None) -> None:
        tokens, choices = shape_of(chosen)
        super().__init__(operands=[chosen], result_types=[TensorType(i32, [tokens * choices])], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        chosen = shape_of(self.chosen)
        if len(chosen) != 2 or element_of(self.chosen) != "i32":
            raise VerifyException(f"{subject(self)}: chosen has type {self.chosen.type}, expected a matrix of i32")
        if shape_of(self.result) != (chosen[0] * chosen[1],) or element_of(self.result) != "i32":
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {chosen[0] * chosen[1]} numbers of i32")


@irdl_op_definition
class ContractExpertsOp(IRDLOperation):
    """Row r of x[M,K] repeated for each choice, times rows chosen[r]·O … of w[E·O,K] transposed, in float32: [N·k,O].

    chosen[N,k] is read in order; M divides N·k, and row r of the result multiplies row r // (N·k / M) of x. With an `order` of the choices,
    which changes no number, programs take those of one expert together (`tile.sort_choices`). A w in f32 may meet any x: `dequantize` makes it.
    """

    name = "tile.contract_experts"

    x = operand_def(TensorType.constr(AnyFloatConstr))
    weight = operand_def(TensorType.constr(AnyFloatConstr))
    chosen = operand_def(TensorType)
    order = opt_operand_def(TensorType)
    experts = prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = (
        "$x `,` $weight `by` $chosen (`in` $order^)? `of` $experts attr-dict "
        "`:` type($x) `,` type($weight) `,` type($chosen) (`,` type($order)^)? `->` type($result)"
    )

    def __init__(
        self, x: SSAValue, weight: SSAValue, chosen: SSAValue, order: SSAValue | None = None, *, experts: int, loc: str | None = None
    ) -> None:
        tokens, choices = shape_of(chosen)
        super().__init__(
            operands=[x, weight, chosen, [] if order is None else [order]],
            properties={"experts": IntegerAttr(experts, i64)},
            result_types=[TensorType(f32, [tokens * choices, shape_of(weight)[0] // experts])],
            attributes=loc_attribute(loc),
        )

    @property
    def share(self) -> int:
        """Rows of the result that multiply one row of x."""
        return shape_of(self.result)[0] // shape_of(self.x)[0]

    def verify_(self) -> None:
        x, weight, chosen, experts = shape_of(self.x), shape_of(self.weight), shape_of(self.chosen), self.experts.value.data
        if len(x) != 2 or len(weight) != 2 or len(chosen) != 2:
            raise VerifyException(f"{subject(self)}: operands have shapes {x}, {weight} and {chosen}, expected three matrices")
        if x[1] != weight[1]:
            raise VerifyException(f"{subject(self)}: weight has shape {weight}, expected (_, {x[1]}), the last axis of x")
        if experts < 1 or weight[0] % experts:
            raise VerifyException(f"{subject(self)}: weight has shape {weight}, expected rows in {experts} equal parts, one an expert")
        rows = chosen[0] * chosen[1]
        if rows % x[0]:
            raise VerifyException(f"{subject(self)}: x has shape {x}, expected a number of rows that divides {rows}, the choices")
        if element_of(self.chosen) != "i32":
            raise VerifyException(f"{subject(self)}: chosen has element type {element_of(self.chosen)}, expected i32")
        if element_of(self.weight) not in ("f32", element_of(self.x)):
            raise VerifyException(
                f"{subject(self)}: weight has element type {element_of(self.weight)}, expected {element_of(self.x)}, that of x, or f32"
            )
        if self.order is not None and (shape_of(self.order) != (rows,) or element_of(self.order) != "i32"):
            raise VerifyException(f"{subject(self)}: order has type {self.order.type}, expected {rows} numbers of i32")
        if shape_of(self.result) != (rows, weight[0] // experts):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {(rows, weight[0] // experts)}")


Contraction: TypeAlias = "ContractOp | ContractPartialOp | ContractExpertsOp"
"""What multiplies by rows of a weight, packed or not."""


@irdl_op_definition
class AddRowsOp(IRDLOperation):
    """Each `rows` neighbouring rows of x[N·rows,W], widened and added in order: [N,W] f32. The choices of a token become one row."""

    name = "tile.add_rows"

    x = operand_def(TensorType.constr(AnyFloatConstr))
    rows = prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$x `by` $rows attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: SSAValue, rows: int, *, loc: str | None = None) -> None:
        count, width = shape_of(x)
        super().__init__(
            operands=[x],
            properties={"rows": IntegerAttr(rows, i64)},
            result_types=[TensorType(f32, [count // rows, width])],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        shape, rows = shape_of(self.x), self.rows.value.data
        if len(shape) != 2 or rows < 1 or shape[0] % rows:
            raise VerifyException(f"{subject(self)}: x has shape {shape}, expected a matrix with a multiple of {rows} rows")
        if shape_of(self.result) != (shape[0] // rows, shape[1]):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {(shape[0] // rows, shape[1])}")

"""A router's choice, and the experts it chooses: a row for each choice of a token, whose weights an index finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import attributes_of, element_type_of, shape_of
from lamella.dialects.tile import AddRowsOp, ContractExpertsOp, RouteOp, SortChoicesOp
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder

FEW_TOKENS = 16
"""Up to so many tokens each choice of an expert is a row of its own: a tile would multiply mostly for nothing."""


def route(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The choice in float32, the weights rounded."""
    attributes = attributes_of(op)
    made = RouteOp(operands[0], top_k=cast(int, attributes["top_k"]), normalized=bool(attributes["normalized"]), loc=b.loc)
    b.add(made)
    return [b.cast(made.weights, element_type_of(op.results[0])), made.chosen]


def experts(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round(Σ round(weight · round(down(round(round(activation(gate)) · up))))), the choices of a token in neighbouring rows.

    Of many tokens the choices are sorted by expert, once for all three contractions.
    """
    x, chosen, weights, gate, up, down = operands
    attributes = attributes_of(op)
    element, count = element_type_of(x), cast(int, attributes["experts"])
    tokens, choices = shape_of(chosen)
    order = b.add(SortChoicesOp(chosen, loc=b.loc), "order") if tokens > FEW_TOKENS else None

    def contract(value: SSAValue, weight: SSAValue) -> SSAValue:
        product = b.add(ContractExpertsOp(value, weight, chosen, order, experts=count, loc=b.loc))
        return b.float32(b.cast(product, element))

    gated, upped = contract(x, gate), contract(x, up)
    active = b.float32(b.cast(b.map(cast(str, attributes["activation"]), gated), element))
    inner = b.cast(b.map("mul", active, upped), element)
    inner.name_hint = "inner"
    # A rounding before the numbers change their shape would stand between the router and its readers.
    scale = b.float32(b.reshape(weights, (tokens * choices, 1)))
    weighted = b.cast(b.map("mul", contract(inner, down), scale), element)
    weighted.name_hint = "weighted"
    return [b.cast(b.add(AddRowsOp(weighted, choices, loc=b.loc)), element)]


RULES: dict[str, Rule] = {"transformer.route": route, "transformer.experts": experts}

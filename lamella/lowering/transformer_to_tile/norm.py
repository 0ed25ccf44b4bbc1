"""Norms as reductions and maps, rounded where the models round."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import attributes_of, element_type_of
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder


def rms_norm(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round(round(x · rsqrt(mean x² + eps)) · weight): the product with the weight sees the rounded norm, as in Llama's model code."""
    x, weight = operands
    element = element_type_of(op.results[0])
    eps = attributes_of(op)["eps"]
    assert isinstance(eps, float)
    xf = b.float32(x)
    inverse = b.map("rsqrt", b.map("add", b.mean(b.map("square", xf)), eps))
    inverse.name_hint = "inverse"
    normed = b.cast(b.map("mul", xf, inverse), element)
    return [b.cast(b.map("mul", b.float32(normed), b.float32(weight)), element)]


RULES: dict[str, Rule] = {"transformer.rms_norm": rms_norm}

"""Norms as reductions and maps, rounded where the models round."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import attributes_of, element_type_of
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder


def rms_norm(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round(round(x · rsqrt(mean x² + eps)) · weight): the product with the weight sees the rounded norm, as in Llama's model code.

    Without a weight: round(x · rsqrt(mean x² + eps)); with an offset: round(x · rsqrt(mean x² + eps) · (weight + offset)), as in Gemma's.
    """
    x, *weights = operands
    element, attributes = element_type_of(op.results[0]), attributes_of(op)
    normed = normalized(b.float32(x), attributes["eps"], b)
    offset = attributes.get("offset")
    for weight in weights:
        if isinstance(offset, float):
            scale = b.map("add", b.float32(weight), offset)
        else:
            normed, scale = b.float32(b.cast(normed, element)), b.float32(weight)
        normed = b.map("mul", normed, scale)
    return [b.cast(normed, element)]


def layer_norm(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round((x - mean) · rsqrt(mean (x - mean)² + eps) · weight + bias)."""
    x, *parameters = operands
    xf = b.float32(x)
    normed = normalized(b.map("sub", xf, b.mean(xf)), attributes_of(op)["eps"], b)
    for kind, vector in zip(("mul", "add"), parameters, strict=False):
        normed = b.map(kind, normed, b.float32(vector))
    return [b.cast(normed, element_type_of(op.results[0]))]


def normalized(x: SSAValue, eps: object, b: TileBuilder) -> SSAValue:
    """x · rsqrt(mean x² + eps)."""
    assert isinstance(eps, float)
    inverse = b.map("rsqrt", b.map("add", b.mean(b.map("square", x)), eps))
    inverse.name_hint = "inverse"
    return b.map("mul", x, inverse)


RULES: dict[str, Rule] = {"transformer.rms_norm": rms_norm, "transformer.layer_norm": layer_norm}

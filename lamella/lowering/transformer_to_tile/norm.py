"""Norms as reductions and maps, rounded where the models round."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, Operation, SSAValue

from lamella.dialects.attributes import attributes_of, element_type_of, shape_of
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder


def rms_norm(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round(round(x · rsqrt(mean x² + eps)) · weight): the product with the weight sees the rounded norm, as in Llama's model code.

    Without a weight: round(x · rsqrt(mean x² + eps)); with an offset: round(x · rsqrt(mean x² + eps) · (weight + offset)), as in Gemma's.
    """
    x, *weights = operands
    element, attributes = element_type_of(op.results[0]), attributes_of(op)
    normed = normalized(b.float32(heads_as_rows(x, attributes.get("heads"), b)), attributes["eps"], b)
    offset = attributes.get("offset")
    if weights and not isinstance(offset, float):
        normed = b.float32(b.cast(normed, element))
    scales = [b.float32(weight) for weight in weights]
    if isinstance(offset, float):
        scales = [b.map("add", scale, offset) for scale in scales]
    return [finished(normed, ["mul"], scales, shape_of(x), element, b)]


def layer_norm(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """round((x - mean) · rsqrt(mean (x - mean)² + eps) · weight + bias)."""
    x, *parameters = operands
    attributes = attributes_of(op)
    xf = b.float32(heads_as_rows(x, attributes.get("heads"), b))
    normed = normalized(b.map("sub", xf, b.mean(xf)), attributes["eps"], b)
    return [finished(normed, ["mul", "add"], parameters, shape_of(x), element_type_of(op.results[0]), b)]


def heads_as_rows(x: SSAValue, heads: object, b: TileBuilder) -> SSAValue:
    """x[N,E] as [N·heads, E/heads], where heads are normalized one by one: a head is then a row."""
    if not isinstance(heads, int):
        return x
    rows, width = shape_of(x)
    return b.reshape(x, (rows * heads, width // heads))


def finished(
    normed: SSAValue, kinds: Sequence[str], vectors: Sequence[SSAValue], shape: tuple[int, ...], element: Attribute, b: TileBuilder
) -> SSAValue:
    """The norm of rows or of heads joined with its parameters, rounded, in the shape of x. A parameter for whole rows meets whole rows."""
    for kind, vector in zip(kinds, vectors, strict=False):
        if shape_of(vector)[0] != shape_of(normed)[1]:
            normed = b.reshape(normed, shape)
        normed = b.map(kind, normed, b.float32(vector))
    return b.reshape(b.cast(normed, element), shape)


def normalized(x: SSAValue, eps: object, b: TileBuilder) -> SSAValue:
    """x · rsqrt(mean x² + eps)."""
    assert isinstance(eps, float)
    inverse = b.map("rsqrt", b.map("add", b.mean(b.map("square", x)), eps))
    inverse.name_hint = "inverse"
    return b.map("mul", x, inverse)


RULES: dict[str, Rule] = {"transformer.rms_norm": rms_norm, "transformer.layer_norm": layer_norm}

"""RoPE, the cache, attention and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import f8E4M3FN
from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import attributes_of, element_type_of, shape_of
from lamella.dialects.tile import AttendOp, ColumnsOp, GatherOp, ReduceOp, RotateOp, SampleOp, ScatterOp, SlotsOp
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder

LARGEST, SMALLEST = 448.0, 2.0**-100
"""The largest number of float8, and the magnitude that a head has at least, so that zeros are divided by something."""


def rotate(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The rotation by the table rows of the tokens' positions; those rows are the same for every layer, so they carry no location."""
    x, positions, table = operands
    attributes = attributes_of(op)
    rows = b.add(GatherOp(table, positions), "angles")
    turned = RotateOp(
        b.float32(x),
        rows,
        heads=cast(int, attributes["heads"]),
        head_dim=cast(int, attributes["head_dim"]),
        rotary_dim=cast(int, attributes["rotary_dim"]),
        style=cast(str, attributes["style"]),
        loc=b.loc,
    )
    return [b.cast(b.add(turned), element_type_of(op.results[0]))]


def rope_row(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """positions + length · min(max(lengths - original, 0), 1), in whole numbers; the same for every layer."""
    positions, lengths = operands
    attributes = attributes_of(op)
    beyond = b.map("maximum", b.map("sub", lengths, cast(int, attributes["original"])), 0)
    second = b.map("mul", b.map("minimum", beyond, 1), cast(int, attributes["length"]))
    return [b.map("add", positions, second)]


def cache_write(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """Two scatters into the cache's slots: keys, then values; of a cache of float8 as many into its scales. The slots are the same for every layer."""
    cache, k, v, positions, query_start, block_table = operands
    slots = b.add(SlotsOp(positions, query_start, block_table, block=shape_of(cache)[3]), "slots")
    element = element_type_of(cache)
    scales = b.scales.get(cache)
    for part, values in enumerate((k, v)):
        if scales is None:
            cache = b.add(ScatterOp(b.cast(values, element), cache, slots, part, loc=b.loc), "cache")
            continue
        numbers, steps = by_heads(values, shape_of(cache)[2], b)
        cache = b.add(ScatterOp(numbers, cache, slots, part, loc=b.loc), "cache")
        scales = b.scales[cache] = b.add(ScatterOp(steps, scales, slots, part, loc=b.loc), "scales")
    return [cache]


def by_heads(x: SSAValue, heads: int, b: TileBuilder) -> tuple[SSAValue, SSAValue]:
    """x[N, H·D] as numbers of float8 [N, H·D] and scales [N·H, 1]: `semantics.attention.by_heads`, op by op."""
    tokens, width = shape_of(x)
    rows = b.float32(b.reshape(x, (tokens * heads, width // heads)))
    largest = b.add(ReduceOp("max", b.map("maximum", rows, b.map("neg", rows)), loc=b.loc))
    scales = b.map("mul", b.map("maximum", largest, SMALLEST), 1.0 / LARGEST)
    scales.name_hint = "scales"
    return b.reshape(b.cast(b.map("div", rows, scales), f8E4M3FN), (tokens, width)), scales


def attention(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """One attend in float32, rounded."""
    q, cache, block_table, query_start, context_len, *sinks = operands
    scales = b.scales.get(cache)
    attributes = attributes_of(op)
    attend = AttendOp(
        q,
        cache,
        block_table,
        query_start,
        context_len,
        *sinks,
        scales=scales,
        heads=cast(int, attributes["heads"]),
        kv_heads=cast(int, attributes["kv_heads"]),
        head_dim=cast(int, attributes["head_dim"]),
        scale=cast(float, attributes["scale"]),
        window=cast(int, attributes.get("window", 0)),
        score_cap=cast(float, attributes.get("score_cap", 0.0)),
        alibi=cast(float, attributes.get("alibi", 0.0)),
        bidirectional=cast(bool, attributes.get("bidirectional", False)),
        loc=b.loc,
    )
    return [b.cast(b.add(attend), element_type_of(op.results[0]))]


def sample(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The same op one level down."""
    return [b.add(SampleOp(operands[0], operands[1:], loc=b.loc), "next")]


def penalize(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """max(l, 0) / f + min(l, 0) · f."""
    logits, factors = operands
    over, under = b.map("div", b.map("maximum", logits, 0.0), factors), b.map("mul", b.map("minimum", logits, 0.0), factors)
    return [b.map("add", over, under)]


def mark(op: Operation, operands: Sequence[SSAValue], b: TileBuilder) -> Sequence[SSAValue]:
    """The penalty where a column's number is the row's token, else the factor. Numbers of tokens are exact in float32."""
    factors, tokens, penalty = operands
    rows = shape_of(tokens)[0]
    numbers = b.float32(b.add(ColumnsOp(factors, loc=b.loc), "columns"))
    here = b.map("equal", numbers, b.float32(b.reshape(tokens, (rows, 1))))
    return [b.map("select", here, b.reshape(penalty, (rows, 1)), factors)]


RULES: dict[str, Rule] = {
    "transformer.rotate": rotate,
    "transformer.rope_row": rope_row,
    "transformer.cache_write": cache_write,
    "transformer.attention": attention,
    "transformer.penalize": penalize,
    "transformer.sample": sample,
    "transformer.mark": mark,
}

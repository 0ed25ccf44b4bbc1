"""Squares of a row that programs of one product add up, a few columns each, for the scale of the next one: interpreted, against the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from xdsl.dialects import func
from xdsl.dialects.builtin import bf16, f32

from lamella.dialects.tile import AddColumnsOp
from lamella.passes import packed_columns
from tests.numeric.harness import NARROW, Compiled, Graph, agree, compile_function
from tests.numeric.test_quantized import Packed
from tests.numeric.test_runs import KINDS, columns
from tests.numeric.test_swap_pairs import LEVELS, compare

ON: Mapping[str, Mapping[str, bool | str]] = {"commute-row-scale": {"columns": True}, "split-reductions": {"on": True}}
FORCED = {"fuse-regions": {"policy": json.dumps([{"action": "force", "producer": "tile.reduce", "consumer": "tile.contract"}])}}


def sizes(compiled: Compiled) -> list[int]:
    """How many columns are added up by each op that adds up columns."""
    ops = (op for region in compiled.regions for op in region.body.block.ops)
    return [op.columns.value.data for op in ops if isinstance(op, AddColumnsOp)]


def norm_between(first: tuple[int, int, str, int, bool], second: tuple[int, int, str, int, bool]) -> tuple[Packed, func.FuncOp]:
    """A product by `first`, a residual, a norm with weights, and a product by `second`; the row that is normalized leaves too."""
    width = first[0]
    named = {a: v for n, spec in (("v", first), ("w", second)) for a, v in Packed.arguments_for(n, *spec).items()}
    g = Packed(x=f"1x{first[1]}xbf16", residual=f"1x{width}xbf16", gamma=f"{width}xbf16", **named)
    product = g.cast(g.cast(g.contract(g["x"], g.weight("v", first[2], first[3], first[1])), bf16), f32)
    row = g.cast(g.map("add", product, g.cast(g["residual"], f32)), bf16)
    wide = g.cast(row, f32)
    scale = g.map("rsqrt", g.map("add", g.mean(g.map("square", wide)), 1e-5))
    normed = g.cast(g.cast(g.map("mul", wide, scale), bf16), f32)
    made = g.cast(g.map("mul", normed, g.cast(g["gamma"], f32)), bf16)
    return g, g.returns(g.contract(made, g.weight("w", second[2], second[3], width)), row)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_norm_between_products(name: str, level: str) -> None:
    """Two launches, whatever the weight before: the first leaves its row, the row times the norm's weight, and sums of squares."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 1)
    first, second = (1024, k, kind, group, affine), (12, 1024, "int8", 0, False)
    g, graph = norm_between(first, second)
    compiled = compile_function(graph, pass_options={**ON, **FORCED})
    assert compiled.skeletons == ["gemv", "gemv"]
    assert sizes(compiled) == [4 if kind == "int4" else 2]
    compare(compiled, g.packed_inputs(v=first, w=second), NARROW["bf16"], level)


@pytest.mark.parametrize("level", LEVELS)
def test_from_tiles_of_digits(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 9,216 half bytes are shared by programs, the last of which adds up what all made of its columns, and their squares."""
    monkeypatch.setattr(packed_columns, "SMALL", 0)
    first, second = (512, 9216, "int4", 128, False), (12, 512, "int8", 0, False)
    g, graph = norm_between(first, second)
    compiled = compile_function(graph, pass_options={**ON, **FORCED})
    assert compiled.skeletons == ["mma", "gemv"]
    (size,) = sizes(compiled)
    assert size >= 16
    compare(compiled, g.packed_inputs(v=first, w=second), NARROW["bf16"], level)


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_programs_of_more_rows_than_a_sum_has(rows: int) -> None:
    first, second = (1024, 1024, "int8", 0, False), (12, 1024, "int4", 128, True)
    g, graph = norm_between(first, second)
    chosen = {"rows": rows, "k": 1024, "warps": 1, "runs": 8}
    compiled = compile_function(graph, schedules={"gemv": chosen}, pass_options={**ON, **FORCED})
    assert sizes(compiled) == [2]
    agree(compiled, g.packed_inputs(v=first, w=second), NARROW["bf16"])


def test_more_sums_than_a_trip_has_columns() -> None:
    """1,024 sums, columns in trips of 512: they are asked for at once."""
    first, second = (2048, 512, "int8", 0, False), (12, 2048, "int8", 0, False)
    g, graph = norm_between(first, second)
    chosen = {"rows": 2, "k": 512, "warps": 1, "runs": 8}
    compiled = compile_function(graph, schedules={"gemv": chosen}, pass_options={**ON, **FORCED})
    assert sizes(compiled) == [2]
    *_, source = compiled.sources.values()
    before_products = source.partition("tl.dot")[0]
    assert "tl.sum(" in before_products and " in range" not in before_products
    agree(compiled, g.packed_inputs(v=first, w=second), NARROW["bf16"])


@pytest.mark.parametrize("producer", ["tile.contract", "tile.add_columns"])
def test_where_the_policy_takes_it_apart(producer: str) -> None:
    """A row region adds up neighbouring columns as well, by itself or with the squares."""
    consumer = {"tile.contract": "tile.add_columns", "tile.add_columns": "*"}[producer]
    first, second = (512, 512, "int8", 0, False), (12, 512, "int8", 0, False)
    g, graph = norm_between(first, second)
    apart = json.dumps([{"action": "forbid", "producer": producer, "consumer": consumer}])
    compiled = compile_function(graph, pass_options={**ON, "fuse-regions": {"policy": apart}})
    assert sizes(compiled) == [2]
    agree(compiled, g.packed_inputs(v=first, w=second), NARROW["bf16"])


def test_every_op_alone() -> None:
    first, second = (512, 512, "int8", 0, False), (12, 512, "int8", 0, False)
    g, graph = norm_between(first, second)
    compiled = compile_function(graph, pass_options={**ON, "fuse-regions": {"max-depth": 0}})
    assert "row" in compiled.skeletons and sizes(compiled) == [2]
    agree(compiled, g.packed_inputs(v=first, w=second), NARROW["bf16"])


@pytest.mark.parametrize(("width", "count"), [(42, 2), (36, 4), (6, 2)])
def test_a_last_program_with_less_rows(width: int, count: int) -> None:
    """Sums of columns that are results: what the last program has beyond the last row adds nothing, and is not stored."""
    g = Graph(x="1x96xbf16", w=f"{width}x96xbf16")
    sums = g.add(AddColumnsOp(g.map("square", g.contract(g["x"], g["w"])), count))
    compiled = compile_function(g.returns(sums), schedules={"gemv": {"rows": 8, "k": 128, "warps": 1}})
    assert compiled.skeletons == ["gemv"]
    agree(compiled, g.inputs(), 1e-4)


def test_a_norm_that_is_not_behind_stays_whole() -> None:
    """Its row is multiplied by floats, in front of which a norm with weights stays: a launch of its own finds the sum."""
    g = Packed(x="1x512xbf16", gamma="512xbf16", w="12x512xbf16", **Packed.arguments_for("v", 512, 512, "int8", 0, False))
    wide = g.cast(g.cast(g.contract(g["x"], g.weight("v", "int8", 0, 512)), bf16), f32)
    normed = g.map("mul", g.norm(wide), g.cast(g["gamma"], f32))
    compiled = compile_function(g.returns(g.contract(g.cast(normed, bf16), g["w"])), pass_options=ON)
    assert sizes(compiled) == []

"""Chains that need nothing of each other share a launch: each has rows of its own, and heads that are normalized one by one have a program each."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import bf16
from xdsl.ir import Operation, SSAValue

from lamella.dialects.tile import FusedOp, RotateOp, ScatterOp, YieldOp
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.row_parts import row_parts
from tests.numeric.harness import Compiled, Graph, agree, compile_function, i32, numbers


def normed(g: Graph, x: SSAValue, heads: int, dim: int, weight: str, style: str = "half", rotary: int = 0) -> SSAValue:
    """The heads of x[N, heads·dim] normalized one by one, scaled by `weight` ([dim] or [heads·dim]), and turned by `angles`."""
    tokens = x.type.get_shape()[0]
    single = g.reshape(x, (tokens * heads, dim))
    normal = g.norm(single)
    if g[weight].type.get_shape()[0] != dim:
        normal = g.reshape(normal, (tokens, heads * dim))
    scaled = g.reshape(g.map("mul", normal, g[weight]), (tokens, heads * dim))
    return g.add(RotateOp(scaled, g["angles"], heads=heads, head_dim=dim, rotary_dim=rotary or dim, style=style))


def agrees(compiled: Compiled, inputs) -> None:
    """Whatever the order of programs."""
    agree(compiled, inputs)
    first, second = (compiled.run({n: v.clone() for n, v in inputs.items()}, shuffle_seed=seed) for seed in (1, 2))
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(("style", "dim", "rotary"), [("half", 16, 16), ("half", 20, 12), ("paired", 24, 24)])
@pytest.mark.parametrize("shared", [True, False], ids=["one scale", "a scale a head"])
def test_heads_are_normalized_turned_and_cached_in_one_launch(tokens: int, style: str, dim: int, rotary: int, shared: bool) -> None:
    """Queries of 6 heads, keys of 2 and values as they are: three parts with rows, and programs, of their own."""
    q, k, rows = 6 * dim, 2 * dim, f"{tokens}x"
    g = Graph(
        q=f"{rows}{q}xf32",
        k=f"{rows}{k}xf32",
        v=f"{rows}{k}xf32",
        cache=f"?x2x2x16x{dim}xf32",
        slots=f"{tokens}xi32",
        angles=f"{rows}{rotary}xf32",
        wq=f"{dim if shared else q}xf32",
        wk=f"{dim if shared else k}xf32",
    )
    turned = normed(g, g["q"], 6, dim, "wq", style, rotary)
    keys = g.add(ScatterOp(normed(g, g["k"], 2, dim, "wk", style, rotary), g["cache"], g["slots"], 0))
    both = g.add(ScatterOp(g["v"], keys, g["slots"], 1))
    compiled = compile_function(g.returns(turned, both), longest_query=tokens, ties={1: 3})
    assert compiled.skeletons == ["row"]
    (launch,) = compiled.manifest.buckets[0].launches
    assert launch.grid == (tokens * (6 + 2 + 1), 1, 1)
    inputs = g.inputs(slots=i32([9, 17, 3][:tokens]))
    agrees(compiled, {**inputs, "cache.0": numbers([3, 2, 2, 16, dim], 50)})


@pytest.mark.parametrize("rows", [1, 3])
def test_long_rows_are_divided_between_programs(rows: int) -> None:
    """Where nothing needs a row as a whole: 20,000 columns are three programs a row, beside the one of a short part; a sum keeps its row in one."""
    g = Graph(x=f"{rows}x20000xf32", y=f"{rows}x20000xf32", s=f"{rows}x1xf32", short=f"{rows}x8xf32")
    wide = g.map("mul", g.map("add", g["x"], g["y"]), g["s"])
    compiled = compile_function(g.returns(wide, g.map("neg", g["short"])))
    assert compiled.skeletons == ["row"]
    (launch,) = compiled.manifest.buckets[0].launches
    assert launch.grid == (rows * (3 + 1), 1, 1)
    agrees(compiled, g.inputs())
    g = Graph(x=f"{rows}x20000xf32", y=f"{rows}x20000xf32")
    summed = g.map("add", g.norm(g["x"]), g["y"])
    compiled = compile_function(g.returns(summed))
    assert [launch.grid for launch in compiled.manifest.buckets[0].launches] == [(rows, 1, 1)]
    agrees(compiled, g.inputs())


def test_what_is_stored_beside_a_long_row_keeps_it_in_one_program() -> None:
    """A vector that is written over its own operand would be read by another program of the row when it is new already."""
    g = Graph(x="2x20000xf32", s="2x1xf32")
    more = g.map("add", g["s"], 1.0)
    compiled = compile_function(g.returns(g.map("mul", g["x"], more), more), ties={1: 1})
    both, copy = compiled.manifest.buckets[0].launches
    assert (len(both.args), both.grid, copy.grid) == (4, (2, 1, 1), (2, 1, 1))
    agrees(compiled, g.inputs())


def test_parts_of_other_rows_and_widths_share_a_launch() -> None:
    """Rows longer than a block, a few rows, and numbers alone: reductions have programs of their own, what only moves numbers by its rows."""
    g = Graph(x="3x9000xf32", y="5x37xf32", z="5x19xf32", n="7xi32")
    long, short = g.norm(g["x"]), g.map("mul", g.reduce("max", g["y"]), g["y"])
    compiled = compile_function(g.returns(long, short, g.map("silu", g["z"]), g.map("add", g["n"], g["n"])))
    assert compiled.skeletons == ["row"]
    (launch,) = compiled.manifest.buckets[0].launches
    assert launch.grid == (3 + 5 + 5 + 7, 1, 1)
    agrees(compiled, g.inputs(n=i32(range(7))))


def test_rounding_stays_where_it_was() -> None:
    g = Graph(x="2x48xbf16", angles="2x16xf32", w="16xf32")
    wide = g.cast(normed(g, g.float32(g["x"]), 3, 16, "w"), bf16)
    agree(compile_function(g.returns(wide)), g.inputs(), 1.6e-2)


def reason(*values: SSAValue) -> str:
    """Why the ops behind some values cannot be one launch; empty where they can."""
    block = values[0].owner.parent_block() if isinstance(values[0].owner, Operation) else None
    assert block is not None
    block.add_op(YieldOp(list(values)))
    return "; ".join(feasible_schedules([op for op in block.ops if not isinstance(op, YieldOp)]).reasons)


def test_a_program_has_one_head() -> None:
    g = Graph(x="2x48xf32")
    heads = g.norm(g.reshape(g["x"], (6, 16)))
    whole = g.reshape(heads, (2, 48))
    assert reason(whole, g.reduce("sum", whole)) == "row: a value of shape 2x1 is stored beside heads of 16 columns: a program has one head"
    g = Graph(x="2x48xf32")
    whole = g.reshape(g.norm(g.reshape(g["x"], (6, 16))), (2, 48))
    assert reason(g.norm(whole)) == "row: a reduction of 48 columns, where a program has a head of 16"
    g = Graph(x="2x48xf32")
    whole = g.reshape(g.norm(g.reshape(g["x"], (6, 16))), (2, 48))
    assert "heads of 8 columns and others meet" in reason(g.norm(g.reshape(whole, (12, 8))))
    g = Graph(x="2x48xf32", angles="2x24xf32")
    whole = g.reshape(g.norm(g.reshape(g["x"], (6, 16))), (2, 48))
    turned = g.add(RotateOp(whole, g["angles"], heads=2, head_dim=24, rotary_dim=24, style="half"))
    assert reason(turned) == "row: a rotation of heads of 24 columns, where a program has a head of 16"
    g = Graph(x="2x48xf32")
    assert "a reshape reads rows that other programs compute" in reason(g.reshape(g.norm(g["x"]), (3, 32)))


@pytest.mark.parametrize("second", [0, 1])
def test_parts_write_different_halves_of_a_cache(second: int) -> None:
    """Keys after keys would need an order, which programs do not have."""
    g = Graph(k="3x8xf32", v="3x8xf32", cache="?x2x1x8x8xf32", slots="3xi32")
    keys = g.add(ScatterOp(g.norm(g["k"]), g["cache"], g["slots"], 0))
    both = g.add(ScatterOp(g.norm(g["v"]), keys, g["slots"], second))
    expected = "" if second else "row: two parts write the same half of a cache, in any order"
    assert reason(both) == expected


def test_parts_are_in_the_order_of_their_ops() -> None:
    g = Graph(x="1x64xf32", y="1x32xf32")
    compiled = compile_function(g.returns(g.norm(g["y"]), g.norm(g["x"])))
    (region,) = [r for r in compiled.regions if isinstance(r, FusedOp)]
    ops = [op for op in region.body.block.ops if not isinstance(op, YieldOp)]
    assert [part.width for part in row_parts(ops, region.terminator.values)] == [32, 64]

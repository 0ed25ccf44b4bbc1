"""A cache of float8: how numbers are rounded into it, with a scale for each head, and attention that reads it, on sizes that no tile divides."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import f8E4M3FN, f32

from lamella.dialects.tile import ScatterOp, SlotsOp
from lamella.lowering.transformer_to_tile.attention import by_heads as lowered_by_heads
from lamella.semantics import IMPLEMENTATIONS
from lamella.semantics.attention import SMALLEST, by_heads
from tests.numeric.harness import NARROW, Graph, agree, compile_function, i32, numbers
from tests.numeric.test_schedules_attention import Batch

FLOAT8 = torch.float8_e4m3fn


def test_rounding_is_to_the_nearest_everywhere() -> None:
    """Every float8, every middle between two (ties to even), the float32 next to each on both sides, and numbers of all sizes."""
    exact = torch.arange(127).to(torch.uint8).view(FLOAT8).float()
    middle = (exact[1:] + exact[:-1]) / 2
    marks = torch.cat([exact, middle, torch.tensor([448.00003])])
    near = torch.cat([marks, torch.nextafter(marks, torch.tensor(torch.inf)), torch.nextafter(marks, torch.tensor(-1.0))])
    sized = numbers([1000], 1) * 10.0 ** torch.empty(1000).uniform_(-4, 2, generator=torch.Generator().manual_seed(2))
    x = torch.cat([near, -near, sized.clamp(-448, 448)])[None]
    g = Graph(x=f"1x{x.shape[1]}xf32")
    compiled = compile_function(g.returns(g.cast(g["x"], f8E4M3FN)))
    (found,) = agree(compiled, {"x": x}, 0)
    assert torch.equal(found.view(torch.uint8), x.to(FLOAT8).view(torch.uint8))


def test_a_head_keeps_its_largest_number() -> None:
    """Heads of zeros and of numbers that have no scale of their own are 0, the largest number of others is exact but for the scale's rounding."""
    x = torch.cat([numbers([6, 32], 3, scale=30.0), torch.zeros(1, 32), torch.full((1, 32), SMALLEST / 2**20)])
    found, scales = by_heads(x, 2)
    back = found.float() * scales
    assert torch.equal(back[6], torch.zeros(2, 16)) and torch.equal(back[7], torch.zeros(2, 16))
    rows = x.unflatten(1, (2, 16))
    assert ((back - rows).abs() <= rows.abs() / 16 + scales * 2.0**-10).all()
    torch.testing.assert_close(back.abs().amax(-1)[:6], rows.abs().amax(-1)[:6], rtol=1e-6, atol=0)


HEADS = [pytest.param(2, 16, id="2 of 16"), pytest.param(1, 40, id="1 of 40"), pytest.param(3, 64, id="3 of 64")]


@pytest.mark.parametrize(("heads", "dim"), HEADS)
@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_writing(tokens: int, element: str, heads: int, dim: int) -> None:
    """Keys and values of a step in their slots, bit for bit what one op of level 1 makes of them; a padding row goes to the null block."""
    width, block = heads * dim, 16
    g = Graph(
        k=f"{tokens}x{width}x{element}",
        v=f"{tokens}x{width}x{element}",
        cache=f"?x2x{heads}x{block}x{dim}xf8",
        scales=f"?x2x{heads}x{block}x1xf32",
        positions=f"{tokens}xi32",
        query_start="2xi32",
        block_table="1x3xi32",
    )
    slots = g.add(SlotsOp(g["positions"], g["query_start"], g["block_table"], block))
    cache, scales = g["cache"], g["scales"]
    for part, name in enumerate(("k", "v")):
        made, steps = lowered_by_heads(g[name], heads, g)
        cache, scales = g.add(ScatterOp(made, cache, slots, part)), g.add(ScatterOp(steps, scales, slots, part))
    compiled = compile_function(g.returns(cache, scales), ties={0: 2, 1: 3})
    assert compiled.skeletons == ["row"]
    real = max(1, tokens - 1)
    given = g.inputs(positions=torch.arange(tokens).int() + 14, query_start=i32([0, real]), block_table=i32([[3, 1, 2]]))
    given["k"][0, :dim] = 0
    given["v"][-1] *= 1e4 if element == "f32" else 1e2
    given |= {"cache.0": torch.zeros(4, 2, heads, block, dim).to(FLOAT8), "scales.0": torch.zeros(4, 2, heads, block, 1)}
    whole = torch.zeros(4, 2, heads, block, dim + 4, dtype=torch.uint8).view(FLOAT8)
    agree(compiled, given, 0)
    compiled.run(given, "interpret")
    places = (given[name] for name in ("positions", "query_start", "block_table"))
    whole = IMPLEMENTATIONS["transformer.cache_write"](whole, given["k"], given["v"], *places).view(torch.uint8)
    assert torch.equal(given["cache.0"].view(torch.uint8)[1:], whole[1:, ..., :dim])
    assert torch.equal(given["scales.0"][1:], whole[1:, ..., dim:].contiguous().view(torch.float32))


CONTEXTS = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 100)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "split", "x"),
    [(6, 2, 16, False, "f32"), (4, 4, 20, True, "f32"), (8, 2, 64, True, "f16"), (8, 2, 64, False, "f16"), (3, 1, 80, True, "f32")],
)
def test_decode(heads: int, kv_heads: int, dim: int, split: bool, x: str) -> None:
    """Contexts around a block's end, whole and in chunks; a sequence without a query."""
    batch = Batch([*CONTEXTS, (0, 0)], heads=heads, kv_heads=kv_heads, dim=dim, block=16, blocks=16, x=x, float8=True)
    compiled = compile_function(
        batch.g.returns(batch.attend()), longest_query=1, schedules={} if split else {"attend": {"tile": 32, "splits": 1}}
    )
    agree(compiled, batch.given, NARROW[x], rows=batch.real)


@pytest.mark.parametrize(
    ("kind", "x"),
    [({}, "f16"), ({"window": 5}, "f32"), ({"score_cap": 2.0, "alibi": 8.0, "sinks": True}, "f32")],
    ids=["causal", "window", "sinks"],
)
def test_ragged(kind: dict, x: str) -> None:
    """Prefill in several tiles, a chunk of a longer context, a decode and padding; with sinks, which come after the scales."""
    lengths = [(13, 13), (1, 100), (0, 0), (7, 40)]
    batch = Batch(lengths, heads=4, kv_heads=2, dim=20, block=16, blocks=16, padding=2, sinks="sinks" in kind, x=x, float8=True)
    batch.sizes |= {name: value for name, value in kind.items() if name != "sinks"}
    tiles = {"queries": 8, "rows": 16, "tile": 32, "splits": 1}
    compiled = compile_function(
        batch.g.returns(batch.g.cast(batch.attend(), f32)), longest_query=batch.longest, schedules={"attend": tiles}
    )
    agree(compiled, batch.given, NARROW[x], rows=batch.real)


def test_small_values_survive_float16() -> None:
    """Scales of values that are small, times probabilities of a long context, would vanish in float16."""
    batch = Batch([(1, 200)], heads=2, kv_heads=1, dim=32, block=16, blocks=16, x="f16", float8=True)
    batch.given["scales.0"][:, 1] *= 1e-5
    compiled = compile_function(batch.g.returns(batch.attend()), longest_query=1)
    (expected,) = compiled.expected(batch.given)
    (found,) = compiled.run({n: v.clone() for n, v in batch.given.items()})
    assert 0 < expected.abs().max() < 1e-5
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3 * float(expected.abs().max()))


def test_a_cache_of_level_1_means_the_same() -> None:
    """There the bytes of a scale follow each head; attention reads both."""
    batch = Batch([(5, 40), (1, 33)], heads=4, kv_heads=2, dim=16, block=16, blocks=4, float8=True)
    given = batch.given
    whole = torch.cat([given["cache.0"].view(torch.uint8), given["scales.0"].view(torch.uint8)], dim=-1).view(FLOAT8)
    names = ("block_table", "query_start", "context_len")
    found = IMPLEMENTATIONS["transformer.attention"](given["q"], whole, *(given[n] for n in names), **batch.sizes)
    expected = IMPLEMENTATIONS["tile.attend"](given["q"], given["cache.0"], *(given[n] for n in names), given["scales.0"], **batch.sizes)
    assert torch.equal(found, expected)
    wide = given["cache.0"].float() * given["scales.0"]
    torch.testing.assert_close(expected, IMPLEMENTATIONS["tile.attend"](given["q"], wide, *(given[n] for n in names), **batch.sizes))

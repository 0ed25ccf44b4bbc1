"""The row and contract skeletons, from tile ops through fusion, plan and printed Triton, interpreted, against the meaning of the ops.

Sizes are odd, and tiles often smaller than the cost model would choose, so that all loops, masks and branches are taken.
"""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import SSAValue

from lamella import api
from lamella.dialects.tile import ContractPartialOp, RotateOp, ScatterOp, SlotsOp
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES, SCALAR_RULES
from lamella.semantics import REDUCTIONS, SCALARS
from lamella.tools.cross_compile import cross_compile
from tests.numeric.harness import NARROW, Graph, agree, compile_function, i32, numbers

MODELS = Path(__file__).resolve().parents[2] / "benchmarks" / "models"
NAN, INF = math.nan, math.inf
# Row


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("columns", [{}, {"row": {"columns": 16}}], ids=["whole rows", "rows in chunks"])
def test_row_norm(rows: int, columns: dict) -> None:
    """A reduction, and a second one of what depends on it; a vector along columns, a scalar, an operand with one column."""
    g = Graph(x=f"{rows}x100xf32", y=f"{rows}x100xf32", gamma="100xf32", s=f"{rows}x1xf32")
    total = g.map("mul", g.map("add", g["x"], g["y"]), g["s"])
    scaled = g.map("mul", g.norm(total), g["gamma"])
    e = g.map("exp", g.map("sub", scaled, g.reduce("max", scaled)))
    soft = g.map("div", e, g.reduce("sum", e))
    compiled = compile_function(g.returns(total, g.cast(soft, bf16)), schedules=columns)
    assert set(compiled.skeletons) == {"row"}
    agree(compiled, g.inputs(), NARROW["bf16"] / 4)


def test_row_of_one_column() -> None:
    g = Graph(x="4x1xf32")
    agree(compile_function(g.returns(g.map("mul", g["x"], g.reduce("sum", g["x"])))), g.inputs())


@pytest.mark.parametrize("length", [1, 300])
def test_vectors_are_taken_many_numbers_a_program(length: int) -> None:
    g = Graph(x=f"{length}xi32", y=f"{length}xf32", table="7xf32")
    compiled = compile_function(g.returns(g.map("add", g["x"], 1), g.map("add", g.gather(g["table"], g["x"]), g["y"])))
    assert compiled.skeletons == ["row"]
    agree(compiled, g.inputs(x=i32([n % 7 for n in range(length)])))


def test_outputs_of_several_widths_share_a_launch() -> None:
    g = Graph(x="3x40xf32", y="3x9xf32", v="3xi32")
    compiled = compile_function(
        g.returns(g.map("silu", g["x"]), g.norm(g["y"]), g.map("add", g["v"], 1)), schedules={"row": {"columns": 16}}
    )
    assert compiled.skeletons == ["row"]
    agree(compiled, g.inputs(v=i32([4, -1, 2])))


@pytest.mark.parametrize("style", ["half", "paired"])
@pytest.mark.parametrize("rotary", [12, 20])
@pytest.mark.parametrize("columns", [{}, {"row": {"columns": 16}}], ids=["whole rows", "rows in chunks"])
def test_row_rotation(style: str, rotary: int, columns: dict) -> None:
    g = Graph(x="3x60xf32", table=f"11x{rotary}xf32", positions="3xi32")
    angles = g.gather(g["table"], g["positions"])
    turned = g.add(RotateOp(g.map("neg", g["x"]), angles, heads=3, head_dim=20, rotary_dim=rotary, style=style))
    compiled = compile_function(g.returns(turned), schedules=columns)
    assert compiled.skeletons == ["row"]
    agree(compiled, g.inputs(positions=i32([10, 0, 3])))


@pytest.mark.parametrize("sequences", [1, 3, 4])
def test_row_slots_and_scatters(sequences: int) -> None:
    """Keys and values to shuffled blocks; rows past the last sequence go to the null block; everything else keeps its NaN."""
    starts = {1: [0, 5], 3: [0, 2, 2, 5], 4: [0, 2, 2, 4, 5]}[sequences]
    positions = {1: [6, 7, 8, 9, 10], 3: [3, 4, 0, 1, 2], 4: [3, 4, 0, 1, 11]}[sequences]
    g = Graph(
        k="7x12xf16",
        v="7x12xf32",
        positions="7xi32",
        query_start=f"{sequences + 1}xi32",
        block_table=f"{sequences}x3xi32",
        cache="?x2x3x4x4xf16",
    )
    slots = g.add(SlotsOp(g["positions"], g["query_start"], g["block_table"], block=4))
    keyed = g.add(ScatterOp(g["k"], g["cache"], slots, 0))
    both = g.add(ScatterOp(g.cast(g["v"], f16), keyed, slots, 1))
    compiled = compile_function(g.returns(slots, both), ties={1: 5})
    assert "row" in compiled.skeletons
    tables = i32([[8, 2, 11], [1, 9, 4], [7, 3, 5], [10, 6, 12]])[:sequences]
    given = g.inputs(positions=i32([*positions, 99, 99]), query_start=i32(starts), block_table=tables)
    cache = torch.full((13, 2, 3, 4, 4), NAN, dtype=torch.float16)
    given["cache.0"] = cache
    slots_of, written = compiled.expected({name: value.clone() for name, value in given.items()})
    assert len(set(slots_of[:5].tolist())) == 5 and slots_of[5:].tolist() == [0, 0]
    assert not written.isnan().all() and written[1:].isnan().sum() == written[1:].numel() - 5 * 24
    given["k"][6], given["v"][6] = given["k"][5], given["v"][5]  # both land in one slot, in whatever order
    agree(compiled, given)


EDGES = [0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 3.1, -4.2, 11.0, -13.0, 90.0, -90.0, 1e-6]


@pytest.mark.parametrize("kind", sorted(SCALAR_RULES))
def test_every_scalar_rule(kind: str) -> None:
    """Over small, large, negative and zero numbers; where the meaning is NaN or infinite the rule agrees."""
    operands = len(inspect.signature(SCALAR_RULES[kind]).parameters) - 1
    g = Graph(x="13x13xf32", y="13x13xf32", z="13x13xf32")
    values = [g["x"], g["y"], g["z"]][:operands]
    x = torch.tensor(EDGES)
    given = g.inputs(x=x.expand(13, 13).contiguous(), y=x[:, None].expand(13, 13).contiguous(), z=torch.arange(169.0).view(13, 13))
    compiled = compile_function(g.returns(g.map(kind, *values)))
    (found,) = compiled.run(given)
    expected = SCALARS[kind](*[given[n] for n in "xyz"][:operands])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kind", sorted(REDUCTION_RULES))
@pytest.mark.parametrize("columns", [{}, {"row": {"columns": 16}}], ids=["whole rows", "rows in chunks"])
def test_every_reduction_rule(kind: str, columns: dict) -> None:
    g = Graph(x="4x37xf32")
    compiled = compile_function(g.returns(g.reduce(kind, g["x"])), schedules=columns)
    (expected,) = agree(compiled, g.inputs())
    assert torch.equal(expected, REDUCTIONS[kind](g.inputs()["x"]))


def test_rounding_is_to_nearest_even() -> None:
    values = torch.tensor([[1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -1 - 2.0**-9, 3.4e38, INF, NAN, 1e-40]])
    g = Graph(x="1x8xf32")
    compiled = compile_function(g.returns(g.cast(g["x"], bf16), g.cast(g["x"], f16)))
    with torch.inference_mode():
        for found, want in zip(compiled.run({"x": values}), (values.bfloat16(), values.half()), strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


# Contractions: one token (gemv) and several (mma)

SMALL_TILES = {"gemv": {"rows": 4, "k": 16}, "mma": {"m": 16, "n": 16, "k": 16}}
TOKENS = [1, 5, 33]


def contraction_schedules() -> list:
    return [
        pytest.param({}, id="chosen"),
        pytest.param({"gemv": {"rows": 4, "k": 16}, "mma": {"m": 16, "n": 16, "k": 16}}, id="small tiles"),
        pytest.param({"gemv": {"rows": 1, "k": 128}, "mma": {"m": 32, "n": 64, "k": 32}}, id="one weight row"),
        pytest.param({"gemv": {"rows": 8, "k": 32}, "mma": {"m": 16, "n": 32, "k": 64}}, id="some tiles"),
    ]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("k", [16, 100, 150], ids="k={}".format)
@pytest.mark.parametrize("schedules", contraction_schedules())
def test_contract_with_bias_and_residual(tokens: int, k: int, schedules: dict) -> None:
    """37 columns: one is left over by every tile. K = 150 takes more pieces of 16 than are written out."""
    g = Graph(x=f"{tokens}x{k}xf32", w=f"37x{k}xf32", bias="37xf32", r=f"{tokens}x37xf32")
    y = g.map("add", g.map("add", g.contract(g["x"], g["w"]), g["bias"]), g["r"])
    compiled = compile_function(g.returns(y), schedules=schedules)
    assert compiled.skeletons == ["gemv" if tokens == 1 else "mma"]
    agree(compiled, g.inputs())


@pytest.mark.parametrize("tokens", [16 * 16, 16 * 17, 16 * 33 - 5], ids=["all together", "two groups", "three groups, a tile too many"])
def test_many_tiles_of_tokens(tokens: int) -> None:
    """Sixteen tiles of tokens share the weights they read; more make groups, of which the last may reach past the tokens."""
    g = Graph(x=f"{tokens}x40xf32", w="37x40xf32", r=f"{tokens}x37xf32")
    compiled = compile_function(g.returns(g.map("add", g.contract(g["x"], g["w"]), g["r"])), schedules=SMALL_TILES)
    (bucket,) = compiled.manifest.buckets
    assert bucket.launches[0].grid == {256: (16, 3, 1), 272: (9, 3, 2), 523: (11, 3, 3)}[tokens]
    agree(compiled, g.inputs())


def few(tokens: int, n: int, k: int, splits: int) -> dict:
    """A schedule with weight rows down the product, one tile of tokens."""
    return {"mma": {"m": max(8, 1 << (tokens - 1).bit_length()), "n": n, "k": k, "swap": 1, "splits": splits}}


@pytest.mark.parametrize("tokens", [2, 5, 33])
@pytest.mark.parametrize("k", [64, 100, 150], ids="k={}".format)
@pytest.mark.parametrize(("n", "splits"), [(16, 1), (16, 2), (32, 3)])
def test_few_tokens_are_columns(tokens: int, k: int, n: int, splits: int) -> None:
    """Weight rows are the rows of the product; where programs share the columns of K, the last one adds up, once and for all tiles."""
    g = Graph(x=f"{tokens}x{k}xf16", w=f"37x{k}xf16", bias="37xf32", r=f"{tokens}x37xf32")
    y = g.map("add", g.map("add", g.contract(g["x"], g["w"]), g["bias"]), g["r"])
    compiled = compile_function(g.returns(y), schedules=few(tokens, n, 16, splits))
    (region,) = compiled.regions
    parts = [op for op in region.walk() if isinstance(op, ContractPartialOp)]
    trips = -(-k // 16)
    whole_runs = -(-trips // -(-trips // splits))  # of whole tiles: 4 tiles in 3 runs are 2 runs of 2
    assert [op.splits.value.data for op in parts] == ([whole_runs] if splits > 1 else [])
    (source,) = compiled.sources.values()
    assert ("tl.atomic_add" in source) == (splits > 1) and "tl.permute" in source
    agree(compiled, g.inputs())
    agree(compiled, g.inputs())


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("tokens", [3, 16])
def test_few_tokens_that_meet_and_turn(tokens: int, splits: int) -> None:
    """Two products side by side, a third one beside them whose pairs are turned: merged sums take the epilogue that whole ones do."""
    g = Graph(x=f"{tokens}x96xf16", w1="40x96xf16", w2="40x96xf16", w3="32x96xf16", table="9x16xf32", positions=f"{tokens}xi32")
    both = g.map("mul", g.map("silu", g.contract(g["x"], g["w1"])), g.contract(g["x"], g["w2"]))
    angles = g.gather(g["table"], g["positions"])
    turned = g.add(RotateOp(g.contract(g["x"], g["w3"]), angles, heads=2, head_dim=16, rotary_dim=16, style="paired"))
    compiled = compile_function(g.returns(g.cast(both, f16), turned), schedules=few(tokens, 16, 16, splits))
    assert len(compiled.regions) == 1
    agree(compiled, g.inputs(positions=i32([n % 9 for n in range(tokens)])), NARROW["f16"])


@pytest.mark.parametrize("tokens", [2, 19])
@pytest.mark.parametrize("k", [96, 100])
def test_a_norm_is_summed_up_beside_the_product(tokens: int, k: int) -> None:
    """The row scale of a norm, which is applied behind the product: x is read once for both, in one loop."""
    g = Graph(x=f"{tokens}x{k}xf16", w=f"37x{k}xf16")
    wide = g.float32(g["x"])
    mean = g.map("mul", g.reduce("sum", g.map("square", wide)), 1.0 / k)
    scale = g.map("rsqrt", g.map("add", mean, 1e-5))
    y = g.map("mul", g.contract(g["x"], g["w"]), scale)
    compiled = compile_function(g.returns(y), schedules=few(tokens, 16, 32, 1))
    (source,) = compiled.sources.values()
    assert source.count("tl.range(") + source.count(" in range(") == 1
    agree(compiled, g.inputs())


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_narrow_weights(tokens: int, element: str) -> None:
    """Products of narrow numbers are exact in float32, so only the order of sums differs before the one rounding."""
    g = Graph(x=f"{tokens}x90xf32", w=f"20x90x{element}", r=f"{tokens}x20x{element}")
    narrow = {"f16": f16, "bf16": bf16}[element]
    product = g.contract(g.cast(g["x"], narrow), g["w"])
    y = g.map("add", g.float32(g.cast(product, narrow)), g.float32(g["r"]))
    compiled = compile_function(g.returns(product, g.cast(y, narrow)), schedules=SMALL_TILES)
    assert len(compiled.regions) == 1
    product_found, _ = agree(compiled, g.inputs(), NARROW[element])
    (interpreted, _) = compiled.run(g.inputs())
    torch.testing.assert_close(interpreted, product_found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("schedules", contraction_schedules())
def test_contractions_that_meet(tokens: int, schedules: dict) -> None:
    """Gate and up are accumulated side by side."""
    g = Graph(x=f"{tokens}x70xf32", w1="37x70xf32", w2="37x70xf32", w3="37x70xf32")
    gate, up, third = (g.contract(g["x"], g[w]) for w in ("w1", "w2", "w3"))
    y = g.map("add", g.map("mul", g.map("silu", gate), up), third)
    compiled = compile_function(g.returns(y), schedules=schedules)
    assert len(compiled.regions) == 1
    agree(compiled, g.inputs())


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("schedules", contraction_schedules())
def test_a_prologue_that_is_infinite_past_the_last_column(tokens: int, schedules: dict) -> None:
    """x / scale is 0 / 0 where a tile sticks out of K: it must not meet the weights."""
    g = Graph(x=f"{tokens}x90xf32", scale="90xf32", w="37x90xf32")
    compiled = compile_function(g.returns(g.contract(g.map("div", g["x"], g["scale"]), g["w"])), schedules=schedules)
    assert [entry["kind"] for entry in compiled.entries("joined")] == ["prologue"]
    agree(compiled, g.inputs(scale=numbers([90], 5).abs() + 0.5))


def rotated(g: Graph, x: SSAValue, heads: int, rotary: int) -> SSAValue:
    return g.add(RotateOp(x, g.gather(g["table"], g["positions"]), heads=heads, head_dim=20, rotary_dim=rotary, style="paired"))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("rotary", [8, 20])
@pytest.mark.parametrize("schedules", contraction_schedules()[:2])
def test_projections_rotate_and_write_the_cache(tokens: int, rotary: int, schedules: dict) -> None:
    """Three components of different widths in one launch: q and k rotate, k and v go to the cache; x has a norm before it."""
    g = Graph(
        x=f"{tokens}x70xf32",
        wq="60x70xf32",
        wk="20x70xf32",
        wv="20x70xf32",
        bias="20xf32",
        table=f"50x{rotary}xf32",
        positions=f"{tokens}xi32",
        query_start="2xi32",
        block_table="1x4xi32",
        cache="?x2x1x16x20xf32",
    )
    x = g.norm(g["x"])
    q = rotated(g, g.contract(x, g["wq"]), 3, rotary)
    k = rotated(g, g.map("add", g.contract(x, g["wk"]), g["bias"]), 1, rotary)
    slots = g.add(SlotsOp(g["positions"], g["query_start"], g["block_table"], block=16))
    cache = g.add(ScatterOp(k, g["cache"], slots, 0))
    cache = g.add(ScatterOp(g.contract(x, g["wv"]), cache, slots, 1))
    schedules = {**schedules, **({"gemv": {"rows": 4, "k": 16}} if schedules else {})}
    compiled = compile_function(g.returns(q, cache), schedules=schedules, ties={1: 9})
    contracting = [r for r in compiled.regions if any(op.name == "tile.contract" for op in r.body.block.ops)]
    assert len(contracting) == 1
    real = max(1, tokens - 2)
    given = g.inputs(positions=i32(list(range(tokens))), query_start=i32([0, real]), block_table=i32([[3, 1, 4, 2]]))
    given["cache.0"] = torch.full((6, 2, 1, 16, 20), NAN)
    values = compiled.expected({n: v.clone() for n, v in given.items()})
    assert values[1].isfinite().sum() >= 40 * real
    # Padding rows all write slot 0: there any of them may be the last.
    for level in ("reference", "interpret"):
        mine = {n: v.clone() for n, v in given.items()}
        found = compiled.run(mine, level)
        torch.testing.assert_close(found[0], values[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(mine["cache.0"][1:], values[1][1:], rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rotary", [64, 32])
def test_angles_of_several_heads_are_read_side_by_side(rotary: int) -> None:
    """For sm_90, where a tile holds several heads of 64: cosines and sines come 16 bytes at a time, though their columns begin again with each head."""
    g = Graph(x="256x256xbf16", w="1024x256xbf16", table=f"4096x{rotary}xf32", positions="256xi32")
    y = g.cast(g.contract(g["x"], g["w"]), f32)
    rotate = RotateOp(y, g.gather(g["table"], g["positions"]), heads=16, head_dim=64, rotary_dim=rotary, style="paired")
    compiled = compile_function(g.returns(g.cast(g.add(rotate), bf16)))
    assert len(compiled.regions) == 1
    (figure,) = cross_compile(compiled.sources, "sm_90")
    assert figure.spills == 0
    assert figure.wide_loads >= 2 and figure.loads - figure.wide_loads <= 32, figure


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    "schedules",
    [pytest.param({}, id="chosen"), pytest.param({"gemv": {"k": 16}, "mma": {"m": 16, "k": 16}}, id="K in a loop")],
)
@pytest.mark.parametrize("k", [100, 150])
def test_a_norm_before_and_a_norm_after(tokens: int, k: int, schedules: dict) -> None:
    """The first reduces x before the product (chunk by chunk where K is looped), the second the product, whose rows one program holds."""
    g = Graph(x=f"{tokens}x{k}xf32", gamma=f"{k}xf32", w=f"37x{k}xf32", r=f"{tokens}x37xf32")
    product = g.contract(g.map("mul", g.norm(g["x"]), g["gamma"]), g["w"])
    total = g.map("add", product, g["r"])
    compiled = compile_function(g.returns(total, g.norm(total)), schedules=schedules)
    kinds = [entry["kind"] for entry in compiled.entries("joined")]
    assert "epilogue" in kinds
    assert tokens > 1 or "prologue" in kinds
    agree(compiled, g.inputs())


def test_a_reduction_too_wide_for_a_program_stays_outside() -> None:
    g = Graph(x="1x20xf32", w="300x20xf32")
    compiled = compile_function(g.returns(g.norm(g.contract(g["x"], g["w"]))))
    assert compiled.skeletons == ["gemv", "row"]
    assert any("300 columns" in str(entry["reason"]) for entry in compiled.entries("refused"))
    agree(compiled, g.inputs())


def test_gathered_rows_are_contracted() -> None:
    """The rows that want logits are picked while x is loaded."""
    for rows in ([3], [6, 0, 3]):
        g = Graph(x="7x40xf32", rows=f"{len(rows)}xi32", w="21x40xf32")
        compiled = compile_function(g.returns(g.contract(g.gather(g["x"], g["rows"]), g["w"])), schedules=SMALL_TILES)
        agree(compiled, g.inputs(rows=i32(rows)))


@pytest.mark.parametrize(("tokens", "launches"), [(2, 1), (32, 2)])
def test_many_rows_of_x_are_summed_up_by_a_launch_of_their_own(tokens: int, launches: int) -> None:
    """Where the loop would take longer for the norm of its rows than for the weights: the columns of K can then be shared, too."""
    g = Graph(x=f"{tokens}x2048xf16", w="4096x2048xf16")
    mean = g.map("mul", g.reduce("sum", g.map("square", g.float32(g["x"]))), 1.0 / 2048)
    y = g.map("mul", g.contract(g["x"], g["w"]), g.map("rsqrt", g.map("add", mean, 1e-5)))
    compiled = compile_function(g.returns(y))
    assert len(compiled.manifest.buckets[0].launches) == launches


def test_a_warp_adds_up_rows_of_small_weights() -> None:
    """SmolLM2: what a region reads is latency, and two rows of gate and of up are as much as a warp holds; more than that takes more warps."""
    found: dict[str, dict] = {}
    for name in ("smollm2-135m", "llama-3.2-1b"):
        program = api.compile(
            MODELS / f"{name}.json",
            random_weights=0,
            buckets=[1],
            max_context=64,
            until="regions",
            pass_options={"choose-schedule": {"tuning": "off"}},
        )
        records = [r for r in program.ledger if r["verdict"] == "region" and r["schedule"] == "gemv"]
        found[name] = {tuple(r["parameters"][key] for key in ("rows", "warps")) for r in records}
    assert {(2, 1), (1, 1)} <= found["smollm2-135m"] and (2, 4) not in found["smollm2-135m"]
    assert all(warps >= 4 for _, warps in found["llama-3.2-1b"])

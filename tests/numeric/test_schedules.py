"""Every kernel skeleton, from tile ops through fusion, plan and printed Triton, interpreted, against the meaning of the ops.

Sizes are odd, and tiles often smaller than the cost model would choose, so that all loops, masks and branches are taken.
"""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import SSAValue

from lamella.dialects.tile import AttendMergeOp, AttendOp, RotateOp, SampleOp, ScatterOp, SlotsOp
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES, SCALAR_RULES
from lamella.semantics import REDUCTIONS, SCALARS
from tests.numeric.harness import Graph, agree, compile_function, numbers

NAN, INF = math.nan, math.inf
NARROW = {"f32": 1e-4, "f16": 2e-3, "bf16": 1.6e-2}
"""Tolerance where results are rounded to the type: two units in its last place."""


def i32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


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
    operands = 2 if kind in ("add", "sub", "mul", "div", "maximum", "minimum") else 1
    g = Graph(x="13x13xf32", y="13x13xf32")
    values = [g["x"], g["y"]][:operands]
    x = torch.tensor(EDGES)
    given = g.inputs(x=x.expand(13, 13).contiguous(), y=x[:, None].expand(13, 13).contiguous())
    compiled = compile_function(g.returns(g.map(kind, *values)))
    (found,) = compiled.run(given)
    expected = SCALARS[kind](*[given[n] for n in "xy"][:operands])
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
        pytest.param({"gemv": {"rows": 4, "k": 32, "programs": 3}, "mma": {"m": 16, "n": 32, "k": 64}}, id="tile by tile"),
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


# Attention


class Batch:
    """Sequences of (queries, context) over a cache with shuffled blocks, and NaN wherever no token lies."""

    def __init__(self, lengths: list[tuple[int, int]], *, heads: int, kv_heads: int, dim: int, block: int, blocks: int, padding: int = 0):
        self.real = sum(q for q, _ in lengths)
        tokens, sequences = self.real + padding, len(lengths)
        self.g = Graph(
            q=f"{tokens}x{heads * dim}xf32",
            cache=f"?x2x{kv_heads}x{block}x{dim}xf32",
            block_table=f"{sequences}x{blocks}xi32",
            query_start=f"{sequences + 1}xi32",
            context_len=f"{sequences}xi32",
        )
        self.longest = max(q for q, _ in lengths)
        self.sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "scale": dim**-0.5}
        order = (1 + torch.randperm(blocks * sequences, generator=torch.Generator().manual_seed(1))).tolist()
        cache = torch.full((blocks * sequences + 1, 2, kv_heads, block, dim), NAN)
        table = torch.zeros(sequences, blocks, dtype=torch.int32)
        for b, (_, context) in enumerate(lengths):
            for first in range(0, context, block):
                number = order.pop()
                table[b, first // block] = number
                filled = min(block, context - first)
                cache[number, :, :, :filled] = numbers([2, kv_heads, filled, dim], number)
        q = numbers([tokens, heads * dim], 7)
        q[self.real :] = NAN
        starts = [sum(q for q, _ in lengths[:b]) for b in range(sequences + 1)]
        self.given = {
            "q": q,
            "cache.0": cache,
            "block_table": table,
            "query_start": i32(starts),
            "context_len": i32([context for _, context in lengths]),
        }

    def attend(self) -> SSAValue:
        g = self.g
        return g.add(AttendOp(*(g[n] for n in ("q", "cache", "block_table", "query_start", "context_len")), **self.sizes))


SIZES = [
    pytest.param(6, 2, 16, 16, id="groups of 3, head 16"),
    pytest.param(4, 4, 20, 4, id="no groups, head 20, blocks of 4"),
    pytest.param(8, 2, 64, 16, id="groups of 4, head 64"),
    pytest.param(3, 1, 80, 32, id="groups of 3, head 80, blocks of 32"),
]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), SIZES)
@pytest.mark.parametrize("split", [False, True])
def test_decode_attention(heads: int, kv_heads: int, dim: int, block: int, split: bool) -> None:
    """One query a sequence, and an empty sequence; whole, or in chunks of which the short sequences leave some empty."""
    blocks = 256 // block if split else -(-30 // block)
    lengths = [(1, 29), (1, 1), (1, 16)] if not split else [(1, 200), (1, 1), (1, 77)]
    batch = Batch([*lengths, (0, 0)], heads=heads, kv_heads=kv_heads, dim=dim, block=block, blocks=blocks, padding=1)
    y = batch.g.map("mul", batch.attend(), 2.0)
    compiled = compile_function(
        batch.g.returns(batch.g.cast(y, f32)), longest_query=1, schedules={"attend": {"tile": 16}} if not split else {}
    )
    assert compiled.skeletons == (["attend", "merge"] if split else ["attend"])
    (found,) = agree(compiled, batch.given, rows=batch.real)
    assert found[: batch.real].isfinite().all()


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), SIZES)
@pytest.mark.parametrize("split", [False, True])
def test_ragged_attention(heads: int, kv_heads: int, dim: int, block: int, split: bool) -> None:
    """Queries that fill several tiles, chunks of a longer context, a decode, an empty sequence and rows of padding."""
    blocks = 256 // block if split else -(-31 // block)
    lengths = [(13, 13), (1, 61), (0, 0), (7, 40)] if split else [(13, 13), (1, 31), (0, 0), (7, 20)]
    batch = Batch(lengths, heads=heads, kv_heads=kv_heads, dim=dim, block=block, blocks=blocks, padding=3)
    group = heads // kv_heads
    tiles = {"queries": 16 // group, "rows": 16, "tile": 16}
    compiled = compile_function(
        batch.g.returns(batch.g.cast(batch.attend(), bf16)),
        longest_query=batch.longest,
        schedules={"attend": tiles if not split else {k: v for k, v in tiles.items() if k != "tile"}},
    )
    assert compiled.skeletons == (["attend", "merge"] if split else ["attend"])
    agree(compiled, batch.given, NARROW["bf16"], rows=batch.real)


def test_narrow_attention() -> None:
    """A float16 cache: probabilities are rounded to it before they meet the values, which the meaning in float32 does not do."""
    batch = Batch([(5, 40), (1, 33)], heads=4, kv_heads=2, dim=16, block=16, blocks=4)
    g = Graph(q="6x64xf16", cache="?x2x2x16x16xf16", block_table="2x4xi32", query_start="3xi32", context_len="2xi32")
    batch.g = g
    compiled = compile_function(g.returns(batch.attend()), longest_query=5)
    given = {n: v.half() if v.is_floating_point() else v for n, v in batch.given.items()}
    agree(compiled, given, NARROW["f16"])


@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_merge(chunks: int) -> None:
    """Chunks on different maxima, some empty; a number of chunks that is no power of two."""
    g = Graph(acc=f"5x3x{chunks}x20xf32", largest=f"5x3x{chunks}xf32", total=f"5x3x{chunks}xf32", r="5x60xf32")
    merged = g.map("add", g.add(AttendMergeOp(g["acc"], g["largest"], g["total"])), g["r"])
    compiled = compile_function(g.returns(merged))
    assert compiled.skeletons == ["merge"]
    given = g.inputs(largest=numbers([5, 3, chunks], 3, scale=30.0), total=numbers([5, 3, chunks], 4).abs() + 0.5)
    if chunks > 1:
        given["largest"][2, :, -1], given["total"][2, :, -1], given["acc"][2, :, -1] = -INF, 0.0, 0.0
    agree(compiled, given)


# Sampling


def test_sampling_draws_the_same_tokens() -> None:
    """Bisection and chunks against sorting: top-k, top-p, both, ties at the border, equal logits, NaN and -inf, at several temperatures."""
    settings = [
        *[(t, k, p) for t in (0.0, 0.6, 1.0, 3.0) for k in (0, 1, 5, 400) for p in (1.0, 0.9, 0.3, 0.0)],
        *[(1.0, k, p) for k in (2, 50, 299) for p in (0.5, 0.99)],
    ]
    rows, width = len(settings), 300
    g = Graph(
        logits=f"{rows}x{width}xf32",
        temperature=f"{rows}xf32",
        top_k=f"{rows}xi32",
        top_p=f"{rows}xf32",
        seed=f"{rows}xi32",
        position=f"{rows}xi32",
    )
    drawn = g.add(SampleOp(g["logits"], [g[n] for n in ("temperature", "top_k", "top_p", "seed", "position")]))
    compiled = compile_function(g.returns(drawn), schedules={"sample": {"columns": 64}})
    assert compiled.skeletons == ["sample"]
    logits = numbers([rows, width], 1, scale=3.0)
    logits[1::4] = (logits[1::4] / 2).round()  # many ties
    logits[2::8, ::7] = NAN
    logits[3::8, 1::2] = -INF
    logits[4::16] = 0.5
    logits[5, :] = -INF
    logits[5, 123] = 0.0
    temperature, top_k, top_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    given = g.inputs(
        logits=logits,
        temperature=temperature,
        top_k=top_k.int(),
        top_p=top_p,
        seed=torch.arange(rows, dtype=torch.int32) * 7919 - 5,
        position=torch.arange(rows, dtype=torch.int32),
    )
    (found,) = agree(compiled, given)
    assert len(set(found.tolist())) > 20
    greedy = logits.nan_to_num(-INF, INF, -INF).argmax(-1).int()
    assert torch.equal(found[:16], greedy[:16])


@pytest.mark.parametrize("width", [1, 64, 65])
def test_sampling_of_one_row(width: int) -> None:
    g = Graph(logits=f"1x{width}xf32", temperature="1xf32", top_k="1xi32", top_p="1xf32", seed="1xi32", position="1xi32")
    drawn = g.add(SampleOp(g["logits"], [g[n] for n in ("temperature", "top_k", "top_p", "seed", "position")]))
    compiled = compile_function(g.returns(drawn), schedules={"sample": {"columns": 64}})
    for seed in range(4):
        one = {"temperature": torch.tensor([1.5]), "top_k": i32([9]), "top_p": torch.tensor([0.9])}
        agree(compiled, g.inputs(seed, **one, seed=i32([seed]), position=i32([seed + 3])))

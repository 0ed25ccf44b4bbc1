"""The attend and sample skeletons, from tile ops through fusion, plan and printed Triton, interpreted, against the meaning of the ops.

Ragged batches over caches with shuffled blocks and NaN wherever no token lies; vocabularies in chunks, with ties, NaN and -inf.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from xdsl.dialects.builtin import bf16, f32
from xdsl.ir import SSAValue

from lamella.dialects.tile import AttendOp, SampleOp
from lamella.dialects.tile.sample import PARAMETERS
from lamella.pipeline import PassOptions
from lamella.semantics import DTYPES
from lamella.semantics.attention import by_heads
from tests.numeric.harness import NARROW, Graph, agree, compile_function, i32, numbers

NAN, INF = math.nan, math.inf


class Batch:
    """Sequences of (queries, context) over a cache with shuffled blocks, and NaN wherever no token lies."""

    def __init__(
        self,
        lengths: list[tuple[int, int]],
        *,
        heads: int,
        kv_heads: int,
        dim: int,
        block: int,
        blocks: int,
        padding: int = 0,
        sinks: bool = False,
        x: str = "f32",
        float8: bool = False,
    ):
        self.real = sum(q for q, _ in lengths)
        tokens, sequences = self.real + padding, len(lengths)
        self.g = Graph(
            q=f"{tokens}x{heads * dim}x{x}",
            cache=f"?x2x{kv_heads}x{block}x{dim}x{'f8' if float8 else x}",
            **({"scales": f"?x2x{kv_heads}x{block}x1xf32"} if float8 else {}),
            block_table=f"{sequences}x{blocks}xi32",
            query_start=f"{sequences + 1}xi32",
            context_len=f"{sequences}xi32",
            **({"sinks": f"{heads}xf32"} if sinks else {}),
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
            **({"sinks": numbers([heads], 9, scale=2.0)} if sinks else {}),
        }
        self.given["q"] = q.to(DTYPES[x])
        if float8:
            whole, scales = by_heads(cache.flatten(0, 3), 1)
            self.given |= {"cache.0": whole.view(cache.shape), "scales.0": scales.view(*cache.shape[:-1], 1)}

    def attend(self) -> SSAValue:
        g = self.g
        sinks = ["sinks"] if "sinks" in self.given else []
        operands = [g[n] for n in ("q", "cache", "block_table", "query_start", "context_len", *sinks)]
        return g.add(AttendOp(*operands, **self.sizes, scales=g.arguments.get("scales")))


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
    assert compiled.skeletons == ["attend"]
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
    assert compiled.skeletons == ["attend"]
    agree(compiled, batch.given, NARROW["bf16"], rows=batch.real)


@pytest.mark.parametrize("lengths", [[(0, 0), (1, 255)], [(1, 255), (0, 0)], [(0, 0), (0, 0), (1, 1)]])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_one_token_of_several_sequences(lengths: list[tuple[int, int]], group: int, split: bool) -> None:
    """The programs of sequences without a query store nothing, also where the result has a single row, which all of them would name."""
    batch = Batch(lengths, heads=2 * group, kv_heads=2, dim=20, block=4, blocks=64)
    assert batch.given["q"].shape[0] == 1
    options: PassOptions = {"choose-schedule": {"split-attention": split}}
    compiled = compile_function(batch.g.returns(batch.attend()), longest_query=1, pass_options=options)
    assert any("tl.atomic_add" in source for source in compiled.sources.values()) == split
    agree(compiled, batch.given)


def test_what_is_read_early_was_there_before_the_step() -> None:
    """The first tile of a split attention is loaded before the launches before it end: with the step's own keys and values missing there, and
    found only by the loads after the wait, nothing changes."""
    batch = Batch([(1, 200), (1, 1), (3, 77), (0, 0)], heads=4, kv_heads=2, dim=16, block=16, blocks=16, padding=1)
    compiled = compile_function(batch.g.returns(batch.g.cast(batch.attend(), f32)), longest_query=batch.longest)
    ((name, text),) = compiled.sources.items()
    whole = batch.given["cache.0"]
    before = whole.clone()
    for b, start in enumerate(batch.given["query_start"][:-1].tolist()):
        context = int(batch.given["context_len"][b])
        for position in range(context - (int(batch.given["query_start"][b + 1]) - start), context):
            before[batch.given["block_table"][b, position // 16], :, :, position % 16] = NAN
    late = re.sub(r"(new_(?:keys|values) = tl.load\(cache_ptr) \+ ", rf"\1 + {before.numel()} + ", text)
    assert late != text and "old_keys = tl.load(cache_ptr + " in late and "old_values = tl.load(cache_ptr + " in late
    twice = batch.given | {"cache.0": torch.cat([before, whole])}
    (found,) = replace(compiled, sources={name: late}).run(twice)
    (expected,) = compiled.expected(batch.given)
    torch.testing.assert_close(found[: batch.real], expected[: batch.real], rtol=0, atol=1e-5)


def test_narrow_attention() -> None:
    """A float16 cache: probabilities are rounded to it before they meet the values, which the meaning in float32 does not do."""
    batch = Batch([(5, 40), (1, 33)], heads=4, kv_heads=2, dim=16, block=16, blocks=4)
    g = Graph(q="6x64xf16", cache="?x2x2x16x16xf16", block_table="2x4xi32", query_start="3xi32", context_len="2xi32")
    batch.g = g
    compiled = compile_function(g.returns(batch.attend()), longest_query=5)
    given = {n: v.half() if v.is_floating_point() else v for n, v in batch.given.items()}
    agree(compiled, given, NARROW["f16"])


# Sampling


def test_sampling_draws_the_same_tokens() -> None:
    """Bisection and chunks against sorting: top-k, top-p, both, ties at the border, equal logits, NaN and -inf, at several temperatures."""
    settings = [
        *[(t, k, p, 0.0) for t in (0.0, 0.6, 1.0, 3.0) for k in (0, 1, 5, 400) for p in (1.0, 0.9, 0.3, 0.0)],
        *[(1.0, k, p, 0.0) for k in (2, 50, 299) for p in (0.5, 0.99)],
        *[(t, k, p, m) for t in (0.0, 0.6, 3.0) for k in (0, 5) for p in (1.0, 0.9) for m in (1e-3, 0.05, 0.5, 1.0)],
    ]
    rows, width = len(settings), 300
    g = Graph(
        logits=f"{rows}x{width}xf32",
        temperature=f"{rows}xf32",
        top_k=f"{rows}xi32",
        top_p=f"{rows}xf32",
        min_p=f"{rows}xf32",
        seed=f"{rows}xi32",
        position=f"{rows}xi32",
    )
    drawn = g.add(SampleOp(g["logits"], [g[n] for n in PARAMETERS]))
    compiled = compile_function(g.returns(drawn), schedules={"sample": {"columns": 128}})
    assert compiled.skeletons == ["sample"]
    logits = numbers([rows, width], 1, scale=3.0)
    logits[1::4] = (logits[1::4] / 2).round()  # many ties
    logits[2::8, ::7] = NAN
    logits[3::8, 1::2] = -INF
    logits[4::16] = 0.5
    logits[5, :] = -INF
    logits[5, 123] = 0.0
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    given = g.inputs(
        logits=logits,
        temperature=temperature,
        top_k=top_k.int(),
        top_p=top_p,
        min_p=min_p,
        seed=torch.arange(rows, dtype=torch.int32) * 7919 - 5,
        position=torch.arange(rows, dtype=torch.int32),
    )
    (found,) = agree(compiled, given)
    assert len(set(found.tolist())) > 20
    greedy = logits.nan_to_num(-INF, INF, -INF).argmax(-1).int()
    assert torch.equal(found[:16], greedy[:16])


@pytest.mark.parametrize("width", [1, 64, 65])
def test_sampling_of_one_row(width: int) -> None:
    g = Graph(logits=f"1x{width}xf32", temperature="1xf32", top_k="1xi32", top_p="1xf32", min_p="1xf32", seed="1xi32", position="1xi32")
    drawn = g.add(SampleOp(g["logits"], [g[n] for n in PARAMETERS]))
    compiled = compile_function(g.returns(drawn), schedules={"sample": {"columns": 64}})
    for seed in range(4):
        one = {"temperature": torch.tensor([1.5]), "top_k": i32([9]), "top_p": torch.tensor([0.9]), "min_p": torch.tensor([0.01])}
        agree(compiled, g.inputs(seed, **one, seed=i32([seed]), position=i32([seed + 3])))


@pytest.mark.parametrize("width", [8192 + 77, 3 * 8192 + 1])
def test_sampling_of_a_vocabulary_in_chunks(width: int) -> None:
    """Several programs find the largest logit of a chunk each; equal ones of two chunks, an empty chunk, and rows of NaN or -inf alone."""
    settings = [*[(0.0, 0, 1.0, 0.0)] * 4, (0.8, 40, 0.9, 0.0), (1.0, 0, 1.0, 0.0), (1.3, 0, 1.0, 0.02), (0.0, 0, 1.0, 1.0)]
    rows = len(settings)
    g = Graph(
        logits=f"{rows}x{width}xf32",
        temperature=f"{rows}xf32",
        top_k=f"{rows}xi32",
        top_p=f"{rows}xf32",
        min_p=f"{rows}xf32",
        seed=f"{rows}xi32",
        position=f"{rows}xi32",
    )
    drawn = g.add(SampleOp(g["logits"], [g[n] for n in PARAMETERS]))
    compiled = compile_function(g.returns(drawn))
    assert compiled.skeletons == ["sample", "sample"]
    logits = numbers([rows, width], 2)
    logits[0, width - 1] = 9.0
    logits[1, [300, 8191, 8192]] = 9.0
    logits[2, :] = NAN
    logits[3, :8192] = -INF
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    given = g.inputs(
        logits=logits,
        temperature=temperature,
        top_k=top_k.int(),
        top_p=top_p,
        min_p=min_p,
        seed=i32(range(rows)),
        position=i32(range(rows)),
    )
    (found,) = agree(compiled, given)
    assert found[:3].tolist() == [width - 1, 300, 0]

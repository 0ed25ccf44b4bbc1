"""The levels agree: a tiny Llama at every level of the compiler, and as interpreted Triton, against `transformers` in float32."""

import math
from dataclasses import replace

import pytest
import torch

from lamella.program import BLOCK, Shape
from lamella.runtime.generate import Session, StepResult
from lamella.runtime.sampling_parameters import SamplingParameters
from tests.models.tiny_llama import BASE, BIASED, GELU, PARTIAL, SMALL, WIDE, Tiny, text

LEVELS = ("specialized", "tiles", "regions", "reference", "interpret")
TOLERANCE = {"rtol": 0, "atol": 1e-4}
GREEDY_TOKENS = 24


def prefill(session: Session, ids: list[int], blocks: list[int], start: int = 0) -> StepResult:
    """The tokens of `ids` from `start` on, in one launch sequence that gives the logits of each."""
    count = len(ids) - start
    bucket = next(b for b in session.manifest.buckets if not b.advance and b.sequences == 1 and b.tokens >= count)
    rows = range(count) if bucket.logit_rows >= count else [count - 1]
    return session.step(ids[start:], range(start, len(ids)), [0, count], [len(ids)], [blocks], rows, bucket=bucket)


def decode(session: Session, ids: list[int], blocks: list[int]) -> StepResult:
    """The last token of `ids` by the decode bucket."""
    last = len(ids) - 1
    return session.step(ids[last:], [last], [0, 1], [len(ids)], [blocks], [0], bucket=session.decode_bucket)


@pytest.mark.parametrize("level", LEVELS)
def test_prefill_and_decode_equal_transformers(base: Tiny, level: str) -> None:
    session = base.session(level)
    for length in (1, 13, 70):
        ids = text(length + 1, length)
        expected = base.logits(ids)
        blocks = session.allocator.allocate(-(-len(ids) // BLOCK))
        result = prefill(session, ids[:length], blocks)
        torch.testing.assert_close(result.logits, expected[:length], **TOLERANCE)
        assert result.next.tolist() == expected[:length].argmax(-1).tolist()
        result = decode(session, ids, blocks)
        torch.testing.assert_close(result.logits[0], expected[length], **TOLERANCE)
        assert result.next.tolist() == [int(expected[length].argmax())]


LENGTHS, CHUNKS, LOGIT_ROWS = (17, 33, 70, 58), (1, 1, 37, 1), (0, 1, 38, 39, 20)
PAD = BASE.vocabulary - 1
"""A token whose embedding is NaN: the id of padding rows."""


@pytest.fixture(scope="module")
def ragged(base: Tiny) -> tuple[dict[str, torch.Tensor], list[list[int]], list[list[int]], list[torch.Tensor]]:
    """Weights with a NaN row, four sequences of tokens, their shuffled blocks, and caches that hold all but the new tokens of each."""
    embed = base.weights["embed"].clone()
    embed[PAD] = math.nan
    weights = {**base.weights, "embed": embed}
    session = base.session("reference", weights=weights)
    sequences = [text(length, seed) for seed, length in enumerate(LENGTHS)]
    tables = [session.allocator.allocate(-(-length // BLOCK)) for length in LENGTHS]
    assert any(blocks != sorted(blocks) for blocks in tables)
    for ids, new, blocks in zip(sequences, CHUNKS, tables, strict=True):
        prefill(session, ids[:-new], blocks)
    return weights, sequences, tables, list(session.executor.caches)


@pytest.mark.parametrize("level", LEVELS)
def test_one_ragged_step_equals_transformers(base: Tiny, ragged: tuple, level: str) -> None:
    """Three decodes and a chunk of 37 tokens, rows and a sequence of padding, NaN in every unused block and in what padding reads."""
    weights, sequences, tables, caches = ragged
    session = base.session(level, weights=weights)
    for mine, filled in zip(session.executor.caches, caches, strict=True):
        mine.copy_(filled)
    starts = [sum(CHUNKS[:i]) for i in range(len(CHUNKS) + 1)]
    padding = 48 - starts[-1]
    tokens = [t for ids, new in zip(sequences, CHUNKS, strict=True) for t in ids[-new:]]
    positions = [p for length, new in zip(LENGTHS, CHUNKS, strict=True) for p in range(length - new, length)]
    result = session.step(tokens + [PAD] * padding, positions + [99] * padding, starts, LENGTHS, tables, LOGIT_ROWS)
    expected = torch.cat([base.logits(ids)[-new:] for ids, new in zip(sequences, CHUNKS, strict=True)])[list(LOGIT_ROWS)]
    torch.testing.assert_close(result.logits, expected, **TOLERANCE)
    assert result.next.tolist() == expected.argmax(-1).tolist()
    owned = {0, *(block for blocks in tables for block in blocks)}
    unused = [b for b in range(session.executor.caches[0].shape[0]) if b not in owned]
    assert all(cache[unused].isnan().all() for cache in session.executor.caches)


VARIANTS = {
    "tied, biased, llama3": replace(BIASED, layers=2),
    "gelu, linear scaling": replace(GELU, layers=2),
    "partial rotary": PARTIAL,
    "norms before wide contractions": WIDE,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_transformers(variant: str) -> None:
    config = VARIANTS[variant]
    tiny = Tiny.of(config, [Shape.decode(), Shape(16, 1, 16, 16)], kernels=False)
    ids = text(60, 5, config.vocabulary)
    expected = tiny.logits(ids)
    for level in ("regions", "reference"):
        session = tiny.session(level)
        torch.testing.assert_close(session.forward_logits(ids), expected, **TOLERANCE)
        assert list(session.stream(ids[:16], 8)) == tiny.greedy(ids[:16], 8)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(BIASED, layers=1, hidden=48, ffn=24, vocabulary=67), id="tied, biased"),
        pytest.param(replace(PARTIAL, layers=1, hidden=48, ffn=24, vocabulary=67), id="partial rotary"),
        pytest.param(WIDE, id="norms before wide contractions"),
    ],
)
def test_variants_interpreted_equal_transformers(config) -> None:
    tiny = Tiny.of(config, [Shape.decode(), Shape(16, 1, 16, 16)])
    ids = text(20, 6, config.vocabulary)
    expected = tiny.logits(ids)
    session = tiny.session("interpret")
    blocks = session.allocator.allocate(2)
    torch.testing.assert_close(prefill(session, ids[:13], blocks).logits, expected[:13], **TOLERANCE)
    torch.testing.assert_close(decode(session, ids[:14], blocks).logits, expected[13:14], **TOLERANCE)
    torch.testing.assert_close(prefill(session, ids, blocks, start=14).logits, expected[14:], **TOLERANCE)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_types_differ_by_rounding_only(dtype: str) -> None:
    """The interpreter accumulates in another order, so that a value may round the other way: a few units in the last place of a layer."""
    tiny = Tiny.of(SMALL, [Shape.decode(), Shape(16, 1, 16, 16)], dtype=dtype)
    ids = text(17, 2, SMALL.vocabulary)
    found = []
    for level in ("reference", "interpret"):
        session = tiny.session(level)
        blocks = session.allocator.allocate(2)
        found.append(torch.cat([prefill(session, ids[:16], blocks).logits, decode(session, ids, blocks).logits]))
    loose = {"f16": 2e-3, "bf16": 3e-2}[dtype] * float(found[0].abs().max())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=loose)
    torch.testing.assert_close(found[0], tiny.logits(ids), rtol=0, atol=2 * loose)


def test_greedy_ids_are_those_of_transformers(small: Tiny) -> None:
    ids = text(9, 5, SMALL.vocabulary)
    expected = small.greedy(ids, GREEDY_TOKENS)
    assert len(set(expected)) > GREEDY_TOKENS // 3
    for level in LEVELS:
        # Interpreted kernels take a second a token, and the second block begins at the eighth.
        count = 10 if level == "interpret" else GREEDY_TOKENS
        assert list(small.session(level).stream(ids, count)) == expected[:count], level


SAMPLING = [
    (1.0, 0, 1.0, 0),
    (1.0, 0, 1.0, 1),
    (0.7, 12, 1.0, 1),
    (1.3, 0, 0.8, 2, 0.1),
    (2.0, 30, 0.9, 2**31 - 1),
    (0.0, 3, 0.5, 7),
]


def test_every_executor_draws_the_same_ids(small: Tiny) -> None:
    """One step whose rows sample each in its own way (twice each, so that their positions differ), then a stream with a seed."""
    ids = text(12, 4, SMALL.vocabulary)
    settings = [SamplingParameters(*values) for values in SAMPLING * 2]
    drawn = []
    for level in ("specialized", "reference", "interpret"):
        session = small.session(level)
        blocks = session.allocator.allocate(1)
        result = session.step(ids, range(12), [0, 12], [12], [blocks], range(12), settings)
        drawn.append((result.next.tolist(), list(session.stream(ids, 4, settings[4]))))
    assert drawn[0] == drawn[1] == drawn[2]
    greedy = small.logits(ids).argmax(-1).tolist()
    assert [drawn[0][0][row] for row in (5, 11)] == [greedy[row] for row in (5, 11)]
    assert drawn[0][0] != greedy


def test_block_tables_and_program_order_change_nothing(small: Tiny) -> None:
    """Bit for bit: where blocks lie and which program runs first are no part of the result."""
    ids = text(18, 7, SMALL.vocabulary)
    for level, seeds in (("reference", ((None, 0), (1, 0), (2, 0))), ("interpret", ((None, 0), (1, 5)))):
        results = []
        for block_seed, shuffle_seed in seeds:
            session = small.session(level, block_seed=block_seed, shuffle_seed=shuffle_seed)
            blocks = session.allocator.allocate(2)
            prefill(session, ids[:16], blocks)
            results.append((blocks, torch.cat([decode(session, ids[:17], blocks).logits, decode(session, ids, blocks).logits])))
        assert len({tuple(blocks) for blocks, _ in results}) == len(seeds)
        assert all(torch.equal(logits, results[0][1]) for _, logits in results)

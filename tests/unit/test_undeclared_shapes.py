"""Any shape runs on the buckets that were declared: in pieces, in chunks, or in the company of empty sequences; and means the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from random import Random

import pytest
import torch

from lamella.runtime.executor import make_executor
from lamella.runtime.generate import Session
from lamella.runtime.manifest import Manifest
from lamella.runtime.memory import BlockAllocator
from lamella.runtime.ragged import Ragged, pieces
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.runtime.weights import load_weights
from tests.unit import tiny_program
from tests.unit.tiny_program import BLOCK, VOCABULARY, FixedSource, logits_of

WEIGHTS = tiny_program.weights()
Key = tuple[int, int, int, int, bool]
DECODE, PREFILL, FOUR, SHORT = (1, 1, 1, 1, True), (8, 1, 8, 1, False), (12, 4, 8, 4, False), (3, 1, 3, 1, False)


def session(*buckets: Key) -> Session:
    manifest = Manifest.from_json(tiny_program.manifest(buckets))
    store = load_weights(manifest, FixedSource(WEIGHTS))
    executor = make_executor(manifest, store, executor="reference", device="cpu", cache_tokens=40 * BLOCK)
    return Session(executor, BlockAllocator(executor.caches[0].shape[0], shuffle_seed=1))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("buckets", [(PREFILL,), (SHORT,), (FOUR,), (DECODE,), (FOUR, (4, 4, 1, 4, True)), ((4, 4, 1, 4, True),)])
def test_one_sequence_runs_on_whatever_there_is(buckets: Sequence[Key], steps: int) -> None:
    """Without a decode bucket, with buckets of several sequences alone, and longer than any of them."""
    hot = SamplingParameters(temperature=1.5, seed=3)
    whole = session(PREFILL, SHORT, DECODE)
    for ids in ([5], [i * i % VOCABULARY for i in range(19)]):
        expected = list(whole.stream(ids, 10, hot, ignore_eos=True))
        assert list(session(*buckets).stream(ids, 10, hot, ignore_eos=True, steps_per_replay=steps)) == expected
        torch.testing.assert_close(session(*buckets).forward_logits(ids), logits_of(ids, WEIGHTS).float())


@pytest.mark.parametrize("buckets", [(PREFILL,), (SHORT, DECODE), (FOUR,), (FOUR, PREFILL, DECODE)])
@pytest.mark.parametrize("seed", range(6))
def test_any_ragged_batch_runs(seed: int, buckets: Sequence[Key]) -> None:
    """Sequences of random lengths, some of them begun before, with logits of random rows."""
    random = Random(seed)
    runner = session(*buckets)
    count = random.randint(1, 7)
    sequences = [[random.randrange(VOCABULARY) for _ in range(random.randint(1, 19))] for _ in range(count)]
    tables = [runner.allocator.allocate(5) for _ in sequences]
    cuts = [random.randrange(len(ids)) for ids in sequences]
    for ids, table, cut in zip(sequences, tables, cuts, strict=True):
        if cut:
            runner.step(ids[:cut], range(cut), [0, cut], [cut], [table], [])
    tokens = [t for ids, cut in zip(sequences, cuts, strict=True) for t in ids[cut:]]
    positions = [p for ids, cut in zip(sequences, cuts, strict=True) for p in range(cut, len(ids))]
    starts = [0, *accumulate(len(ids) - cut for ids, cut in zip(sequences, cuts, strict=True))]
    expected = torch.cat([logits_of(ids, WEIGHTS)[cut:] for ids, cut in zip(sequences, cuts, strict=True)]).float()
    rows = random.sample(range(len(tokens)), random.randint(0, len(tokens)))
    result = runner.step(tokens, positions, starts, [len(ids) for ids in sequences], tables, rows)
    torch.testing.assert_close(result.logits, expected[rows])
    assert result.next.tolist() == expected[rows].argmax(-1).tolist()


def test_each_row_is_drawn_as_it_was_asked_to_be() -> None:
    """Eight sequences of one token on buckets of four, sampled differently; as one after the other."""
    runner = session(FOUR, PREFILL)
    tables = [runner.allocator.allocate(1) for _ in range(8)]
    sampling = [SamplingParameters(temperature=0.5 + i, top_k=i, min_p=i / 20, seed=i) for i in range(8)]
    tokens = list(range(8))
    together = runner.step(tokens, [0] * 8, range(9), [1] * 8, tables, tokens[::-1], sampling)
    for i in range(8):
        alone = runner.step([7 - i], [0], [0, 1], [1], [tables[7 - i]], [0], [sampling[i]])
        assert alone.next.tolist() == [int(together.next[i])]


def test_pieces_hold_all_tokens_once_and_never_more_than_fits() -> None:
    lengths = [2, 1, 0, 9, 4, 4]
    starts = [0, *accumulate(lengths)]
    count = starts[-1]
    rows = [3, 3, 11, 19, 0]
    sampling = [SamplingParameters(seed=i) for i in range(len(rows))]
    contexts = [n + 5 for n in lengths]
    each = [n for n, length in zip(contexts, lengths, strict=True) for _ in range(length)]
    batch = Ragged(range(count), [*range(count)], starts, contexts, [[i] for i in range(6)], rows, sampling, each)

    class Span:
        def __init__(self, start: int, end: int) -> None:
            self.start, self.end = start, end

    def chunks(length: int, wanted: Sequence[int]) -> list[Span]:
        assert (length, wanted) == (9, [0, 8])
        return [Span(0, 4), Span(4, 8), Span(8, 9)]

    found = list(pieces(batch, lambda sizes: sizes[0] <= 4 and sizes[1] <= 3, chunks))
    assert [list(part.tokens) for part, _ in found] == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10], [11], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert [own for _, own in found] == [[4], [0, 1], [], [2], [], [3]]
    assert [list(part.query_start) for part, _ in found] == [[0, 2, 3, 3], [0, 4], [0, 4], [0, 1], [0, 4], [0, 4]]
    assert [list(part.context_len) for part, _ in found] == [[7, 6, 5], [9], [13], [14], [9], [9]]
    assert [list(part.logit_rows) for part, _ in found] == [[0], [0, 0], [], [0], [], [3]]
    assert all(set(part.text_length) == {14} for part, _ in found[1:4])
    for part, own in found:
        assert [s.seed for s in part.sampling] == own
        assert part.sizes[2] == max(b - a for a, b in pairwise(part.query_start))

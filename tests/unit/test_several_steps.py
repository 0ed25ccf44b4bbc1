"""Several decode steps a launch: the tokens are those of one step at a time, whatever stops them, and what overshoots leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lamella.errors import PromptError
from lamella.runtime.executor import MemoryExecutor, make_executor
from lamella.runtime.generate import MOST_STEPS, Session, step_count
from lamella.runtime.manifest import Bucket, Manifest
from lamella.runtime.memory import BlockAllocator
from lamella.runtime.reference import ReferenceExecutor
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.runtime.weights import load_weights
from tests.unit import tiny_program
from tests.unit.tiny_program import BLOCK, BLOCKS, VOCABULARY, FixedSource

CONTEXT = BLOCK * BLOCKS
WEIGHTS = tiny_program.weights()
HOT = SamplingParameters(temperature=1.5, top_k=7, top_p=0.95, min_p=0.05, seed=11)


class Watched(ReferenceExecutor):
    """Notes how many steps each launch ran, and the positions that were reached."""

    def __init__(self, inner: MemoryExecutor) -> None:
        super().__init__(inner.memory)
        self.launched: list[int] = []
        self.reached = 0

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        super().launch(bucket, steps)
        if bucket.advance:
            self.launched.append(steps)
            # The position of the step after the last.
            self.reached = max(self.reached, int(self.inputs(bucket)["positions"][0]))


def session(seed: int | None = 1) -> Session:
    """On the reference executor; cache blocks come in an order of `seed`."""
    manifest = Manifest.from_json(tiny_program.manifest())
    made = make_executor(manifest, load_weights(manifest, FixedSource(WEIGHTS)), executor="reference", device="cpu")
    assert isinstance(made, MemoryExecutor)
    executor = Watched(made)
    return Session(executor, BlockAllocator(executor.caches[0].shape[0], shuffle_seed=seed))


def generated(
    runner: Session,
    prompt: Sequence[int],
    count: int | None,
    steps: int,
    sampling: SamplingParameters = HOT,
    stops: Sequence[int] | None = None,
) -> list[int]:
    tokens = runner.stream(prompt, count, sampling, stop_ids=stops, ignore_eos=stops is None, steps_per_replay=steps)
    return list(tokens)


@pytest.mark.parametrize("sampling", [SamplingParameters(), HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 27, 64])
def test_tokens_are_those_of_one_step_at_a_time(steps: int, sampling: SamplingParameters) -> None:
    expected = generated(session(), [4, 0, 9], 28, 1, sampling)
    for count in (1, 2, 3, steps, steps + 1, steps + 2, 28):
        if count <= 28:
            assert generated(session(), [4, 0, 9], count, steps, sampling) == expected[:count]


def test_fewer_steps_than_a_group_run_one_by_one() -> None:
    runner = session()
    generated(runner, [4, 0, 9], 14, 5)
    assert isinstance(runner.executor, Watched)
    assert runner.executor.launched == [5, 5, 1, 1, 1]


@pytest.mark.parametrize("steps", [1, 4, 7])
@pytest.mark.parametrize("length", [1, 17, 30, 31])
def test_no_step_goes_past_the_context(length: int, steps: int) -> None:
    prompt = [i * i % VOCABULARY for i in range(length)]
    runner = session()
    assert generated(runner, prompt, None, steps) == generated(session(), prompt, None, 1)
    assert isinstance(runner.executor, Watched)
    # The last new token is never run, so that the step after the last would be at the last position.
    assert runner.executor.reached in (0, CONTEXT - 1)


def first_places(tokens: Sequence[int]) -> dict[int, int]:
    """Where each id comes first."""
    return {token: i for i, token in reversed(list(enumerate(tokens)))}


def test_a_stop_at_every_place_of_a_group() -> None:
    seen: set[int] = set()
    for seed in range(12):
        sampling = SamplingParameters(temperature=3.0, seed=seed)
        whole = generated(session(), [1, 2], 25, 1, sampling)
        for stop, place in first_places(whole).items():
            seen.add(place)
            for steps in (4, 8):
                runner = session()
                free = runner.allocator.available
                assert generated(runner, [1, 2], 25, steps, sampling, [stop]) == whole[:place]
                assert runner.allocator.available == free and not runner.busy
    assert seen >= set(range(9))


@pytest.mark.parametrize("place", range(9))
def test_steps_past_a_stop_leave_no_trace(place: int) -> None:
    """A conversation that goes on in the same blocks, one group after a stop, reads nothing that the thrown-away steps have written."""
    prompt, more = [4, 0, 9, 2, 6], [3, 8]
    whole = generated(session(), prompt, 20, 1)
    runner = session(seed=None)
    tokens = runner.stream(prompt, 20, HOT, ignore_eos=True, steps_per_replay=8)
    said = [next(tokens) for _ in range(place + 1)]
    assert said == whole[: place + 1]
    tokens.close()
    longer = [*prompt, *said, *more]
    # Blocks are given back in an order and taken in its reverse: now the same positions lie elsewhere among what was overshot.
    assert generated(runner, longer, 9, 8) == generated(session(), longer, 9, 1)
    again = runner.forward_logits(longer)
    torch.testing.assert_close(again, tiny_program.logits_of(longer, WEIGHTS).float())


@pytest.mark.parametrize("overshoot", [1, 3, 8])
def test_a_sequence_taken_back_goes_on_as_if_nothing_had_been_overshot(overshoot: int) -> None:
    """In its own blocks, whose cells behind the position hold keys and values of tokens that were never said."""
    prompt, rest = [4, 0, 9], 14
    whole = generated(session(), prompt, rest, 1)
    runner = session()
    bucket = runner.decode_bucket
    assert bucket is not None
    with runner._sequence(CONTEXT) as blocks:
        first = runner._prefill(prompt, blocks, HOT)
        run = runner._begin_decode(prompt, blocks, HOT, first)
        kept = run(5)[:, 0].tolist()
        assert [whole[0], *kept] == whole[:6]
        run(overshoot)
        # Back to the token of place 5, with another token of no meaning where the overshot ones lie.
        inputs = runner.executor.inputs(bucket)
        assert inputs["positions"].tolist() == [len(prompt) + 5 + overshoot]
        assert inputs["context_len"].tolist() == [len(prompt) + 6 + overshoot]
        run = runner._begin_decode([*prompt, *whole[:5]], blocks, HOT, torch.tensor([whole[5]], dtype=torch.int32))
        assert run(8)[:, 0].tolist() == whole[6:14]


def test_what_several_steps_sample_is_kept_until_it_is_read() -> None:
    runner = session()
    bucket = runner.decode_bucket
    assert bucket is not None
    with runner._sequence(CONTEXT) as blocks:
        run = runner._begin_decode([5], blocks, HOT, runner._prefill([5], blocks, HOT))
        both = [run(3).clone(), run(1).clone(), run(2).clone()]
    assert [tokens.shape for tokens in both] == [(3, 1), (1, 1), (2, 1)]
    assert torch.cat(both)[:, 0].tolist() == generated(session(), [5], 7, 1)[1:]


@pytest.mark.parametrize("steps", [0, -1, MOST_STEPS + 1])
def test_bad_numbers_of_steps(steps: int) -> None:
    with pytest.raises(PromptError, match=f"bad steps_per_replay, expected 1 to 64, got {steps}"):
        session().stream([1], 1, steps_per_replay=steps)
    assert (step_count(None, 8), step_count(3, 8)) == (8, 3)

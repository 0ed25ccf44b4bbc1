"""Repetition penalties: the ids of `transformers`, on every executor, however many steps run together."""

from __future__ import annotations

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

import lamella
from lamella.errors import PromptError
from lamella.program import Shape
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.tools.step_inputs import step_inputs
from tests.models.tiny_llama import SMALL, Tiny, text

MODEL = "benchmarks/models/tiny.json"
SHAPES = [Shape.decode(), Shape(16, 1, 16, 16)]


@pytest.fixture(scope="module")
def penalized() -> Tiny:
    return Tiny.of(SMALL, SHAPES, penalties=True)


def ids_of_transformers(tiny: Tiny, prompt: list[int], count: int, penalty: float) -> list[int]:
    """What transformers continues the prompt with, greedily; no token ends it."""
    ids, processor = torch.tensor([prompt]), RepetitionPenaltyLogitsProcessor(penalty)
    with torch.no_grad():
        for _ in range(count):
            scores = processor(ids, tiny.model(ids).logits[:, -1])
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.1, 2.5])
@pytest.mark.parametrize("length", [1, 15, 37])
def test_ids_are_those_of_transformers(penalized: Tiny, length: int, penalty: float) -> None:
    """A prompt of one token, one bucket and several chunks; each answer changes what the next may be."""
    prompt = text(length, seed=length, vocabulary=SMALL.vocabulary)
    expected = ids_of_transformers(penalized, prompt, 30, penalty)
    sampling = SamplingParameters(repetition_penalty=penalty)
    session = penalized.session("reference")
    for steps in (1, 7):
        assert list(session.stream(prompt, 30, sampling, ignore_eos=True, steps_per_replay=steps)) == expected
    if penalty != 1.0:
        assert expected != ids_of_transformers(penalized, prompt, 30, 1.0)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_interpreted_kernels_give_the_ids_of_the_reference(penalized: Tiny, temperature: float) -> None:
    prompt = text(20, seed=2, vocabulary=SMALL.vocabulary)
    sampling = SamplingParameters(temperature=temperature, min_p=0.02, repetition_penalty=1.4, seed=5)
    expected = list(penalized.session("reference").stream(prompt, 9, sampling, ignore_eos=True))
    for steps in (1, 4):
        assert list(penalized.session("interpret").stream(prompt, 9, sampling, ignore_eos=True, steps_per_replay=steps)) == expected


def test_a_penalty_is_forgotten_with_its_text(penalized: Tiny, small: Tiny) -> None:
    """Without a penalty the program gives what one without penalties gives, also right after a text that had one."""
    prompt = text(9, seed=1, vocabulary=SMALL.vocabulary)
    session, plain = penalized.session("reference"), small.session("reference")
    expected = list(plain.stream(prompt, 12, ignore_eos=True))
    first = list(session.stream(prompt, 12, SamplingParameters(repetition_penalty=2.0), ignore_eos=True))
    assert list(session.stream(prompt, 12, ignore_eos=True)) == expected != first
    assert torch.equal(session.forward_logits(prompt), plain.forward_logits(prompt))


def test_a_program_without_a_decode_bucket(penalized: Tiny) -> None:
    alone = Tiny.of(SMALL, [Shape(16, 1, 16, 16)], kernels=False, penalties=True)
    prompt = text(18, seed=6, vocabulary=SMALL.vocabulary)
    sampling = SamplingParameters(repetition_penalty=1.6)
    expected = ids_of_transformers(penalized, prompt, 12, 1.6)
    assert list(alone.session("reference").stream(prompt, 12, sampling, ignore_eos=True)) == expected


def test_penalties_cost_no_launch(penalized: Tiny, small: Tiny) -> None:
    """Logits are penalized where the head computes them; the new token is marked beside the positions, in place."""
    (decode, _), (plain, _) = penalized.program.manifest.buckets, small.program.manifest.buckets  # pyright: ignore[reportOptionalMemberAccess]
    assert len(decode.launches) == len(plain.launches)
    last = decode.launches[-1]
    assert {(a.name, a.pool) for a in last.args} >= {("factors", "input"), ("positions", "input")}
    assert sum(a.name == "factors" for a in last.args) == 2


def test_steps_are_measured_with_penalties(penalized: Tiny) -> None:
    """Benchmarks and `lamella tune` have a number for every input, of its shape."""
    manifest = penalized.program.manifest
    assert manifest is not None
    executor = penalized.session("reference").executor
    for bucket in manifest.buckets:
        made = step_inputs(manifest, bucket, context=bucket.tokens)
        assert {name: tensor.shape for name, tensor in executor.inputs(bucket).items()} == {
            i.name: made[i.name].shape for i in bucket.inputs
        }


def test_what_cannot_be_penalized_says_so(small: Tiny, penalized: Tiny) -> None:
    sampling = SamplingParameters(repetition_penalty=1.2)
    with pytest.raises(
        PromptError, match=r"compiled without penalties, got repetition_penalty 1\.2 \(load the model with penalties=True\)"
    ):
        small.session("reference").stream([3], 2, sampling)
    with pytest.raises(PromptError, match="a step knows only its own tokens"):
        penalized.session("reference").step([3], [0], [0, 1], [1], [[1]], [0], [sampling])


def test_through_the_api() -> None:
    options = {"random_weights": 0, "device": "cpu", "dtype": "float32", "max_context": 64, "buckets": [1, 16]}
    model = lamella.load(MODEL, penalties=True, **options)
    plain = lamella.load(MODEL, **options)
    asked = {"max_new_tokens": 16, "ignore_eos": True}
    expected = plain.generate([5, 6], **asked).output_ids
    assert model.generate([5, 6], **asked).output_ids == expected
    found = model.generate([5, 6], repetition_penalty=100.0, **asked).output_ids
    assert len(set(found)) == 16 and not {5, 6} & set(found)
    assert len(set(expected)) < 16


@pytest.mark.gpu
def test_penalties_on_a_gpu() -> None:
    """With graphs, in groups and one by one, and without: the ids of the reference executor."""
    options = {"random_weights": 0, "dtype": "float32", "max_context": 256, "buckets": [1, 16], "penalties": True}
    reference = lamella.load(MODEL, device="cpu", executor="reference", **options)
    prompt = list(range(3, 40))
    for given in ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.2, "temperature": 0.8, "min_p": 0.05, "seed": 7}):
        expected = reference.generate(prompt, 120, ignore_eos=True, **given).output_ids
        for graphs in (True, False):
            tried = lamella.load(MODEL, device="cuda", graphs=graphs, **options)
            for steps in (1, 8):
                assert tried.generate(prompt, 120, ignore_eos=True, steps_per_replay=steps, **given).output_ids == expected

"""Several decode steps a launch on compiled models: the same ids as one at a time, at every level that runs, and through API and command."""

from __future__ import annotations

import json

import pytest

from lamella import api
from lamella.errors import PromptError
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.tools import cli
from tests.models.tiny_llama import SMALL, Tiny, text

SAMPLING = {"greedy": SamplingParameters(), "sampled": SamplingParameters(temperature=1.2, top_k=9, top_p=0.9, seed=3)}
MODEL = "benchmarks/models/tiny.json"


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("level", ["regions", "reference", "interpret"])
def test_every_level_gives_the_same_ids(small: Tiny, level: str, sampling: SamplingParameters) -> None:
    prompt = text(15, seed=4, vocabulary=SMALL.vocabulary)
    count, groups = (5, (3,)) if level == "interpret" else (15, (4, 14))
    expected = list(small.session("reference").stream(prompt, count, sampling, ignore_eos=True))
    for steps in groups:
        assert list(small.session(level).stream(prompt, count, sampling, ignore_eos=True, steps_per_replay=steps)) == expected


def test_a_kernel_finds_the_token_where_the_step_before_left_it(small: Tiny) -> None:
    """Nothing is copied between interpreted steps: a wrong address would show as other ids, or as the ids of a step before."""
    runner = small.session("interpret")
    bucket = runner.decode_bucket
    assert bucket is not None
    prompt = text(5, seed=8, vocabulary=SMALL.vocabulary)
    expected = list(small.session("reference").stream(prompt, 6, ignore_eos=True))
    with runner._sequence(40) as blocks:
        run = runner._begin_decode(prompt, blocks, SAMPLING["greedy"], runner._prefill(prompt, blocks, SAMPLING["greedy"]))
        assert run(3)[:, 0].tolist() == expected[1:4]
        assert run(2)[:, 0].tolist() == expected[4:6]
        assert runner.executor.inputs(bucket)["tokens"].tolist() == expected[5:6]
        assert runner.executor.inputs(bucket)["positions"].tolist() == [5 + 5]
        assert runner.executor.output(bucket, "next").tolist() == expected[5:6]


@pytest.fixture(scope="module")
def model() -> api.Model:
    return api.load(MODEL, random_weights=0, device="cpu", dtype="float32", max_context=64, buckets=[1, 16], steps_per_replay=5)


def test_a_model_keeps_the_number_it_was_loaded_with(model: api.Model) -> None:
    assert model.steps_per_replay == 5
    assert api.load(MODEL, random_weights=0, device="cpu", max_context=32, buckets=[1]).steps_per_replay == 1
    made = [
        model.generate([3, 4], 17, temperature=0.8, seed=2, ignore_eos=True, steps_per_replay=n).output_ids for n in (None, 1, 2, 16, 64)
    ]
    assert len(set(made)) == 1 and len(made[0]) == 17
    with pytest.raises(PromptError, match="bad steps_per_replay, expected 1 to 64, got 65"):
        api.load(MODEL, random_weights=0, device="cpu", steps_per_replay=65)


def test_stop_strings_end_inside_a_group(model: api.Model) -> None:
    """The ids after the one that completes a stop string are thrown away with their steps."""
    from lamella.runtime.text import Completion

    class Numbers:
        def stream(self) -> Numbers:
            return self

        def push(self, token: int) -> str:
            return f"{token};"

        def flush(self) -> str:
            return ""

    whole = model.generate([3, 4], 17, temperature=0.8, seed=2, ignore_eos=True).output_ids
    sampling = SamplingParameters(temperature=0.8, seed=2)
    for place in range(3, 14):
        stop = f";{whole[place]};"
        expected = next(i for i in range(1, 17) if whole[i] == whole[place])
        completion = Completion(model.session, Numbers(), [3, 4], 17, sampling, stop_strings=[stop], ignore_eos=True, steps_per_replay=6)
        made = completion.generation
        assert (made.output_ids, made.stop_reason) == (whole[: expected + 1], "stop_string")
        assert not model.session.busy


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "generate",
        MODEL,
        "--random-weights",
        "0",
        "--prompt-ids",
        "3,4",
        "--max-new-tokens",
        "9",
        "--ignore-eos",
        "--max-context",
        "64",
    ]
    args += ["--device", "cpu", "--dtype", "float32", "--json"]
    found: list[list[int]] = []
    for steps in ((), ("--steps-per-replay", "4"), ("--steps-per-replay", "4", "--stats")):
        assert cli.main([*args, *steps]) == 0
        out, err = capsys.readouterr()
        found.append(json.loads(out)["output_ids"])
    assert found[0] == found[1] == found[2]
    assert "prefill" in err and "decode" in err and "of 8 tokens (" in err and "graphs" not in err
    assert cli.main([*args, "--steps-per-replay", "0"]) == 2
    assert "--steps-per-replay" in capsys.readouterr().err

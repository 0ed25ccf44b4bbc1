"""`lamella generate`, `explain` and `report` as people use them: a real model on the CPU, and a bare configuration."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from lamella import api
from lamella.tools import cli
from tests.models.model_files import write_config

QUESTION = "What is the capital of France?"
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30]
"""SmolLM2-135M-Instruct in float32, greedy, by transformers; token 2 ends it."""
TEXT = "The capital of France is Paris."

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *args: str) -> str:
    """What a command that succeeds prints."""
    assert cli.main(list(args)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that share their cores with other work wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def asked(smollm2: Path) -> tuple[str, api.Model]:
    """What the command prints of the real model on the reference executor, from a file to text, and the model that it loaded."""
    loaded: list[api.Model] = []
    load, out, err = api.load, StringIO(), StringIO()

    def keep(opened: Any, **options: Any) -> api.Model:
        loaded.append(load(opened, **options))
        return loaded[-1]

    args = ["--chat", "--prompt", QUESTION, "--device", "cpu", "--dtype", "float32", "--json"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(api, "load", keep)
        assert cli.main(["generate", str(smollm2), *args]) == 0
    assert err.getvalue() == ""
    (model,) = loaded
    return out.getvalue(), model


@pytest.fixture(scope="module")
def model(asked: tuple[str, api.Model]) -> api.Model:
    """That model, which the other tests ask too."""
    return asked[1]


@pytest.fixture
def ask(smollm2: Path, model: api.Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments that ask the real model; the command takes the one that is loaded."""
    monkeypatch.setattr(api, "open_model", lambda path, **options: model.opened)
    monkeypatch.setattr(api, "load", lambda opened, **options: model)
    return ["generate", str(smollm2), "--device", "cpu", "--dtype", "float32"]


def test_json_from_a_file_to_text(asked: tuple[str, api.Model]) -> None:
    out = asked[0]
    assert out.count("\n") == 1
    result = json.loads(out)
    assert list(result) == ["prompt_ids", "output_ids", "text", "stop_reason", "timings"]
    assert (result["output_ids"], result["text"], result["stop_reason"]) == (ANSWER, TEXT, "eos")
    assert len(result["prompt_ids"]) == 37
    timings = result["timings"]
    assert list(timings) == ["compile", "load", "prefill", "decode", "tokens_per_second"]
    assert all(value > 0 for value in timings.values())
    # Seven steps follow the first token; the last gives the end token.
    assert timings["tokens_per_second"] == pytest.approx(7 / timings["decode"])
    assert timings["compile"] < 15


def test_text_is_printed_as_it_is_made(ask: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder(StringIO):
        shown: list[str]

        def flush(self) -> None:
            super().flush()
            self.shown.append(self.getvalue())

    recorder = Recorder()
    recorder.shown = []
    monkeypatch.setattr(sys, "stdout", recorder)
    assert cli.main([*ask, "--chat", "--prompt", QUESTION]) == 0
    assert recorder.getvalue() == f"{TEXT}\n"
    seen = list(dict.fromkeys(recorder.shown))
    assert len(seen) >= len(ANSWER)
    assert seen[:2] == ["The", "The capital"]


def test_stop_strings_are_cut_off(ask: list[str], capsys: Capture) -> None:
    args = [*ask, "--chat", "--prompt", QUESTION, "--stop", "Berlin", "--stop", " of Fr"]
    result = json.loads(run(capsys, *args, "--json"))
    assert (result["text"], result["stop_reason"]) == ("The capital", "stop_string")
    assert result["output_ids"] == ANSWER[:4]
    assert run(capsys, *args) == "The capital\n"


def test_ignore_eos_and_a_limit(ask: list[str], capsys: Capture) -> None:
    result = json.loads(run(capsys, *ask, "--chat", "--prompt", QUESTION, "--ignore-eos", "--max-new-tokens", "10", "--json"))
    assert result["output_ids"][:8] == [*ANSWER, 2]
    assert (len(result["output_ids"]), result["stop_reason"]) == (10, "length")


def test_ids_in_place_of_text(ask: list[str], model: api.Model, capsys: Capture) -> None:
    ids = api.encode(model.opened, QUESTION, chat=True)
    result = json.loads(run(capsys, *ask, "--prompt-ids", ",".join(map(str, ids)), "--json"))
    assert (result["prompt_ids"], result["output_ids"], result["text"]) == (ids, ANSWER, TEXT)


def test_a_seed_fixes_what_is_sampled(ask: list[str], capsys: Capture) -> None:
    args = [*ask, "--prompt", "Once upon a time", "--max-new-tokens", "12", "--temperature", "1.5", "--top-k", "50", "--top-p", "0.95"]
    first, again, other = (json.loads(run(capsys, *args, "--json", "--seed", seed))["output_ids"] for seed in ("3", "3", "4"))
    assert first == again
    assert first != other


def test_a_decode_step_takes_little_processor_time(model: api.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tokens a second on one core: time of the thread itself, which a busy machine does not lengthen."""
    seconds: list[float] = []
    launch = model.executor.launch

    def timed(bucket: Any, steps: int = 1) -> None:
        start = time.thread_time()
        launch(bucket, steps)
        seconds.append(time.thread_time() - start)

    monkeypatch.setattr(model.executor, "launch", timed)
    list(model.session.stream([1, 2, 3], 12, ignore_eos=True))
    assert min(seconds[1:]) < 0.1


def test_threads_are_as_they_were_after_a_step(tmp_path: Path) -> None:
    model = api.load(write_config(tmp_path), random_weights=0, device="cpu", dtype="float32", buckets=[1, 8])
    torch.set_num_threads(2)
    try:
        list(model.session.stream([1, 2, 3], 2, ignore_eos=True))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# --- a bare configuration


def test_a_bare_configuration_runs_on_random_weights(tmp_path: Path, capsys: Capture) -> None:
    args = ["generate", str(write_config(tmp_path)), "--prompt-ids", "5,6,7", "--max-new-tokens", "6", "--device", "cpu", "--ignore-eos"]
    out = run(capsys, *args, "--random-weights", "0")
    ids = [int(i) for i in out.split(",")]
    assert len(ids) == 6
    result = json.loads(run(capsys, *args, "--random-weights", "0", "--json"))
    assert (result["output_ids"], result["text"], result["stop_reason"]) == (ids, "", "length")
    assert run(capsys, *args, "--random-weights", "1") != out


def test_executors_agree_on_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    args = ["generate", str(write_config(tmp_path)), "--random-weights", "0", "--prompt-ids", "5,6,7", "--max-new-tokens", "3"]
    args += ["--dtype", "float32", "--ignore-eos"]
    reference, interpreted = (run(capsys, *args, "--executor", name) for name in ("reference", "interpret"))
    assert reference == interpreted


def test_explain_says_what_fused_and_what_did_not(smollm2: Path, capsys: Capture) -> None:
    out = run(capsys, "explain", str(smollm2))
    assert out.startswith("All buckets, once at load time\n")
    paragraphs = out.split("\n\n")
    (ffn,) = (p for p in paragraphs if p.startswith("layers") and "ffn.gate" in p and "ffn.up" in p)
    assert ffn.startswith("layers.0-29: ")
    assert "30 launches" in ffn
    assert "contract at ffn.gate into contract at ffn.up: contractions on one x" in ffn
    for paragraph in paragraphs:
        for line in paragraph.splitlines():
            if line.startswith("  refused"):
                who, _, why = line.partition(": ")
                assert " into " in who
                assert len(why) > 10
    assert any(line.startswith("  refused") for line in out.splitlines())
    assert paragraphs[-1].startswith("Bucket t1: ")
    assert "launches and" in paragraphs[-1]
    assert max(map(len, out.splitlines())) < 400


def test_explain_several_buckets_as_json(tmp_path: Path, capsys: Capture) -> None:
    config = str(write_config(tmp_path))
    ledger = json.loads(run(capsys, "explain", config, "--random-weights", "0", "--tokens", "1,8", "--json"))
    assert {record["bucket"] for record in ledger if record["verdict"] == "region"} == {"t1", "t8"}
    assert all(record["reason"] for record in ledger if record["verdict"] in ("joined", "refused", "chosen"))


def test_report_adds_up(smollm2: Path, capsys: Capture) -> None:
    out = run(capsys, "report", str(smollm2), "--tokens", "1")
    assert "30 layers, hidden 576, 9 heads on 3 of keys and values of 64, ffn 1536, vocabulary 49152" in out
    # 134,515,008 parameters in bfloat16, some of the norms folded into others; K and V of 3 heads of 64 in 30 layers.
    assert re.search(r"weights, bf16 +256\.5\d MiB", out)
    assert re.search(r"cache, bf16, a token +22\.50 KiB", out)
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines() if line.startswith("  t1_")}
    launches = next(line for line in out.splitlines() if line.startswith("  1 token (decode)")).split()[3]
    assert sum(map(int, rows.values())) == int(launches)

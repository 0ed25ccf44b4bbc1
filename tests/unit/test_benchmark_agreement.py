"""Packed weights beside the same weights as floats: equal ids are counted, and the first that differs is weighed by float32's own choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import agreement
from benchmarks.__main__ import app
from benchmarks.accuracy import MARGIN
from benchmarks.agreement import LEAST_ERROR, Models, chosen_logits, compared, equal_ids, greedy, judge, load_models, read_prompts
from benchmarks.results import Report, measured_arguments
from benchmarks.settings import Settings
from lamella.errors import PromptError
from lamella.frontends import open_model
from lamella.runtime.executor import MemoryExecutor
from tests.models.model_files import write_folder, write_gguf

CPU = torch.device("cpu")
PROMPT = [5, 9, 2, 7, 1]
TOKENS = 12


def run(arguments: list[str], code: int = 0) -> tuple[dict[str, Any], str]:
    output = Path(arguments[-1])
    said = CliRunner().invoke(app, ["agreement", *arguments])
    assert said.exit_code == code, said.output
    return json.loads(output.read_text()) if output.exists() else {}, said.output


def models_of(folder: Path, dtype: str = "float32") -> Models:
    file = write_gguf(folder / "m.gguf")
    return load_models(open_model(file), Settings("m", file, CPU, dtype), len(PROMPT), TOKENS)


def test_ten_prompts_come_along() -> None:
    texts = read_prompts(agreement.PROMPTS)
    assert len(texts) == 10 == len(set(map(str, texts))) and all(isinstance(text, str) and len(text) > 20 for text in texts)
    assert any("def " in str(text) for text in texts) and any("13, 21" in str(text) for text in texts)


@pytest.mark.parametrize("text", ['{"a": 1}', "[]", '["a", 1]', "[[1, true], [1.5]]", "no json", None])
def test_what_is_no_list_of_prompts_is_one_line(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PromptError, match="no list of prompts"):
        read_prompts(file)
    assert "Traceback" not in run([str(tmp_path / "m.gguf"), "--prompts", str(file), "-o", str(tmp_path / "r.json")], 2)[1]


def test_packed_weights_generate_what_floats_do(tmp_path: Path) -> None:
    """On the CPU in float32: all ids alike, logits nearly, and those of floats are the reference themselves."""
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([PROMPT, [3], [4] * 20]))
    file = write_gguf(tmp_path / "m.gguf")
    found, text = run([str(file), "--prompts", str(prompts), "--tokens", str(TOKENS), "--device", "cpu", "-o", str(tmp_path / "r.json")])
    assert [r["name"] for r in found["rows"]] == ["prompt 1", "prompt 2", "prompt 3", "all"]
    assert all(r["equal"] == TOKENS == len(r["packed_ids"]) and r["repeatable"] and r["ok"] for r in found["rows"][:3])
    assert found["ok"] and (found["same_prompts"], found["prompts"], found["packed"]) == (3, 3, ["int8 32"])
    whole = found["rows"][3]
    assert (whole["equal"], whole["tokens"], whole["prompt_tokens"], whole["margin"]) == (36, 36, 26, None)
    assert 0 < whole["packed_error"] < 1e-5 and whole["floats_error"] == 0
    assert found["error"] == pytest.approx(LEAST_ERROR * whole["logit_rms"]) and "prompt 3" in text
    assert found["packed_weights"] == 8 and found["dtype"] == "f32" and str(tmp_path) not in found["command"]


def test_in_bfloat16_the_reference_is_a_model_of_its_own(tmp_path: Path) -> None:
    """Both have an error then; that of packed weights, which are not rounded to bfloat16, is no larger by much."""
    models = models_of(tmp_path, "bfloat16")
    assert models.exact is not models.floats and models.exact.executor.manifest.dtype == "f32"
    assert models.packed.opened.config.packed and not models.floats.opened.config.packed
    row = compared(models, PROMPT, TOKENS)
    assert row["repeatable"] and 0 < row["packed_error"] < 1.5 * row["floats_error"] < 0.1 * row["logit_rms"]


def test_logits_are_those_that_chose(tmp_path: Path) -> None:
    """After the prompt and after each id; blocks are given back."""
    model = models_of(tmp_path).packed
    made = greedy(model, PROMPT, TOKENS)
    before = model.session.allocator.available
    logits = chosen_logits(model.session, PROMPT, made)
    assert logits.argmax(-1).tolist() == made and model.session.allocator.available == before
    whole = model.session.forward_logits(PROMPT + made[:-1], range(len(PROMPT) - 1, len(PROMPT) + TOKENS - 1))
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-5)


def spoiled(models: Models, position: int) -> tuple[int, int]:
    """Enlarges the scales of one row of the packed head, so that it wins at a position: its id, and that of the floats there."""
    made = greedy(models.floats, PROMPT, TOKENS)
    exact = chosen_logits(models.exact.session, PROMPT, made)[position]
    other = next(int(i) for i in exact.argsort(descending=True) if int(i) not in made and int(i) not in PROMPT and exact[i] > 0)
    assert isinstance(models.packed.executor, MemoryExecutor)
    weights = models.packed.executor.memory.weights
    (name,) = [n for n in weights if n.startswith("embed.scales")]
    scales = weights[name]
    row = scales[other] if scales.shape[0] == 50 else scales[:, other]
    row *= 1.05 * float(exact.max() / exact[other])
    return other, made[position]


def test_a_difference_is_weighed_by_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that is wrong makes another id win: both ids with their logits, and a margin that is no near-tie until errors are that large."""
    models = models_of(tmp_path)
    other, own = spoiled(models, 3)
    row = compared(models, PROMPT, TOKENS)
    at = row["equal"]
    assert at <= 3 and row["packed_ids"][at] == row["packed_id"] == other and row["positions"] == at + 1 and row["repeatable"]
    assert row["floats_ids"][at] == row["floats_id"] and (at < 3 or row["floats_id"] == own)
    packed, floats, exact = (row["logits"][name] for name in ("packed", "floats", "float32"))
    assert packed[0] > packed[1] and floats[0] < floats[1] and exact == floats
    assert row["float32_margin"] == pytest.approx(exact[1] - exact[0]) and row["float32_margin"] > 1e-3

    def judged(error: float) -> Report:
        monkeypatch.setattr(agreement, "LEAST_ERROR", error)
        report = Report("agreement", CPU, {})
        report.add(name="prompt 1", prompt_tokens=5, tokens=TOKENS, **row)
        report.add(name="prompt 2", prompt_tokens=5, **{**row, "tokens": 1, "equal": 1, "positions": 1, "float32_margin": 0.0})
        judge(report)
        return report

    strict = judged(LEAST_ERROR)
    assert not strict.facts["ok"] and strict.rows[0]["near_tie"] is False and not strict.rows[0]["ok"] and strict.rows[1]["ok"]
    assert strict.rows[2]["margin"] == strict.rows[0]["margin"] == row["float32_margin"] / strict.facts["error"] > MARGIN
    lenient = judged(1.01 * row["float32_margin"] / MARGIN / row["logit_rms"])
    assert lenient.facts["ok"] and lenient.rows[0]["near_tie"] is True and lenient.facts["same_prompts"] == 1


def test_the_margin_counts_from_what_float32_prefers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is neither of both ids, the one farther behind counts; and ids that a second run does not choose are no agreement."""
    models = models_of(tmp_path)
    made = greedy(models.floats, PROMPT, TOKENS)
    order = chosen_logits(models.exact.session, PROMPT, made[:1])[0].argsort(descending=True).tolist()
    exact = chosen_logits(models.exact.session, PROMPT, made[:1])[0]
    told = {id(models.packed): [order[1], *made[1:]], id(models.floats): [order[2], *made[1:]]}
    monkeypatch.setattr(agreement, "greedy", lambda model, prompt, tokens: told[id(model)])
    row = compared(replace(models), PROMPT, TOKENS)
    assert (row["equal"], row["packed_id"], row["floats_id"]) == (0, order[1], order[2])
    assert row["float32_margin"] == pytest.approx(float(exact[order[0]] - exact[order[2]])) and not row["repeatable"]


def test_a_command_that_finds_a_difference_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = agreement.load_models

    def broken(*arguments: Any) -> Models:
        models = made(*arguments)
        spoiled(models, 0)
        return models

    monkeypatch.setattr(agreement, "load_models", broken)
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([PROMPT]))
    file = write_gguf(tmp_path / "m.gguf")
    arguments = [str(file), "--prompts", str(prompts), "--tokens", str(TOKENS), "--device", "cpu", "-o", str(tmp_path / "r.json")]
    found, _ = run(arguments, 1)
    assert not found["ok"] and found["rows"][0]["equal"] == 0 and found["rows"][0]["near_tie"] is False and not found["rows"][1]["ok"]


def test_floats_have_nothing_to_agree_with(tmp_path: Path) -> None:
    write_folder(tmp_path / "floats")
    prompts = tmp_path / "prompts.json"
    prompts.write_text("[[1, 2]]")
    _, text = run([str(tmp_path / "floats"), "--prompts", str(prompts), "--device", "cpu", "-o", str(tmp_path / "r.json")], 2)
    assert "no packed weights to keep" in " ".join(text.split()) and "Traceback" not in text
    file = write_gguf(tmp_path / "m.gguf")
    assert "no tokenizer" in run([str(file), "--device", "cpu", "-o", str(tmp_path / "r.json")], 2)[1]


def test_equal_ids_end_at_the_first_difference() -> None:
    assert [equal_ids([1, 2, 3], other) for other in ([1, 2, 3], [1, 5, 3], [0, 2, 3])] == [3, 1, 0]


def test_results_name_files_and_not_where_they_lay() -> None:
    arguments = ["agreement", "/some/where/m.gguf", "--tokens", "3", "-o", "/x/r.json", "--doc=/y", "models/m.gguf"]
    assert measured_arguments(arguments) == ["agreement", "m.gguf", "--tokens", "3", "models/m.gguf"]

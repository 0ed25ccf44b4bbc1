"""The `lamella` command over a stand-in for the API: what it passes on, what it prints, and how it fails."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import lamella
from lamella.errors import ModelNotFoundError
from lamella.runtime.manifest import Bucket, CacheSpec, Kernel, Launch, Manifest, ModelSpec, WeightSpec
from lamella.tools.cli import main
from lamella.tools.explain import byte_size, explain, ranges
from lamella.tools.report import made_of
from lamella.tools.text_table import TextTable, aligned

BODY = {"args": 0, "ops": [], "yields": []}


def region(
    number: int, loc: str, ops: list[str], *decisions: dict[str, Any], bucket: str = "t1", schedule: str = "gemv"
) -> list[dict[str, Any]]:
    """The records of one region: its own, then its decisions."""
    place = {"loc": loc, "bucket": bucket, "region": number, "kernel": f"{bucket}_{schedule}_0"}
    head = {"verdict": "region", "schedule": schedule, "parameters": {"rows": 2, "warps": 4}, "ops": ops}
    return [{**record, **place} for record in (head, *decisions)]


def attention(layer: int) -> list[dict[str, Any]]:
    """A region of one layer that follows another layer's."""
    at = f"layers.{layer}.attn"
    joined = {"verdict": "joined", "kind": "vertical", "reason": "same rows", "bytes": 1024, "launches": 1}
    refused = {"verdict": "refused", "kind": "epilogue", "reason": "tile.reduce needs the whole row"}
    return region(
        layer,
        at,
        [f"{at}.o", f"{at}.residual"],
        {**joined, "producer": f"tile.map at {at}.o", "consumer": f"tile.cast at {at}.o"},
        {**joined, "producer": f"tile.map at {at}.residual", "consumer": f"tile.cast at {at}.o"},
        {**refused, "producer": f"tile.cast at layers.{layer - 1}.ffn", "consumer": f"tile.reduce at {at}.o"},
        {"verdict": "chosen", "kind": "schedule", "schedule": "gemv", "reason": "one row"},
        {"verdict": "not_in_place", "out": 0, "reason": "nothing dies here"},
        {"verdict": "not_in_place", "out": 1, "reason": "nothing dies here"},
    )


LEDGER: list[dict[str, Any]] = [
    *({"verdict": "not_folded", "what": f"layers.{n}.norm", "reason": "its weight is shared", "bucket": ""} for n in (0, 1)),
    *attention(1),
    *attention(2),
    *attention(4),
    *region(5, "", ["embed"], {"verdict": "in_place", "out": 0, "reason": "the input dies here"}, schedule="row"),
    *region(0, "sample", [], bucket="t64", schedule="sample"),
]


def a_manifest() -> Manifest:
    launches = tuple(Launch("gemv_0", (1, 1, 1), (), loc=f"layers.{n}") for n in range(3))
    bucket = Bucket(1, 1, 1, 1, 4096, (), (), launches, advance=True, buffer_bytes=8192, max_live_bytes=2048)
    return Manifest(
        "none",
        "f32",
        64,
        ModelSpec("llama", 3, 8, 2, 1, 4, 16, 32),
        CacheSpec(3, 1, 4, 16, "f32", 4),
        {"embed": WeightSpec("bf16", (1024, 1024))},
        {},
        {"gemv_0": Kernel("kernels/gemv_0.py", 0, BODY, sources=("rms_norm", "linear", "linear"))},
        (bucket,),
    )


@dataclass
class Result:
    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    stop_reason: str = "length"
    timings: dict[str, float] = field(default_factory=lambda: {"decode": 0.5})


@dataclass
class FakeProgram:
    manifest: Any = field(default_factory=a_manifest)
    ledger: list[dict[str, Any]] = field(default_factory=lambda: list(LEDGER))
    kernels: dict[str, str] = field(default_factory=lambda: {"gemv_0": ""})
    timings: list[tuple[str, float]] = field(default_factory=lambda: [("cse", 0.25), ("dce", 0.5)])
    stages: tuple[str, ...] = ("model", "plan")
    accesses: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        self.manifest.save(folder)


@dataclass
class FakeModel:
    calls: list[tuple[Any, dict[str, Any]]]

    def generate(self, prompt: Any, **options: Any) -> Result:
        self.calls.append((prompt, options))
        if len(prompt) > 1:
            return Result(prompt, [7, 8], "")
        if options["on_text"]:
            for part in ("Par", "is é"):
                options["on_text"](part)
        return Result([1], [2, 3], "Paris é")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """The calls that commands made of the API, (first argument, options), in order."""
    seen: list[tuple[Any, dict[str, Any]]] = []

    def open_model(path: str, **options: Any) -> SimpleNamespace:
        seen.append((path, options))
        if path == "missing":
            raise ModelNotFoundError("no such path", where=path)
        if path == "broken":
            raise ZeroDivisionError("by\nzero")
        return SimpleNamespace(config=SimpleNamespace(vocabulary=100), tokenizer=None if path == "silent" else object())

    def encode(opened: SimpleNamespace, prompt: Any, **options: Any) -> list[int]:
        seen.append((prompt, options))
        return [1] if isinstance(prompt, str) else prompt

    def load(opened: SimpleNamespace, **options: Any) -> FakeModel:
        seen.append((opened, options))
        return FakeModel(seen)

    def compile_(path: str, **options: Any) -> FakeProgram:
        seen.append((path, options))
        if path == "missing":
            raise ModelNotFoundError("no such path", where=path)
        return FakeProgram()

    api = ModuleType("lamella.api")
    api.open_model, api.encode, api.load, api.compile = open_model, encode, load, compile_  # type: ignore[attr-defined]
    api.context_of = lambda opened, max_context: max_context or 64  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lamella.api", api)
    monkeypatch.setattr(lamella, "api", api, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return seen


def output(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def mistake(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line a command prints on stderr before it exits with 2."""
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lamella: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("lamella: error: ").rstrip("\n")


def test_generate_streams_text(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    args = ["generate", "m", "--prompt", "Hi", "--chat", "--max-new-tokens", "5", "--stop", "\n", "--stop", "END", "--seed", "3"]
    args += ["--temperature", "0.5", "--device", "cpu", "--random-weights", "0", "--weight-cache", "kept"]
    assert output(args, capsys) == "Paris é\n"
    assert calls[:2] == [("m", {"random_weights": 0}), ("Hi", {"chat": True, "system": None, "tools": []})]
    (_, load), (ids, generate) = calls[2:]
    load.pop("progress")(1, 2, "embed")
    load.pop("kernel_progress")(1, 2, "t1_gemv_0")
    assert (load.pop("quantize_head"), load.pop("activations"), load.pop("kv_cache")) == (None, "none", "auto")
    assert (load.pop("quantize"), load.pop("steps_per_replay"), generate["steps_per_replay"]) == ("none", 1, 1)
    assert (load.pop("library"), load.pop("penalties")) == ("auto", False)
    assert load == {"device": "cpu", "dtype": "auto", "executor": "auto", "max_context": None, "max_arena": 0, "weight_cache": Path("kept")}
    assert ids == [1]
    expected = {
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 3,
        "ignore_eos": False,
    }
    assert {name: generate[name] for name in expected} == expected
    assert generate["stop"] == ("\n", "END")


def test_generate_json_prints_one_object_and_nothing_else(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(output(["generate", "m", "--prompt", "Hi", "--json"], capsys))
    assert result == {"prompt_ids": [1], "output_ids": [2, 3], "text": "Paris é", "stop_reason": "length", "timings": {"decode": 0.5}}
    assert (calls[3][1]["on_text"], calls[3][1]["steps_per_replay"]) == (None, None)


def test_an_unstated_number_of_tokens_is_what_the_context_leaves(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    output(["generate", "m", "--prompt-ids", "1,2,3", "--max-context", "20"], capsys)
    output(["generate", "m", "--prompt-ids", "1,2,3", "--max-context", "2000"], capsys)
    assert [options["max_new_tokens"] for _, options in (calls[3], calls[7])] == [17, 128]


def test_generate_from_ids_prints_ids(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert output(["generate", "m", "--prompt-ids", "1, 2,3", "--ignore-eos"], capsys) == "7,8\n"
    assert calls[3][0] == [1, 2, 3]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["generate", "m"], "give either --prompt or --prompt-ids, got neither"),
        (["generate", "m", "--prompt", "a", "--prompt-ids", "1"], "give either --prompt or --prompt-ids, got both"),
        (["generate", "m", "--prompt-ids", "1,x"], "--prompt-ids: bad list, expected integers with commas between them, got '1,x'"),
        (["generate", "m", "--prompt-ids", "1", "--chat"], "--chat needs text, got --prompt-ids (use --prompt)"),
        (["generate", "missing", "--prompt", "a"], "missing: no such path"),
        (["generate", "m", "--prompt-ids", "1,100"], "the prompt holds an id outside the vocabulary, expected 0 to 99, got 100"),
        (["generate", "m", "--prompt", "a", "--stop", ""], "--stop: a stop string is empty, expected at least one character"),
        (["generate", "m", "--prompt", "a", "--device", "tpu"], "Invalid value for '--device': 'tpu' is not one of 'auto', 'cpu', 'cuda'."),
        (["generate"], "Missing argument 'MODEL'."),
        (["generat"], "No such command 'generat'. Did you mean 'generate'?"),
        (["compile", "m"], "Missing option '-o' / '--output'."),
        (["explain", "m", "--tokens", "one"], "--tokens: bad list, expected integers with commas between them, got 'one'"),
        (["report", "missing"], "missing: no such path"),
    ],
)
def test_mistakes_are_one_line(args: list[str], text: str, calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake(args, capsys) == text


@pytest.mark.parametrize("option", ["--device", "--dtype", "--executor", "--max-new-tokens", "--seed", "--temperature", "--max-context"])
def test_bad_values_name_their_option(option: str, calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"'{option}'" in mistake(["generate", "m", "--prompt", "a", option, "bad"], capsys)
    assert calls == []


def test_a_fault_of_lamella_is_one_line_too(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "broken", "--prompt", "a"]) == 1
    assert capsys.readouterr().err == "lamella: internal error: ZeroDivisionError: by zero (--debug shows where)\n"
    with pytest.raises(ZeroDivisionError):
        main(["generate", "broken", "--prompt", "a", "--debug"])


def test_debug_shows_the_traceback_of_a_mistake(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "generate", "missing", "--prompt", "a"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_compile_writes_a_folder(calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    out = output(["compile", "m", "-o", str(target), "--tokens", "1,64", "--dtype", "float32", "--time-passes"], capsys)
    assert [p.name for p in target.iterdir()] == ["manifest.json"]
    assert calls[0][1] | {"buckets": (1, 64), "dtype": "float32", "until": None, "arch": None} == calls[0][1]
    assert "0.250" in out
    assert "0.750" in out
    assert "rms_norm, linear x2" in out
    assert out.endswith(f"wrote {target}: IR of 2 stages, 1 kernel\n")


def test_compile_leaves_nothing_behind(calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake(["compile", "missing", "-o", str(tmp_path / "out")], capsys) == "missing: no such path"
    assert mistake(["compile", "m", "-o", str(tmp_path / "out"), "--until", "tile"], capsys).startswith("unknown stage 'tile'")
    (tmp_path / "file").write_text("")
    assert "exists and is a file" in mistake(["compile", "m", "-o", str(tmp_path / "file")], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


EXPLANATION = """\
All buckets, once at load time
  not folded  layers.0-1.norm  its weight is shared

Bucket t1: 4 launches of 2 kernels

layers.1-2,4.attn: t1_gemv_0, 3 launches, gemv (rows 2, warps 4)
  runs        attn.o, attn.residual
  fused       vertical    2.00 KiB, 2 launches  map x2: same rows
  refused     epilogue    cast at previous.ffn into reduce at attn.o: reduce needs the whole row
  schedule    one row
  result 0-1  new buffer: nothing dies here

step: t1_row_0, row (rows 2, warps 4)
  runs      embed
  result 0  over an input: the input dies here

Bucket t1: 6 fusions accepted, 3 refused; against one launch an op, a step saves 6 launches and 6.00 KiB of memory traffic

Bucket t64: 1 launch of 1 kernel

sample: t64_sample_0, sample (rows 2, warps 4)

Bucket t64: 0 fusions accepted, 0 refused; against one launch an op, a step saves 0 launches and 0 B of memory traffic
"""


def test_explain_merges_identical_layers(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert output(["explain", "m"], capsys) == EXPLANATION
    assert json.loads(output(["explain", "m", "--json"], capsys)) == LEDGER
    assert calls[0][1]["buckets"] == (1,)
    assert explain([]) == ""


def test_report_shows_arena_against_its_bounds(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    out = output(["report", "m"], capsys)
    for text in ("1 token (decode)", "4.00 KiB", "8.00 KiB", "0.50", "2.00 KiB", "2.00 MiB", "96 B", "6.00 KiB", "gemv_0"):
        assert text in out


def test_tables_align_and_cut_nothing() -> None:
    table = TextTable("Title", ("name", "size", "note"), [["a", "1 B", "x" * 200], ["long", "1000 B", ""]], frozenset({"size"}))
    assert str(table).split("\n") == ["Title", "  name    size  note", f"  a        1 B  {'x' * 200}", "  long  1000 B"]
    assert aligned([]) == []
    assert aligned([["a", "b"], ["ccc"]]) == ["a    b", "ccc"]


def test_small_formats() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert [byte_size(n) for n in (0, 1023, 1024, 3 << 20, 5 << 40)] == ["0 B", "1023 B", "1.00 KiB", "3.00 MiB", "5120.00 GiB"]
    assert made_of(("a", "b", "a")) == "a x2, b"

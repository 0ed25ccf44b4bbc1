"""The benchmarks on a CPU: peers equal transformers, bytes equal a count by hand, every command writes what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import everything, speed
from benchmarks.__main__ import app
from benchmarks.accuracy import margin
from benchmarks.configurations import configuration, known_models
from benchmarks.hugging_face import logits, transformers_model
from benchmarks.kernels import parts_of, unsafe
from benchmarks.library import Attention, Product, counterpart, microseconds
from benchmarks.peer_weights import Int8Linear
from benchmarks.peers import PeerModel, PeerStep
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.timing import measure, stream_rate
from benchmarks.traffic import launch_traffic, step_flops, step_traffic
from lamella.checkpoints import RandomSource
from lamella.frontends import ModelConfig, open_model
from lamella.frontends.decoder import weight_shapes
from lamella.pipeline import PassOptions
from lamella.program import Shape, compile_model
from lamella.runtime.manifest import Manifest
from lamella.tools import cli

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These models are so small that waiting for a second thread would be most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny(layers: int = 2, **changes: Any) -> tuple[ModelConfig, RandomSource]:
    with configuration("tiny", layers) as path:
        config = replace(open_model(path, random_weights=0).config, **changes)
    return config, RandomSource(weight_shapes(config), 3)


def manifest_of(shape: Shape, dtype: str = "bf16", pass_options: PassOptions | None = None, **changes: Any) -> Manifest:
    config, _ = tiny(**changes)
    manifest = compile_model(config, [shape], dtype=dtype, max_context=64, pass_options=pass_options).manifest
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_peer_equals_transformers(tied: bool, attention: str) -> None:
    config, source = tiny(tied=tied)
    ids = torch.randint(config.vocabulary, (12,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = logits(transformers_model(config, source, torch.float32, CPU, weights="f32"), ids, CPU)
    peer = PeerModel(config, source, dtype="f32", device=CPU, batch=2, length=20)
    tokens = torch.tensor([ids, ids])
    with torch.no_grad():
        found = [peer(tokens[:, :8], torch.arange(8), fresh=True)]
        found += [peer(tokens[:, i : i + 1], torch.tensor([i]), attention) for i in range(8, 12)]
    torch.testing.assert_close(torch.stack(found, 1), expected[7:].expand(2, -1, -1), rtol=0, atol=1e-4)


def test_int8_of_a_peer_is_near_its_weights() -> None:
    weight, x = (
        torch.randn(40, 64, generator=torch.Generator().manual_seed(0)),
        torch.randn(3, 64, generator=torch.Generator().manual_seed(1)),
    )
    made = Int8Linear(weight)
    assert made.weight.dtype == torch.int8 and made.weight.abs().max() == 127
    expected = x @ weight.T
    assert (made(x) - expected).norm() / expected.norm() < 0.01


def test_peer_step_feeds_itself_and_is_one_graph() -> None:
    config, source = tiny(layers=1)
    model = PeerModel(config, source, dtype="f32", device=CPU, batch=2, length=16)
    step = PeerStep.decode(model, 5, "sdpa")
    run = torch.compile(step.function(), backend="eager", fullgraph=True)
    with torch.no_grad():
        first = run(step.tokens, step.positions)
        assert step.tokens[:, 0].tolist() == first.tolist() and step.positions.tolist() == [5]
        second = run(step.tokens, step.positions)
        step.reset()
        assert step.positions.tolist() == [4]
        assert run(step.tokens, step.positions).tolist() == first.tolist()
        assert run(step.tokens, step.positions).tolist() == second.tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_step_bytes_equal_a_count_by_hand(tied: bool) -> None:
    manifest = manifest_of(Shape.decode(2), tied=tied)
    # The scales of norms are folded into the projections; the last one into the head, unless that is the embedding table too.
    layer = 2 * (96 * 96 + 2 * 32 * 96 + 96 * 96 + 3 * 200 * 96)
    traffic = step_traffic(manifest, manifest.buckets[0], 30)
    table, rows = 257 * 96 * 2, 2 * 96 * 2
    assert traffic.weights == 2 * layer + table + rows + (96 * 2 if tied else 0)
    assert traffic.cache == 2 * (2 * 2 * 16 * 2) * (2 * 30 + 2)
    assert traffic.logits == 2 * 257 * 4
    assert traffic.total == traffic.weights + traffic.cache + traffic.logits


def test_prefill_operations_equal_a_count_by_hand() -> None:
    manifest = manifest_of(Shape.prefill(10))
    layer = 96 * 96 + 2 * 32 * 96 + 96 * 96 + 3 * 200 * 96
    attention = 2 * 2 * 6 * 16 * sum(range(1, 11))
    assert step_flops(manifest, manifest.buckets[0]) == 2 * 10 * 2 * layer + 2 * 257 * 96 + 2 * attention


def test_bytes_of_launches_equal_a_count_by_hand() -> None:
    manifest = manifest_of(Shape.decode())
    bucket = manifest.buckets[0]

    def moved(source: str, number: int = 0) -> float:
        found = [launch for launch in bucket.launches if source in manifest.kernels[launch.kernel].sources]
        return launch_traffic(manifest, bucket, found[number], 30)

    ffn = next(x for x in bucket.launches if any(r.name.startswith("layers.0.ffn.gate_proj") for r in x.args))
    assert launch_traffic(manifest, bucket, ffn, 30) == 2 * (96 + 2 * 200 * 96 + 200)
    # One query row; one key and one value of 2 heads a token of context; the result and, where the context is split, acc, max and sum of
    # each part; the entries of the block table that 30 tokens fill, query_start and the length.
    attend = next(x for x in bucket.launches if manifest.kernels[x.kernel].sources[0].startswith("attend"))
    parts = [r.shape[2] * 6 * (16 + 2) * 4 for r in attend.args if len(r.shape) == 4]
    assert launch_traffic(manifest, bucket, attend, 30) == 96 * 2 + 30 * 2 * 32 * 2 + sum(parts) + 96 * 2 + 4 * (2 + 2 + 1)
    # A row of the embedding, a row of angles, their copies, and integers: token, position, query_start, one entry of the block table, logit
    # row, 2 results.
    assert moved("slots") == 2 * 96 * 2 + 2 * 16 * 4 + 4 * (1 + 1 + 2 + 1 + 1 + 2)


def test_every_launch_of_a_step_is_in_one_part() -> None:
    manifest = manifest_of(Shape.decode(), layers=3)
    bucket = manifest.buckets[0]
    parts = parts_of(bucket)
    assert sum(len(part.launches) for part in parts) == len(bucket.launches)
    assert len({b.key for part in parts for b in (part.before, part.timed)} | {bucket.key}) == 2 * len(parts) + 1
    for part in parts:
        assert unsafe(part, manifest.kernels[part.kernel].inputs) is None
        assert len(part.timed.launches) == part.repeats * len(part.launches) >= 64


def test_a_part_that_overwrites_its_indices_is_refused() -> None:
    manifest = manifest_of(Shape.decode(), layers=3)
    parts = parts_of(manifest.buckets[0])
    part = next(
        p for p in parts if any(r.pool == "arena" and r.dtype == "i32" for r in p.launches[0].args[: manifest.kernels[p.kernel].inputs])
    )
    inputs = manifest.kernels[part.kernel].inputs
    launch = part.launches[0]
    index = next(r for r in launch.args[:inputs] if r.pool == "arena" and r.dtype == "i32")
    overwriting = replace(launch, args=(*launch.args[:inputs], index))
    assert unsafe(replace(part, launches=(overwriting,)), inputs) == "a launch overwrites indices that the next reads"
    moved = replace(launch, args=tuple(replace(r, offset=r.offset + 4096) if r is index else r for r in launch.args))
    assert unsafe(replace(part, launches=(launch, moved)), inputs) == "launches read different indices"


def test_stream_reads_all_of_its_data() -> None:
    source = torch.randint(0, 1000, (1024,), dtype=torch.int32)
    whole = int(source.sum())
    for block, blocks in ((256, 1), (128, 4)):
        assert stream_rate(source, whole, block, blocks, 4) > 0
    with pytest.raises(RuntimeError, match="did not read all"):
        stream_rate(source, whole + 1, 256, 1, 4)
    with pytest.raises(ValueError, match="no multiple"):
        stream_rate(source[:100], whole, 256, 1, 4)


def test_measure_resets_before_each_repetition() -> None:
    calls: list[str] = []
    timing = measure(lambda: calls.append("step"), CPU, launches=3, repetitions=2, reset=lambda: calls.append("reset"))
    assert "".join(c[0] for c in calls) == "rssss" * 4
    assert timing.low <= timing.milliseconds <= timing.high and (timing.launches, timing.repetitions) == (3, 2)


def run(tmp_path: Path, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
    output = tmp_path / "new" / "result.json"
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--layers", "1", "--output", str(output)])
    assert result.exit_code == code, result.output
    return json.loads(output.read_text()) if output.exists() else {}, result.output


SHORT = ("--config", "tiny", "--max-context", "64", "--steps", "2", "--repetitions", "1")


def test_decode_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: PeerModel, context: int, attention: str) -> PeerStep:
        if attention == "sdpa":
            raise RuntimeError("no such kernel")
        return made(model, context, attention)

    made = PeerStep.decode
    monkeypatch.setattr(speed.PeerStep, "decode", broken)
    found, text = run(tmp_path, "decode", *SHORT, "--batch", "2", "--context", "20", "--peers", "eager:sdpa,eager,hf-generate")
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["lamella", "eager:sdpa", "eager", "hf-generate"]
    assert rows["eager:sdpa"]["error"] == "RuntimeError: no such kernel" and "failed: RuntimeError" in text
    best = min(("eager", "hf-generate"), key=lambda name: rows[name]["ms"])
    assert found["best_peer"] == best and found["ratio"] == pytest.approx(rows[best]["ms"] / rows["lamella"]["ms"])
    assert found["floor_ms"] == pytest.approx(found["bytes"]["total"] * 1e3 / found["read_bandwidth"])
    assert rows["lamella"]["bound_share"] == pytest.approx(found["floor_ms"] / rows["lamella"]["ms"])
    assert found["shape"] == {"batch": 2, "context": 20, "max_context": 64} and found["model"]["layers"] == 1
    assert found["versions"]["torch"] == torch.__version__ and found["dtype"] == "f32"


def test_decode_of_packed_weights_and_of_several_steps_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has its own bound: packed weights are fewer bytes."""
    monkeypatch.setitem(sys.modules, "torchao", None)
    arguments = (*SHORT, "--context", "20", "--peers", "eager+int8,eager+torchao-int8", "--quantize", "int8", "--steps-per-replay", "2")
    found, text = run(tmp_path, "decode", *arguments)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["lamella", "lamella, 2 steps a graph", "lamella int8", "eager+int8", "eager+torchao-int8"]
    assert rows["eager+torchao-int8"]["error"].startswith("LamellaError: the peer needs torchao")
    # Packed weights are compared to packed weights.
    assert rows["lamella int8"]["best_peer"] == "eager+int8" and "weights of int8: the best peer, eager+int8" in text
    assert rows["lamella int8"]["peer_ratio"] == pytest.approx(rows["eager+int8"]["ms"] / rows["lamella int8"]["ms"])
    assert rows["eager+int8"]["bound_share"] == pytest.approx(rows["lamella int8"]["floor_ms"] / rows["eager+int8"]["ms"])
    assert rows["lamella, 2 steps a graph"]["launches"] == 2 and found["best_peer"] is None
    assert rows["lamella int8"]["floor_ms"] < found["floor_ms"]
    assert rows["lamella int8"]["bound_share"] == pytest.approx(rows["lamella int8"]["floor_ms"] / rows["lamella int8"]["ms"])
    assert rows["lamella int8"]["ratio"] == pytest.approx(rows["lamella int8"]["ms"] / rows["lamella"]["ms"])


def test_decode_with_options_of_passes(tmp_path: Path) -> None:
    """Each row of Lamella a second time, in the same run; what is compared to peers is the first."""
    changed = ("fuse-regions.prologue=false", "fuse-regions.epilogue=false")
    arguments = (*SHORT, "--context", "20", "--peers", "none", "--quantize", "int8")
    found, _ = run(tmp_path, "decode", *arguments, *(part for text in changed for part in ("--set", text)))
    rows = {row["name"]: row for row in found["rows"]}
    behind = ", ".join(changed)
    assert list(rows) == ["lamella", f"lamella, {behind}", "lamella int8", f"lamella int8, {behind}"]
    for name in ("lamella", "lamella int8"):
        assert rows[f"{name}, {behind}"]["kernel_launches"] > rows[name]["kernel_launches"]
    assert rows[f"lamella int8, {behind}"]["floor_ms"] == pytest.approx(rows["lamella int8"]["floor_ms"], rel=0.2)


def test_prefill_command_writes_one_file_a_length(tmp_path: Path) -> None:
    run(tmp_path, "prefill", *SHORT, "--tokens", "8,20", "--peers", "eager")
    for tokens in (8, 20):
        found = json.loads((tmp_path / "new" / f"result-{tokens}.json").read_text())
        assert [row["name"] for row in found["rows"]] == ["lamella", "eager"]
        assert found["shape"]["tokens"] == tokens and found["floor_ms"] == pytest.approx(found["flops"] * 1e3 / found["matmul_rate"])


def test_bytes_times_bytes_have_rows_but_no_bound(tmp_path: Path) -> None:
    """The rate of floats bounds weights in few bits, which become floats; it says nothing of products of bytes."""
    run(tmp_path, "prefill", *SHORT, "--tokens", "8", "--peers", "none", "--quantize", "int4,int8+int8")
    found = json.loads((tmp_path / "new" / "result.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["lamella", "lamella int4", "lamella int8+int8"]
    assert rows["lamella int4"]["bound_share"] == pytest.approx(found["floor_ms"] / rows["lamella int4"]["ms"])
    assert rows["lamella int8+int8"]["bound_share"] is None and rows["lamella int8+int8"]["ratio"] > 0


def test_decode_with_a_cache_of_bytes(tmp_path: Path) -> None:
    arguments = (*SHORT, "--context", "20", "--peers", "none", "--quantize", "fp8+fp8")
    found, _ = run(tmp_path, "decode", *arguments)
    narrow, _ = run(tmp_path, "decode", *arguments, "--kv-cache", "fp8")
    assert found["kv_cache"] == "auto" and narrow["kv_cache"] == "fp8"
    assert narrow["bytes"]["cache"] < found["bytes"]["cache"] and narrow["bytes"]["weights"] == found["bytes"]["weights"]
    assert [row["name"] for row in narrow["rows"]] == ["lamella", "lamella fp8+fp8"]


def test_kernels_command(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "kernels", *SHORT, "--context", "20")
    manifest = manifest_of(Shape.decode(), "f32", layers=1)
    launches = len(manifest.buckets[0].launches)
    assert sum(row["launches_a_step"] for row in found["rows"]) == launches and not any("error" in row for row in found["rows"])
    assert found["sum_of_kernels_us"] == pytest.approx(sum(row["us"] * row["launches_a_step"] for row in found["rows"]))
    weights = sum(prod(w.shape) for w in manifest.weights.values()) * 4
    assert sum(row["weights_mb"] for row in found["rows"]) * 1e6 == pytest.approx(weights)


def test_a_report_takes_what_the_benchmark_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No field of a result is known to the one side alone."""
    run(tmp_path, "kernels", *SHORT, "--context", "20")
    with configuration("tiny", 1) as config:
        args = ["report", str(config), "--random-weights", "0", "--tokens", "1", "--max-context", "64", "--dtype", "float32"]
        assert cli.main([*args, "--measured", str(tmp_path / "new" / "result.json")]) == 0
    assert "  the step" in capsys.readouterr().out


def test_kernels_of_packed_weights(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "kernels", *SHORT, "--context", "20", "--quantize", "int8")
    assert found["quantize"] == "int8" and not any("error" in row for row in found["rows"])
    assert any("dequantize contract" in row["made_of"] for row in found["rows"])


def test_compile_command_needs_neither_weights_nor_gpu(tmp_path: Path) -> None:
    # A process of its own: this one may interpret, and then compiles nothing.
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", "compile", "--config", "tiny", "--layers", "1", "--tokens", "1", "--max-context", "64"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [*command, "--device", "cpu", "-o", str(output)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    cold, warm = found["rows"]
    assert (cold["name"], warm["name"]) == ("cold", "warm") and cold["compiled"] == cold["kernels"] > 5 and warm["compiled"] == 0
    assert cold["seconds"] == pytest.approx(cold["passes_seconds"] + cold["kernels_seconds"])
    assert found["cores"] == os.cpu_count() and found["tokens"] == [1] and found["config"] == "tiny with 1 layers"


def test_start_command(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "start", "--config", "tiny", "--max-context", "64", "--repetitions", "1", "--tokens", "8,20")
    assert [(row["name"], row["tokens"]) for row in found["rows"]] == [
        ("lamella", 8),
        ("lamella", 20),
        ("hf-generate", 8),
        ("hf-generate", 20),
    ]
    assert all(row["ratio"] == pytest.approx(row["ms"] / ours["ms"]) for row, ours in zip(found["rows"][2:], found["rows"], strict=False))
    assert found["memory"]["predicted_bytes"] == sum(found["memory"]["pools"].values()) > found["memory"]["pools"]["weights"] > 0
    assert {"compile", "load"} <= set(found["load_seconds"])


def test_all_command_puts_every_benchmark_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lamella first, on weights that are loaded once, and then its peers; after each the file holds what is known."""
    compiled = Report("compile", CPU, {"config": "tiny"})
    compiled.add(name="cold", seconds=2.0)
    compiled.add(name="warm", seconds=1.0)
    loaded: list[int] = []

    def counting(*arguments: Any, **named: Any) -> Any:
        loaded.append(1)
        return loads(*arguments, **named)

    loads = everything.load
    monkeypatch.setattr(everything, "load", counting)
    monkeypatch.setattr(everything, "compile_time", lambda *_, **__: compiled)
    monkeypatch.setattr(everything, "measure_kernels", broken_kernels)
    arguments = ("all", *SHORT, "--context", "20", "--batches", "1,2", "--prompts", "8,70", "--seconds", "0.2")
    found, _ = run(tmp_path, *arguments, "--peers", "eager,hf-generate")
    rows = {row["name"]: row for row in found["rows"]}
    names = ["compile", "start", "decode, batch 1", "kernels, decode", "prefill, 8 tokens", "kernels, 8 tokens", "decode, batch 2"]
    assert list(rows) == [*names, "prefill, 70 tokens", "kernels, 70 tokens"]
    assert rows["compile"]["cold_seconds"] == 2 and rows["kernels, decode"]["error"] == "RuntimeError: no clock"
    assert len(loaded) == 1
    measured = [name for name in rows if not name.startswith("kernels")]
    assert [s["section"] for s in found["sections"]] == measured
    inside = {s["section"]: [row["name"] for row in s["rows"]] for s in found["sections"]}
    assert inside["decode, batch 1"] == ["lamella", "eager", "hf-generate"] and inside["decode, batch 2"] == ["lamella", "eager"]
    assert inside["start"] == ["lamella", "lamella", "hf-generate", "hf-generate"]
    assert (
        inside["prefill, 70 tokens"] == ["lamella", "eager"] and rows["prefill, 70 tokens"]["ratio"] == found["sections"][-1]["ratio"] > 0
    )
    late, text = run(tmp_path, *arguments, "--limit", "0", code=2)
    assert all(row["error"].startswith("not run") for row in late["rows"]) and "error: no benchmark ran" in text


def test_peers_do_not_begin_near_the_end() -> None:
    """Nor does a section after it. What was measured stays."""
    plan = everything.Plan([1], [8], 20, 64)
    run = everything.Run(Settings("tiny", Path("tiny.json"), CPU), plan, ["eager"], everything.PEER_SECONDS - 1)
    measured = Report("decode", CPU, {"config": "tiny"})
    measured.add(name="lamella", ms=1.0)
    asked: list[str] = []
    run.section("decode, batch 1", lambda: measured)
    run.peer("decode, batch 1", "eager", lambda report: asked.append("eager"))
    run.peer("decode, batch 8", "eager", lambda report: asked.append("eager"))
    run.limit = 0
    run.section("start", lambda: measured)
    assert asked == []
    assert measured.rows[0]["ms"] == 1 and measured.rows[1]["error"].startswith("not run") and len(measured.rows) == 2
    assert [row.get("error", "")[:7] for row in run.whole.rows] == ["", "not run"]
    assert [section["section"] for section in run.whole.facts["sections"]] == ["decode, batch 1"]


def broken_kernels(*_: Any) -> Report:
    """In the place of a benchmark that works."""
    raise RuntimeError("no clock\nat all")


def test_a_library_is_asked_for_the_products_of_a_kernel() -> None:
    """Those that share their input as one; attention by its sizes; nothing in the place of packed weights, which rows of 200 are not."""
    manifest = manifest_of(Shape.decode(2))
    bucket = manifest.buckets[0]
    found = {launch.kernel: counterpart(manifest, bucket, launch, 30) for launch in bucket.launches}
    shapes = [(x.rows, x.columns, x.outputs) for x in found.values() if isinstance(x, Product)]
    assert shapes == [(2, 96, 160), (2, 96, 96), (2, 96, 400), (2, 200, 96), (2, 96, 257)]
    (attention,) = (x for x in found.values() if isinstance(x, Attention))
    assert attention == Attention(2, 1, 30, 6, 2, 16, "bf16") and attention.name == "SDPA 2 x 6x16, 1 of 30"
    packed = manifest_of(Shape.decode(2), pass_options={"quantize-weights": {"kind": "int8", "group": 32, "head": "int8"}})
    others = [counterpart(packed, packed.buckets[0], launch, 30) for launch in packed.buckets[0].launches]
    assert {x.columns for x in others if isinstance(x, Product)} == {200}
    prefill = manifest_of(Shape.prefill(10))
    (attention,) = {x for y in prefill.buckets[0].launches if isinstance(x := counterpart(prefill, prefill.buckets[0], y, 30), Attention)}
    assert (attention.queries, attention.context) == (10, 10)


@pytest.mark.parametrize("wanted", [Product(2, 8, 12, "f32"), Attention(2, 3, 3, 4, 2, 8, "f32"), Attention(1, 1, 5, 4, 2, 8, "bf16")])
def test_a_library_is_timed(wanted: Product | Attention) -> None:
    ((name, us),) = microseconds(wanted, CPU, 1).items()
    assert name == ("cublas_us" if isinstance(wanted, Product) else "sdpa_math_us") and isinstance(us, float) and us > 0


def test_a_margin_is_counted_in_errors() -> None:
    exact = torch.tensor([[1.0, 0.5, 0.0], [0.0, 3.0, 2.9]])
    found = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.9, 3.0]])
    assert margin(found, exact, 0.25) == pytest.approx(0.4) and margin(exact, exact, 0.25) == 0


def test_accuracy_command(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "accuracy", "--config", "tiny", "--positions", "12", "--seeds", "0,1", "--dtype", "float32")
    assert [row["name"] for row in found["rows"]] == ["seed 0", "seed 1", "all"]
    assert found["ok"] and all(row["same_ids"] and len(row["ids"]) == 64 for row in found["rows"][:2])
    assert 0 < found["rows"][-1]["prefill_error"] < 1e-4 and found["rows"][0]["ids"] != found["rows"][1]["ids"]


def test_accuracy_command_fails_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.accuracy.LIMIT", 1e-9)
    found, _ = run(tmp_path, "accuracy", "--config", "tiny", "--positions", "4", "--seeds", "0", "--dtype", "bfloat16", code=1)
    assert not found["ok"] and found["rows"][-1]["decode_ratio"] > 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode", "--config", "tini"), "no such configuration: tini"),
        (("decode", "--config", "tiny", "--context", "60", "--max-context", "64"), "expected at most 64, got 60 + 51"),
        (("decode", "--config", "tiny", "--peers", "eagre"), "unknown peer eagre"),
        (("decode", "--config", "tiny", "--peers", "eager+int3"), "unknown weights of a peer int3"),
        (("decode", "--config", "tiny", "--peers", "hf-generate+int8"), "hf-generate+int8 is no peer in plain PyTorch"),
        (("decode", "--config", "tiny", "--set", "fuse-regions.prologues=false"), "prologues"),
        (("decode", "--config", "tiny", "--set", "fuse-region.prologue=false"), "fuse-region"),
        (("prefill", "--config", "tiny", "--peers", "hf-generate"), "a peer of decode alone"),
        (("prefill", "--config", "tiny", "--tokens", "x"), "no list of integers"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    _, text = run(tmp_path, *arguments, code=2)
    assert message in " ".join(text.split()) and "Traceback" not in text


@pytest.mark.parametrize("name", known_models())
def test_known_models_open(name: str) -> None:
    published = {
        "gemma-3-1b": 999_885_952,
        "llama-3.1-8b": 8_030_261_248,
        "llama-3.2-1b": 1_235_814_400,
        "qwen3-1.7b": 1_720_574_976,
        "qwen3-30b-a3b": 30_532_122_624,
        "smollm2-135m": 134_515_008,
        "tiny": None,
    }
    with configuration(name) as path:
        config = open_model(path, random_weights=0).config
    if published[name] is not None:
        assert sum(prod(s) for s in weight_shapes(config).values()) == published[name] and config.dtype == "bf16"

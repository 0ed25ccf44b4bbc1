"""Bytes of packed weights: what a step reads, by the costs and by the loads of its kernels, is what is stored: words and scales."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path

import pytest

from lamella import api
from lamella.passes.device import device
from lamella.program import Program
from lamella.runtime.manifest import DTYPE_BYTES
from lamella.tools import cli
from lamella.tools.report import packed_weights, weight_bytes
from lamella.tools.roofline import step_work
from tests.models.model_files import write_config

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
HELD = {"int8": 1.0, "int4": 0.5, "fp8": 1.0}
"""Bytes of a number."""


def compiled(folder: Path, kind: str) -> Program:
    return api.compile(write_config(folder, **SIZES), random_weights=0, quantize=kind, buckets=[1], max_context=64)


def size(program: Program, name: str) -> int:
    """Bytes of a weight in memory."""
    assert program.manifest is not None
    weight = program.manifest.weights[name]
    return prod(weight.shape) * DTYPE_BYTES[weight.dtype]


@pytest.mark.parametrize("kind", HELD)
def test_a_step_reads_words_and_scales_once(kind: str, tmp_path: Path) -> None:
    """All weights of the model but the embedding table, of which a step reads one row."""
    program = compiled(tmp_path, kind)
    manifest = program.manifest
    assert manifest is not None
    stored = sum(size(program, name) for name in manifest.weights if name != "embed")
    work = step_work(manifest, manifest.buckets[0], device("sm_90"), 64)
    assert work.cost.weights == stored + 512 * 2
    held, linears = weight_bytes(manifest), 2 * (4 * 512 * 512 + 3 * 512 * 1024)
    assert held[kind] == linears * HELD[kind] + (1024 * 512 if kind == "int8" else 0)
    assert 0 < held["scales"] < held[kind] / 4
    assert set(packed_weights(manifest).values()) == {kind, "int8", "scales"}


@pytest.mark.parametrize("kind", HELD)
def test_loads_of_kernels_cover_what_is_stored(kind: str, tmp_path: Path) -> None:
    """In launches whose programs all do the same, a program's distinct bytes times the programs are the bytes of words and scales."""
    program = compiled(tmp_path, kind)
    manifest = program.manifest
    assert manifest is not None
    packed, checked = packed_weights(manifest), 0
    for launch in manifest.buckets[0].launches:
        kernel = manifest.kernels[launch.kernel]
        read = [ref.name for ref in launch.args[: kernel.inputs] if ref.pool == "weight" and ref.name in packed]
        source = program.kernels[launch.kernel]
        body = source[source.index(f"def {launch.kernel}(") :]
        if not read or "else:" in body:
            continue
        loads = [a for a in program.accesses[launch.kernel] if a["op"] == "load"]
        times = repetitions(body)
        assert len(loads) == len(times)
        ends = ("words_ptr", "words_bytes", "scales_ptr", "mins_ptr")
        counted = [n * a["bytes"] for n, a in zip(times, loads, strict=True) if a["pointer"].rstrip("_0123456789").endswith(ends)]
        assert sum(counted) * prod(launch.grid) == sum(size(program, name) for name in read)
        checked += 1
    assert checked >= 5


def repetitions(body: str) -> list[int]:
    """How often each load of a kernel's text runs: once, or as often as the loop around it, over numbers or from `first` to `first` + a number."""
    times, inside, trips = [], 0, 1
    for line in body.splitlines():
        depth = len(line) - len(line.lstrip())
        trips = trips if depth > inside else 1
        loop = re.match(r"\s+for \w+ in tl\.range\((\w+), (\w+), (\d+)", line)
        if loop:
            low, high, step = loop.groups()
            run = re.search(rf"{high} = {low} \+ (\d+)", body)
            columns = int(run[1]) if run else int(high) - int(low)
            inside, trips = depth, columns // int(step)
        if "tl.load(" in line:
            times.append(trips)
    return times


@pytest.mark.parametrize("kind", HELD)
def test_inspect_and_report_show_bytes_by_kind(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(tmp_path, **SIZES))
    assert cli.main(["inspect", config, "--context", "64", "--quantize", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    held = found["memory"]["weights"]
    assert set(held) == {"bfloat16", kind, "int8", "scales"}
    assert sum(held.values()) == found["memory"]["bytes"]["weights"]
    assert cli.main(["inspect", config, "--context", "64", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert found["step"]["floor_us"] < plain["step"]["floor_us"]
    assert set(plain["memory"]["weights"]) == {"bfloat16"}
    assert cli.main(["report", config, "--random-weights", "0", "--max-context", "64", "--tokens", "1", "--quantize", kind]) == 0
    text = capsys.readouterr().out
    assert f"weights, {kind}" in text and "weights, scales" in text


@pytest.mark.parametrize("kind", HELD)
def test_explain_says_what_became_of_each_weight(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quantized or why not, and that each is unpacked where it is multiplied."""
    config = str(write_config(tmp_path, **{**SIZES, "tie_word_embeddings": True}))
    assert cli.main(["explain", config, "--random-weights", "0", "--max-context", "64", "--quantize", kind, "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    folded = [entry for entry in ledger if entry.get("kind") == "decode"]
    assert len(folded) == 16
    assert {entry["verdict"] for entry in folded} == {"joined"}
    made = [entry for entry in ledger if entry["verdict"] == "quantized"]
    assert len(made) == 15
    assert not [entry for entry in ledger if entry["verdict"] == "not_quantized"]
    (head,) = [entry for entry in made if entry["loc"] == "lm_head"]
    assert head["reason"] == "int8, whole rows, rows of transformer.embedding at embed too"
    (table,) = [entry for entry in folded if entry["producer"] == "tile.dequantize at embed"]
    assert table["consumer"] == "tile.cast at embed"

"""Models whose keys and values lie in the cache as float8: the executors agree, logits stay near, memory halves, and what cannot be is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lamella
from lamella import api
from lamella.errors import DtypeError, ManifestError
from lamella.frontends import open_model
from lamella.program import Shape
from lamella.runtime.manifest import Manifest
from lamella.runtime.perplexity import perplexity
from lamella.tools import cli
from lamella.tools.costs import pools, step_cost
from tests.models.model_files import write_config
from tests.models.tiny_families import CASES

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
FAMILIES = {"llama": "several heads", "gemma": "one head of keys", "qwen3": "heads that are normalized"}


@pytest.mark.parametrize("name", FAMILIES)
def test_executors_agree_and_logits_stay_near(name: str, tmp_path: Path) -> None:
    """A prompt in two chunks and teacher-forced decode: interpreted kernels as the reference, both within 8 % of the plain cache."""
    CASES[name].save(tmp_path)
    prompt, found = [5, 9, 2, 7, 1, 90, 33, 12, 40], {}
    for executor, kv_cache in (("reference", "auto"), ("reference", "fp8"), ("interpret", "fp8")):
        model = lamella.load(tmp_path, device="cpu", dtype="float32", executor=executor, max_context=32, buckets=[1, 8], kv_cache=kv_cache)
        session = model.session
        blocks = session.allocator.allocate(1)
        rows = []
        for start, end in ((0, 6), (6, 7), (7, 8), (8, 9)):
            bucket = next(b for b in session.manifest.buckets if b.advance == (end - start == 1))
            step = session.step(prompt[start:end], range(start, end), [0, end - start], [end], [blocks], [end - start - 1], bucket=bucket)
            rows.append(step.logits[0])
        found[executor, kv_cache] = torch.stack(rows)
    exact, reference, kernels = found.values()
    torch.testing.assert_close(kernels, reference, rtol=1e-4, atol=1e-4)
    assert 0 < (reference - exact).norm() < 0.08 * exact.norm()


def manifest_of(folder: Path, kv_cache: str, **settings: object) -> Manifest:
    program = api.compile(
        write_config(folder, **SIZES), random_weights=0, buckets=[1], max_context=64, dtype="bfloat16", kv_cache=kv_cache, **settings
    )
    assert program.manifest is not None
    return program.manifest


def test_memory_and_bytes_read_are_halved(tmp_path: Path) -> None:
    """A byte a number and a float32 a head, in what is predicted, what is allocated and what a step reads; the manifest keeps it."""
    plain, small = (manifest_of(tmp_path, kind) for kind in ("auto", "fp8"))
    numbers, heads = 2 * 2 * 2 * 16, 2 * 2 * 2
    assert plain.cache.block_bytes == 16 * numbers * 2
    assert small.cache.block_bytes == 16 * (numbers + heads * 4)
    assert pools(small, 64)["cache"] == 5 * small.cache.block_bytes
    read = [step_cost(m, m.buckets[0], 48).cache for m in (plain, small)]
    written = [numbers * 2, numbers + heads * 4]
    assert read == [48 * m.cache.block_bytes // 16 + new for m, new in zip((plain, small), written, strict=True)]
    again = Manifest.from_json(json.loads(json.dumps(small.to_json())))
    assert again == small
    assert {ref.pool for launch in small.buckets[0].launches for ref in launch.args} >= {"cache", "scales"}
    broken = small.to_json() | {"cache": plain.to_json()["cache"]}
    with pytest.raises(ManifestError, match="a cache without scales"):
        Manifest.from_json(broken)


def test_loaded_memory_is_what_was_predicted(tmp_path: Path) -> None:
    model = lamella.load(
        write_config(tmp_path, **SIZES), random_weights=0, device="cpu", buckets=[1, 8], max_context=64, dtype="bfloat16", kv_cache="fp8"
    )
    memory = model.executor.memory
    held = sum(t.nbytes for t in (*memory.caches, *memory.scales))
    assert held == pools(memory.manifest, 64)["cache"]
    assert [t.dtype for t in (memory.caches[0], memory.scales[0])] == [torch.float8_e4m3fn, torch.float32]
    model.generate([5, 9, 2], max_new_tokens=3, ignore_eos=True)


def test_refusals(tmp_path: Path) -> None:
    config = write_config(tmp_path, **SIZES)
    with pytest.raises(DtypeError, match="unsupported cache"):
        api.compile(config, random_weights=0, kv_cache="int8")
    with pytest.raises(DtypeError, match="the cache is of floats of eight bits, expected sm_89 or newer, got sm_80"):
        api.compile(config, random_weights=0, kv_cache="fp8", arch="sm_80", buckets=[1], max_context=32)
    with pytest.raises(DtypeError, match="an encoder keeps nothing"):
        api.cached_as(replace(opened := open_model(config, random_weights=0), config=replace(opened.config, causal=False)), "fp8")
    with pytest.raises(DtypeError, match="the head alone"):
        api.compile(config, random_weights=0, quantize_head="int8")


def test_commands_take_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(tmp_path, **SIZES, tie_word_embeddings=True))
    stored = ["--quantize", "int8", "--quantize-head", "none", "--kv-cache", "fp8"]
    run = ["--random-weights", "0", "--device", "cpu", "--max-context", "32", "--max-new-tokens", "3", "--ignore-eos"]
    assert cli.main(["generate", config, "--prompt-ids", "5,9,2", *run, *stored]) == 0
    assert len(capsys.readouterr().out.strip().split(",")) == 3
    assert cli.main(["inspect", config, "--context", "64", "--json", *stored]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["memory"]["weights"]) == {"float32", "int8", "scales"}
    assert cli.main(["report", config, "--random-weights", "0", "--max-context", "64", "--tokens", "1", *stored]) == 0
    assert "cache, f8" in capsys.readouterr().out
    assert cli.main(["explain", config, "--random-weights", "0", "--max-context", "64", "--json", *stored]) == 0
    ledger = json.loads(capsys.readouterr().out)
    (kept,) = [entry for entry in ledger if entry["verdict"] == "not_quantized" and entry["loc"] == "lm_head"]
    assert kept["reason"] == "the head keeps its weight: head=none"


@pytest.mark.slow
def test_perplexity_grows_little(smollm2: Path) -> None:
    """SmolLM2 on the tests' text: 0.16 % more than with a float32 cache."""
    text = (Path(__file__).parent / "texts" / "harbor.txt").read_text(encoding="utf-8")
    model = lamella.load(
        smollm2, device="cpu", dtype="float32", max_context=512, buckets=[Shape.decode(), Shape(256, 1, 256, 256)], kv_cache="fp8"
    )
    found = perplexity(model.session, model.opened.require_tokenizer().encode(text), 512).value
    assert 24.99 < found < 24.99 * 1.005

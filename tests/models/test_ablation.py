"""Every pass that may be left out may be left out: each variant of the ablation computes the logits of the whole pipeline."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.ablation import BASELINE, VARIANTS, Timer, Variant, compile_variant, equal, page
from benchmarks.configurations import configuration
from benchmarks.settings import Settings
from lamella import pipeline
from lamella.errors import PassError
from lamella.frontends import open_model
from lamella.program import Program, Shape, compile_model
from lamella.tools.cli import main
from tests.models.tiny_llama import BASE, CONTEXT, Tiny, peer, text, weights_of

ROOT = Path(__file__).resolve().parents[2]
SHAPES = (Shape.decode(), Shape.prefill(20))
CONFIG = replace(BASE, layers=2)
PROMPT = 17


def compiled(variant: Variant, dtype: str = "f32", *, kernels: bool = True, verify_each: bool = False) -> Program:
    return compile_model(
        CONFIG,
        SHAPES,
        dtype=dtype,
        max_context=CONTEXT,
        kernels=kernels,
        pass_options=variant.options,
        skip=variant.skip,
        verify_each=verify_each,
    )


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    model = peer(CONFIG)
    return Tiny(CONFIG, model, weights_of(CONFIG, model), compiled(BASELINE, kernels=False, verify_each=True))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_a_variant_computes_what_the_whole_pipeline_computes(tiny: Tiny, variant: Variant) -> None:
    ids = text(PROMPT + 4, 5)
    found = []
    for program in (tiny.program, compiled(variant, kernels=False, verify_each=True)):
        session = replace(tiny, program=program).session("reference")
        # A prompt in one launch, and the same ids one by one.
        prefill = session.forward_logits(ids[:PROMPT])
        session.prefill_buckets = []
        found.append(torch.cat([prefill, session.forward_logits(ids[:PROMPT])]))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=2e-4)
    torch.testing.assert_close(found[0][:PROMPT], tiny.logits(ids[:PROMPT]), rtol=0, atol=2e-3)


def test_every_optional_pass_is_a_variant() -> None:
    # Passes that only check, or only tidy up after others, change no program; those that quantize, lay-scales, and what serves packed weights change none unless asked to.
    left_out = {name for variant in VARIANTS for name in variant.skip}
    packed = {"quantize-weights", "quantize-activations", "lay-scales", "swap-pairs", "split-reductions", "limit-registers"}
    assert set(pipeline.optional_passes()) - left_out == {"dce", "check-plan", "check-pipelines", "check-coalescing", *packed}


@pytest.mark.parametrize("name", sorted({s.name for stage in pipeline.STAGES for s in stage.passes} - {*pipeline.optional_passes()}))
def test_a_needed_pass_is_refused_by_name(name: str) -> None:
    with pytest.raises(PassError, match=f"cannot lower without '{name}' .can be left out: canonicalize, "):
        compiled(Variant("", skip=(name,)))


def test_a_pass_that_another_one_needs_is_refused_by_what_is_left() -> None:
    with pytest.raises(PassError, match=r"cannot lower without fold-constants: transformer\.pair_rows: no lowering"):
        compiled(Variant("", skip=("fold-constants",)))


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(PassError, match=r"no pass 'fold-norm-scales' in the pipeline .nearest: fold-norm-scale"):
        compiled(Variant("", skip=("fold-norm-scales",)))


def test_what_a_pass_does_is_missing_without_it() -> None:
    interesting = (BASELINE.name, "fuse-regions", "plan-memory", "without propagate", "without fold-norm-scale", "without dependent")
    printed = (BASELINE.name, "without dependent-launch")
    programs = {v.name: compiled(v, "bf16", kernels=v.name in printed) for v in VARIANTS if v.name.startswith(interesting)}
    launches = {name: [len(b.launches) for b in p.manifest.buckets] for name, p in programs.items() if p.manifest is not None}
    arenas = {name: [b.arena_bytes for b in p.manifest.buckets] for name, p in programs.items() if p.manifest is not None}
    base = BASELINE.name
    for name in ("fuse-regions{max-depth=0}", "fuse-regions{horizontal=false}", "fuse-regions{epilogue=false}", "without propagate-layout"):
        assert all(a > b for a, b in zip(launches[name], launches[base], strict=True)), name
    assert all(a > b for a, b in zip(arenas["plan-memory{reuse=false}"], arenas[base], strict=True))
    scaled = programs["without fold-norm-scale"].manifest
    assert scaled is not None and not any(".scaled" in name for name in scaled.weights)
    assert not any("gdc_wait" in text for text in programs["without dependent-launch"].kernels.values())
    assert all("gdc_wait" in text for text in programs[base].kernels.values())
    lets_go = {name: "gdc_launch_dependents" in text for name, text in programs[base].kernels.items()}
    assert all(goes for name, goes in lets_go.items() if name.startswith("t1_")) and not all(lets_go.values())
    assert not equal(programs[base], programs["without dependent-launch"])


def test_the_command_writes_rows_and_a_page(tmp_path: Path) -> None:
    out, doc = tmp_path / "a.json", tmp_path / "a.md"
    found = CliRunner().invoke(
        app,
        [
            "ablation",
            "tiny",
            "--layers",
            "1",
            "--device",
            "cpu",
            "--tokens",
            "8",
            "--max-context",
            "64",
            "--context",
            "20",
            "-o",
            str(out),
            "--doc",
            str(doc),
        ],
    )
    assert found.exit_code == 0, found.output
    document: dict[str, Any] = json.loads(out.read_text())
    assert [row["name"] for row in document["rows"]] == [v.name for v in VARIANTS]
    assert {row["bucket"] for row in document["rows"]} == {"t8"}
    assert not any("us" in row for row in document["rows"]) and document["config"] == "tiny with 1 layers"
    assert doc.read_text() == page(document) and doc.read_text().count("\n| ") == len(VARIANTS) + 1


def test_a_timer_runs_every_program_on_the_same_weights() -> None:
    cpu = torch.device("cpu")
    with configuration("tiny", 1) as path:
        opened = open_model(path, random_weights=0)
        variants = (BASELINE, Variant("a", skip=("propagate-layout",)), Variant("b", skip=("dependent-launch",)))
        programs = [compile_variant(opened.config, SHAPES, "f32", 64, variant) for variant in variants]
        # Programs come from other processes.
        assert all(equal(program, pickle.loads(pickle.dumps(program))) for program in programs)
        timer = Timer.of(opened, programs, Settings("tiny", path, cpu, "float32", 2, 1), 20)
    first, changed, same = (timer.measure(program) for program in programs)
    assert first is timer.measure(programs[0]) and set(first) == {"t1", "t20"}
    assert all(row["us"] > 0 for found in (first, changed, same) for row in found.values())
    assert first["t20"]["logit_error"] == same["t20"]["logit_error"] == 0 and changed["t20"]["logit_error"] < 1e-5
    assert len({name for name, *_ in timer.source.kept}) == len(timer.source.kept)


def test_a_measured_page_shows_times() -> None:
    row = {"bucket": "t1", "launches": 2, "launches_a_layer": 1.0, "kernels": 2, "bytes": 1, "activation_bytes": 1, "arena_bytes": 1}
    rows = [{"name": "all passes", **row, "same_program": False, "us": 10.0}, {"name": "off", **row, "same_program": False, "us": 15.0}]
    shape = {"context": 3, "max_context": 4}
    facts = {
        "config": "c",
        "dtype": "bf16",
        "model": {"layers": 1, "hidden": 2},
        "shape": shape,
        "command": "x",
        "device": "d",
        "date": "2026-01-01T",
    }
    assert "| off | 2 | 1 | 2 | 0.00 | 0.00 | 0.0 | 15.0 | 1.500 × |" in page({**facts, "rows": rows})


def test_the_documented_table_is_the_recorded_one() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/ablation-llama-3.2-1b.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs/ablation.md").read_text(encoding="utf-8") == page(recorded)


def test_the_command_line_leaves_a_pass_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = [
        str(ROOT / "benchmarks/models/tiny.json"),
        "--random-weights",
        "0",
        "--tokens",
        "1",
        "--max-context",
        "64",
        "--dtype",
        "float32",
    ]
    assert main(["compile", *model, "-o", str(tmp_path / "without"), "--without", "fold-norm-scale", "--without", "dependent-launch"]) == 0
    kernels = [file.read_text() for file in (tmp_path / "without/kernels").iterdir()]
    assert kernels and not any("gdc_wait" in text or "proj_scaled" in text for text in kernels)
    assert main(["compile", *model, "-o", str(tmp_path / "refused"), "--without", "bufferize"]) == 2
    assert "the pipeline cannot lower without 'bufferize'" in capsys.readouterr().err and not (tmp_path / "refused").exists()

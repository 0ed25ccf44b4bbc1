"""What is made of results: tables of several runs side by side, and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app


def result(**changes: Any) -> dict[str, Any]:
    """What a run of `all` may leave."""
    kernel = {
        "name": "t1_gemv_0",
        "made_of": "contract",
        "launches_a_step": 2,
        "us": 4.0,
        "gb_s": 4000.0,
        "tflop_s": 1.0,
        "bound_share": 0.8,
    }
    kernels = {
        "section": "kernels, decode",
        "benchmark": "kernels",
        "rows": [{**kernel, "library": "cuBLAS 1x8 @ 8x8", "library_us": 5.0, "library_ratio": 1.25}, {"name": "t1_row_0", "error": "no"}],
        "step": {"ms": 0.01},
        "sum_of_kernels_us": 8.0,
    }
    model = {"layers": 2, "hidden": 8, "ffn": 8, "vocabulary": 9}
    decode = {
        "section": "decode, batch 1",
        "benchmark": "decode",
        "config": "tiny",
        "shape": {"batch": 1, "context": 20, "max_context": 64},
        "model": model,
        "dtype": "bf16",
        "floor_ms": 0.005,
        "rows": [{"name": "lamella", "ms": 0.01}, {"name": "eager", "ms": 0.2}, {"name": "compile", "error": "no"}],
    }
    start = {
        "section": "start",
        "benchmark": "start",
        "rows": [{"name": "lamella", "tokens": 8, "ms": 1.0}, {"name": "hf-generate", "error": "not run"}],
        "memory": {"driver_bytes": 2 << 20},
    }
    whole = {"benchmark": "all", "config": "tiny", "device": "a GPU", "command": "all", "date": "today", "rows": []}
    return {**whole, "sections": [start, decode, kernels], **changes}


def test_summary_puts_two_runs_side_by_side(tmp_path: Path) -> None:
    second = result()
    second["sections"][1]["rows"][0]["ms"] = 0.011
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, document in zip(files, (result(), second), strict=True):
        file.write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["summary", *map(str, files)])
    assert shown.exit_code == 0, shown.output
    assert "| lamella | ms | 0.010 | 0.011 | 9.5 % |" in shown.output
    assert "| driver |  | 2 MiB | 2 MiB | 0.0 % |" in shown.output and "| lamella, 8 tokens | ms | 1.000 | 1.000 | 0.0 % |" in shown.output
    assert "| t1_gemv_0 | contract | 2 | 4.00 | 4000 | 1.0 | 80 % | cuBLAS 1x8 @ 8x8 | 5.00 | 1.25 |" in shown.output
    assert "The step takes 10.0 us, its kernels by themselves 8.0: +2.0 us (+20.0 %) between them." in shown.output
    page = tmp_path / "page.md"
    assert CliRunner().invoke(app, ["summary", *map(str, files), "--doc", str(page)]).exit_code == 0
    assert page.read_text() == shown.output
    files[1].write_text(json.dumps(result(config="other")))
    wrong = CliRunner().invoke(app, ["summary", *map(str, files)])
    assert wrong.exit_code == 2 and "different models" in wrong.output
    files[1].write_text("{}")
    assert "no result of a benchmark" in CliRunner().invoke(app, ["summary", *map(str, files)]).output


def test_picture_draws_a_bar_a_way_to_decode(tmp_path: Path) -> None:
    """Lamella first, a bar as long as its time; one that is far longer is cut."""
    file, drawn = tmp_path / "a.json", tmp_path / "speed.svg"
    file.write_text(json.dumps(result()))
    made = CliRunner().invoke(app, ["picture", str(file), "-o", str(drawn)])
    assert made.exit_code == 0, made.output
    root = ElementTree.fromstring(drawn.read_text())
    texts = [element.text for element in root if element.tag.endswith("text")]
    assert texts[2:] == ["tiny, bf16, batch 1, context 20", "lamella", "0.010 ms", "eager", "0.200 ms, 20.00 ×"]
    bars = [float(e.attrib["width"]) for e in root if e.tag.endswith("rect") and e.attrib.get("rx")]
    assert bars[1] == pytest.approx(3 * bars[0], rel=1e-2)
    file.write_text(json.dumps(result(sections=[])))
    assert "no decode step" in CliRunner().invoke(app, ["picture", str(file), "-o", str(drawn)]).output

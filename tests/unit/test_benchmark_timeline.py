"""`python -m benchmarks timeline`: kernels that stamp, what their records say of launches, and the picture of a layer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import timeline
from benchmarks.__main__ import app
from lamella import api
from lamella.errors import DeviceError, LamellaError
from lamella.program import Program, Shape
from lamella.tools.cross_compile import cross_compile

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "benchmarks" / "models" / "tiny.json"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> timeline.Log:
    """A small log, on the CPU."""
    monkeypatch.setattr(timeline, "CAPACITY", 64)
    return timeline.Log.on(torch.device("cpu"))


def program(*shapes: Shape) -> Program:
    """Steps of the tiny model."""
    return api.compile(TINY, random_weights=0, buckets=shapes, max_context=64, dtype="bfloat16", keep_ir=False)


def test_kernels_stamp_where_they_start_wait_and_end(log: timeline.Log) -> None:
    """All kernels of decode and of a prompt compile with their stamps; each wait has one behind it, in its own branch."""
    made = program(Shape.decode(), Shape.prefill(20))
    stamped = {name: log.stamped(text, name, number) for number, (name, text) in enumerate(made.kernels.items())}
    waits = {name: text.count(timeline.WAIT) for name, text in made.kernels.items()}
    assert max(waits.values()) > 1, "a kernel whose branches wait by themselves"
    for name, text in stamped.items():
        body = text.split(f"def {name}(")[1]
        assert (
            body.count("t_waited = tl.extra.cuda.globaltimer()") == waits[name] and body.count("t_start = ") == body.count("t_end = ") == 1
        )
        lines = body.splitlines()
        for number, line in enumerate(lines):
            if line.strip() == timeline.WAIT:
                assert lines[number + 1] == line.replace(timeline.WAIT, "t_waited = tl.extra.cuda.globaltimer()")
        assert text.startswith(made.kernels[name][:80]), "what stands before the kernel stays"
    assert {figure.name for figure in cross_compile(stamped, "sm_90", pdl=True)} == set(stamped)


def records(*rows: tuple[int, int, int, int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def test_records_become_launches() -> None:
    """Programs of a kernel belong to the launches in the order in which their waits were over, in whatever order they lie in the log."""
    (bucket,) = program(Shape.decode()).manifest.buckets  # type: ignore[union-attr]
    first, second = bucket.launches[1], bucket.launches[2]
    pair = [replace(first, grid=(2, 1, 1)), replace(second, grid=(1, 1, 1)), replace(first, grid=(2, 1, 1))]
    made = records((9000, 9500, 9900, 0), (1000, 1500, 2000, 0), (1100, 1500, 2600, 0), (1200, 3000, 3500, 1), (3100, 9400, 9700, 0))
    found = timeline.launches(made, replace(bucket, launches=tuple(pair)), [first.kernel, second.kernel])
    assert [row["name"] for row in found] == [first.kernel, second.kernel, first.kernel]
    assert [found[0][name] for name in timeline.TIMES] == [0.0, 0.1, 0.5, 1.0, 1.0, 1.6]
    assert [found[2][name] for name in timeline.TIMES] == [2.1, 8.0, 8.4, 8.7, 8.7, 8.9]
    rows = timeline.by_kernel(found)
    assert [(row["name"], row["launches"]) for row in rows] == [(second.kernel, 1), (first.kernel, 1)]
    assert rows[0]["starts"] == pytest.approx(0.2 - 1.6) and rows[0]["waited"] == pytest.approx(2.0 - 1.6)
    with pytest.raises(LamellaError, match=f"records of {first.kernel} are missing, expected 2, got 1"):
        timeline.launches(made[:4], replace(bucket, launches=tuple(pair)), [first.kernel, second.kernel])


def test_a_log_that_is_full_says_so(log: timeline.Log) -> None:
    log.count.fill_(65)
    with pytest.raises(DeviceError, match="the step has too many programs, expected at most 64, got 65"):
        log.read()
    log.count.fill_(2)
    assert log.read().shape == (2, 4)


def document() -> dict[str, Any]:
    """A timeline of two layers."""
    rows: list[dict[str, Any]] = []
    for number in range(4):
        times = (number * 10 - 3.0, number * 10 - 1.0, number * 10 + 1.0, number * 10 + 2.0, number * 10 + 5.0, number * 10 + 9.0)
        place = f"layers.{number // 2}.attn" if number % 2 else f"layers.{number // 2}"
        rows.append({"name": f"t1_gemv_{number}", "loc": place, "programs": 7, **dict(zip(timeline.TIMES, times, strict=True))})
    rows.append({**rows[-1], "name": "t1_sample_0", "loc": ""})
    return {"benchmark": "timeline", "config": "tiny", "dtype": "bf16", "model": {"layers": 2}, "launches": rows}


def test_the_picture_shows_one_layer() -> None:
    svg = timeline.picture(document())
    assert "t1_gemv_2 x7" in svg and "t1_gemv_3 x7" in svg and "t1_gemv_0" not in svg and "t1_sample" not in svg
    assert svg.count(timeline.WORK) == svg.count(timeline.DRAIN) == svg.count(timeline.EARLY) == 2 and ">8.0<" in svg
    assert "t1_gemv_0 x7" in timeline.picture(document(), 0)
    with pytest.raises(LamellaError, match="layer 5: no launch is of that layer"):
        timeline.picture(document(), 5)
    with pytest.raises(LamellaError, match="these results hold no timeline"):
        timeline.picture({"benchmark": "decode"})


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    result = CliRunner().invoke(app, ["timeline", "--config", "tiny", "--device", "cpu"])
    assert result.exit_code == 2
    assert "error: a timeline is read off a GPU's clock, got cpu" in result.output + result.stderr


@pytest.mark.gpu
def test_a_timeline_on_the_device(tmp_path: Path) -> None:
    """Launches end in the order in which they were queued, none starts to work before the one before has ended, and the picture is there."""
    out, svg = tmp_path / "t.json", tmp_path / "t.svg"
    arguments = [
        "timeline",
        "--config",
        "tiny",
        "--max-context",
        "256",
        "--context",
        "40",
        "--steps",
        "5",
        "-o",
        str(out),
        "--svg",
        str(svg),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())["launches"]
    assert len(found) > 10
    for before, after in pairwise(found):
        assert after["last_end"] > before["last_end"] and after["waited"] > before["last_end"]
    assert "<svg" in svg.read_text()

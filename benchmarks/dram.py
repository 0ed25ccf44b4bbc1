# pyright: basic
"""A configuration and kinds of weights enter; what each kernel of a decode step reads from memory, by its IR and by Nsight Compute, leaves."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.lamella_runner import decode_step, load
from benchmarks.nsight import Counted, find_ncu, profiled
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.traffic import launch_reads, launch_traffic
from lamella.errors import DeviceError, LamellaError
from lamella.program import Shape

ROOT = Path(__file__).resolve().parents[1]
LARGE = 1 << 20
"""Bytes. Of kernels that read less, what the driver reads and whole sectors of 32 bytes are a part that counts."""
COLUMNS = ("name", "launches", "weights_kb", "expected_kb", "measured_kb", "ratio", "worst", "written_kb", "us", "made_of")


@dataclass(frozen=True)
class Shapes:
    """Of the decode step: sequences, tokens each has after the step, and has room for."""

    batch: int
    context: int
    max_context: int


def traffic(settings: Settings, shapes: Shapes, *, quantize: Sequence[str], ncu: Path | None = None) -> Report:
    """For each kind of weights and each kernel of a decode step: bytes read by the manifest (`expected_kb`, of which `weights_kb`), and by
    the counters of the memory (`measured_kb`, the median of its launches), and their `ratio`.

    Each kind runs in a process of its own under Nsight Compute, one launch at a time, caches emptied before each. A row with the name of the
    kind alone is the whole step; `worst` is, of its kernels that read at least LARGE bytes, the ratio farthest from 1. Of bytes written many
    are still in the cache when a kernel ends. Raises DeviceError where there is no GPU or no profiler, LamellaError where no kind was counted.
    """
    if settings.device.type != "cuda":
        raise DeviceError("bytes are counted by a GPU", got=str(settings.device), remedy="use --device cuda")
    return compared(settings, shapes, quantize, find_ncu(ncu))


def compared(settings: Settings, shapes: Shapes, quantize: Sequence[str], ncu: Path) -> Report:
    """`traffic` with the profiler found, on any device."""
    facts = {"config": settings.name, "large_bytes": LARGE}
    report = Report("traffic", settings.device, facts, settings.output)
    errors: list[LamellaError] = []
    for kind in quantize:
        try:
            expected, counted = counted_step(settings, shapes, kind, ncu)
        except DeviceError:
            raise
        except LamellaError as error:  # the other kinds may do
            errors.append(error)
            report.add(name=kind, error=str(error))
            continue
        report.note(**expected["facts"])
        add_kind(report, kind, expected["launches"], counted)
    if len(errors) == len(quantize):
        raise errors[-1]
    where = f"batch {shapes.batch}, context {shapes.context}, {report.facts['device']}"
    report.table(COLUMNS, f"bytes read from memory: {settings.name}, {report.facts['dtype']}, {where}")
    return report


def counted_step(settings: Settings, shapes: Shapes, kind: str, ncu: Path) -> tuple[dict[str, Any], list[Counted]]:
    """What `one_step` says of a kind in a process of its own, and what was counted there. Raises LamellaError."""
    with TemporaryDirectory(prefix="lamella-traffic-") as scratch:
        said = Path(scratch) / "expected.json"
        command = [sys.executable, "-m", "benchmarks", "one-step", "--config", str(settings.config.resolve()), "--quantize", kind]
        command += ["--batch", str(shapes.batch), "--context", str(shapes.context), "--max-context", str(shapes.max_context)]
        command += ["--dtype", settings.dtype, "--device", settings.device.type, "--output", str(said)]
        counted = profiled(ncu, command, ROOT)
        return json.loads(said.read_text(encoding="utf-8")), counted


def one_step(settings: Settings, shapes: Shapes, *, quantize: str) -> None:
    """Runs one decode step, launch by launch, with the profiler on, and writes what its launches should read and write to `output`."""
    model = load(
        settings.config,
        [Shape.decode(shapes.batch)],
        device=settings.device,
        dtype=settings.dtype,
        max_context=shapes.max_context,
        sequences=shapes.batch,
        quantize=quantize,
        graphs=False,
    )
    manifest = model.executor.manifest
    bucket = manifest.buckets[0]
    step = decode_step(model, shapes.context, 1)
    assert settings.output is not None
    launches = []
    for launch in bucket.launches:
        read = launch_reads(manifest, bucket, launch, shapes.context)
        written = launch_traffic(manifest, bucket, launch, shapes.context) - read.bytes
        made_of = " ".join(manifest.kernels[launch.kernel].sources)
        launches.append({"kernel": launch.kernel, "read": read.bytes, "weights": read.weights, "written": written, "made_of": made_of})
    sizes = {"batch": shapes.batch, "context": shapes.context, "max_context": shapes.max_context}
    facts = settings.facts(model.opened.config, manifest.dtype, **sizes)
    settings.output.write_text(json.dumps({"facts": {k: v for k, v in facts.items() if k != "config"}, "launches": launches}))
    if settings.device.type != "cuda":
        step()
        return
    torch.cuda.synchronize(settings.device)
    torch.cuda.profiler.start()
    step()
    torch.cuda.synchronize(settings.device)
    torch.cuda.profiler.stop()


def add_kind(report: Report, kind: str, launches: Sequence[Mapping[str, Any]], counted: Sequence[Counted]) -> None:
    """A row for each kernel of a step, and one for all of them. Raises nothing: a kernel that was not counted has an `error`."""
    expected: dict[str, list[Mapping[str, Any]]] = {}
    for launch in launches:
        expected.setdefault(launch["kernel"], []).append(launch)
    found: dict[str, list[Counted]] = {}
    for one in counted:
        found.setdefault(one.kernel, []).append(one)
    total, worst = Counter[str](), None
    for kernel, own in expected.items():
        seen, name = found.pop(kernel, []), f"{kind} {kernel}"
        if len(seen) != len(own):
            report.add(name=name, error=f"{len(own)} launches, of which {len(seen)} were counted", launches=len(own))
            continue
        wanted = {key: median(launch[key] for launch in own) for key in ("read", "weights", "written")}
        measured = {key: median(getattr(one, key) for one in seen) for key in ("read", "written", "nanoseconds")}
        ratio = measured["read"] / wanted["read"] if wanted["read"] else None
        if ratio is not None and wanted["read"] >= LARGE and (worst is None or abs(ratio - 1) > abs(worst - 1)):
            worst = ratio
        total.update({f"expected {key}": sum(launch[key] for launch in own) for key in wanted})
        total.update({key: sum(getattr(one, key) for one in seen) for key in measured})
        report.add(name=name, launches=len(own), **_fields(wanted, measured), ratio=ratio, made_of=own[0]["made_of"])
    wanted = {key: total[f"expected {key}"] for key in ("read", "weights", "written")}
    measured = {key: total[key] for key in ("read", "written", "nanoseconds")}
    ratio = measured["read"] / wanted["read"] if wanted["read"] else None
    others = sorted(found)
    report.add(name=kind, launches=len(launches), **_fields(wanted, measured), ratio=ratio, worst=worst, other_kernels=others or None)


def _fields(wanted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float | None]:
    nanoseconds = measured["nanoseconds"]
    return {
        "weights_kb": wanted["weights"] / 1e3,
        "expected_kb": wanted["read"] / 1e3,
        "measured_kb": measured["read"] / 1e3,
        "expected_written_kb": wanted["written"] / 1e3,
        "written_kb": measured["written"] / 1e3,
        "us": nanoseconds / 1e3,
        "gb_s": measured["read"] / nanoseconds if nanoseconds else None,
    }

# pyright: basic
"""What each pass is worth: a model is compiled with one pass off at a time; launches, bytes, arena and microseconds of each variant leave."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.lamella_runner import decode_step, prefill_step
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.timing import measure, release
from lamella import api
from lamella.checkpoints import TensorSource
from lamella.frontends import LoadedModel, ModelConfig, open_model
from lamella.pipeline import PassOptions
from lamella.program import Program, Shape, compile_model
from lamella.runtime.compile_kernels import compile_kernels, requests
from lamella.runtime.executor import make_executor
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.manifest import Bucket, Manifest
from lamella.runtime.weights import load_weights
from lamella.tools.costs import context_of, step_cost

COLUMNS = (
    "name",
    "bucket",
    "launches",
    "launches_a_layer",
    "kernels",
    "bytes",
    "activation_bytes",
    "arena_bytes",
    "us",
    "spread",
    "logit_error",
)


@dataclass(frozen=True)
class Variant:
    """The pipeline with something off: passes that do not run, or options of passes."""

    name: str
    skip: tuple[str, ...] = ()
    options: PassOptions = field(default_factory=dict)


def without(*names: str) -> Variant:
    """Without some passes."""
    return Variant(f"without {', '.join(names)}", skip=names)


def with_option(name: str, option: str, value: int | bool | str) -> Variant:
    """With one option of a pass."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return Variant(f"{name}{{{option}={shown}}}", options={name: {option: value}})


BASELINE = Variant("all passes")
VARIANTS: tuple[Variant, ...] = (
    BASELINE,
    without("canonicalize"),
    without("split-linears"),
    without("cse"),
    without("canonical-order"),
    without("fold-norm-scale"),
    without("propagate-layout"),
    # Who makes expressions of weights needs fold-constants, so that it can only go with them.
    without("fold-norm-scale", "propagate-layout", "fold-constants"),
    without("choose-implementation"),
    without("commute-row-scale"),
    with_option("fuse-regions", "max-depth", 0),
    *(with_option("fuse-regions", s, False) for s in ("vertical", "horizontal", "epilogue", "prologue", "shared", "siblings")),
    with_option("choose-schedule", "tuning", "off"),
    with_option("choose-schedule", "split-attention", False),
    with_option("choose-schedule", "split-sampling", False),
    without("in-place"),
    with_option("plan-memory", "reuse", False),
    without("hoist-loads"),
    without("dependent-launch"),
)
"""All passes, then each off in turn."""


@dataclass(frozen=True)
class Held:
    """A source whose tensors are kept after they were first asked for, so that every variant is made of the same ones."""

    source: TensorSource
    kept: dict[tuple[str, str | None, str], torch.Tensor] = field(default_factory=dict)

    def names(self) -> list[str]:
        return self.source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(name)

    def dtype(self, name: str) -> str:
        return self.source.dtype(name)

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        key = (name, dtype, device)
        if key not in self.kept:
            self.kept[key] = self.source.load(name, dtype, device)
        return self.kept[key]

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def describe(self) -> Mapping[str, object]:
        return self.source.describe()


def ablation(
    settings: Settings, *, tokens: Sequence[int], context: int, max_context: int, variants: Sequence[Variant] = VARIANTS
) -> Report:
    """A row for each variant and bucket; times, and the distance of the logits from those of the first variant, only on a GPU.

    Decode (1 token) runs at `context` tokens, prefill from an empty cache. All variants compute with the same random weights; their kernels
    are compiled together, in parallel. Raises LamellaError.
    """
    opened = open_model(settings.config, random_weights=0)
    on_gpu = settings.device.type == "cuda"
    dtype = api.element_name(settings.dtype, opened, on_gpu=True)
    longest = max(max_context, *tokens)
    # Decode first, where there is one.
    shapes = [Shape.of(n) for n in sorted(set(tokens))]
    report = Report("ablation", settings.device, {"config": settings.name}, settings.output)
    report.note(**settings.facts(opened.config, dtype, context=context, max_context=longest), tokens=list(tokens))
    compiled = partial(compile_variant, opened.config, shapes, dtype, longest)
    if on_gpu:
        # Beside a GPU there are cores, and the GPU should not wait for one of them.
        with ProcessPoolExecutor(min(len(variants), os.cpu_count() or 1), get_context("spawn")) as pool:
            programs = list(pool.map(compiled, variants))
    else:
        programs = [compiled(variant) for variant in variants]
    timer = Timer.of(opened, programs, settings, context) if on_gpu else None
    for variant, program in zip(variants, programs, strict=True):
        same = program is not programs[0] and equal(program, programs[0])
        measured = timer.measure(programs[0] if same else program) if timer is not None else {}
        for row in rows_of(program, context):
            report.add(name=variant.name, **row, same_program=same, **measured.get(row["bucket"], {}))
    report.table(COLUMNS, f"ablation: {settings.name}, {dtype}, {report.facts['device']}")
    return report


def compile_variant(config: ModelConfig, shapes: Sequence[Shape], dtype: str, max_context: int, variant: Variant) -> Program:
    """One variant's program."""
    return compile_model(config, shapes, dtype=dtype, max_context=max_context, pass_options=variant.options, skip=variant.skip)


def equal(a: Program, b: Program) -> bool:
    """Whether two programs are the same kernels, launched in the same way."""
    assert a.manifest is not None and b.manifest is not None
    return a.kernels == b.kernels and a.manifest.to_json() == b.manifest.to_json()


def rows_of(program: Program, context: int) -> Iterator[dict[str, Any]]:
    """Of each bucket: what its launches are and move, and what they need."""
    manifest = program.manifest
    assert manifest is not None
    layers = manifest.model.layers
    for shape, bucket in zip(program.shapes, manifest.buckets, strict=True):
        cost = step_cost(manifest, bucket, context_of(bucket, context))
        yield {
            "bucket": shape.name,
            "launches": len(bucket.launches),
            "launches_a_layer": round(sum(launch.loc.startswith("layers.") for launch in bucket.launches) / layers, 2),
            "kernels": len({launch.kernel for launch in bucket.launches}),
            "bytes": cost.bytes,
            "activation_bytes": cost.activations,
            "arena_bytes": bucket.arena_bytes,
        }


@dataclass
class Timer:
    """Runs programs one after the other on one device, on weights that are loaded once."""

    opened: LoadedModel
    source: Held
    settings: Settings
    context: int
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """Those of the last program, and how they are made."""
    recipe: str = ""
    logits: dict[str, torch.Tensor] = field(default_factory=dict)
    """Of the first program, by bucket."""
    known: list[tuple[Program, dict[str, dict[str, Any]]]] = field(default_factory=list)
    """The first program and what it measured: no other is measured twice."""

    @staticmethod
    def of(opened: LoadedModel, programs: Iterable[Program], settings: Settings, context: int) -> Timer:
        """With the kernels of all programs compiled."""
        if settings.device.type == "cuda":
            compile_together(programs)
        return Timer(opened, Held(opened.source), settings, context)

    def measure(self, program: Program) -> dict[str, dict[str, Any]]:
        """Bucket -> microseconds and spread of a step; of prefill also how far its logits are from the first program's."""
        if self.known and self.known[0][0] is program:
            return self.known[0][1]
        manifest = program.manifest
        assert manifest is not None
        self.load(manifest)
        tokens = -(-manifest.max_context // manifest.cache.block) * manifest.cache.block
        executor = make_executor(manifest, self.weights, device=str(self.settings.device), kernels=program.kernels, cache_tokens=tokens)
        executor.prepare()
        model = api.Model(self.opened, program, executor, {})
        found = {shape.name: self.bucket(model, shape.name, bucket) for shape, bucket in zip(program.shapes, manifest.buckets, strict=True)}
        del executor, model
        release()
        if not self.known:
            self.known.append((program, found))
        return found

    def load(self, manifest: Manifest) -> None:
        """Makes the weights of a program, unless the last one had the same."""
        recipe = json.dumps(manifest.to_json()["weights"], sort_keys=True)
        if recipe != self.recipe:
            self.weights.clear()
            release()
            self.weights.update(load_weights(manifest, self.source, self.settings.device))
            self.recipe = recipe

    def bucket(self, model: api.Model, name: str, bucket: Bucket) -> dict[str, Any]:
        """One bucket, timed."""
        settings = self.settings
        decode = bucket.longest_query == 1
        step = decode_step(model, self.context, settings.steps + 1) if decode else prefill_step(model, bucket)
        timing = measure(step, settings.device, launches=settings.steps, repetitions=settings.repetitions, reset=step.reset)
        row: dict[str, Any] = {"us": timing.milliseconds * 1e3, "spread": timing.spread}
        if not decode:
            # A decode step reads a cache of random numbers, which mean other keys to another layout.
            step.reset()
            step()
            found = model.executor.output(bucket, "logits").float().clone()
            first = self.logits.setdefault(name, found)
            row["logit_error"] = ((found - first).square().mean().sqrt() / first.square().mean().sqrt()).item()
        return row


def compile_together(programs: Iterable[Program]) -> None:
    """Fills Triton's cache with the kernels of all programs, each distinct one once."""
    files = [(p.manifest, KernelFiles(p.manifest, p.kernels)) for p in programs if p.manifest is not None]
    compile_kernels([request for manifest, file in files for request in requests(manifest, file)])


def page(document: Mapping[str, Any]) -> str:
    """A result of this benchmark as a page of docs/."""
    rows = document["rows"]
    buckets = list(dict.fromkeys(row["bucket"] for row in rows))
    timed = any("us" in row for row in rows)
    model = document["model"]
    lines = [
        "# Each pass off in turn",
        "",
        f"{document['config']} ({model['layers']} layers, hidden {model['hidden']}), {document['dtype']}, cache for"
        f" {document['shape']['max_context']} tokens; decode at a context of {document['shape']['context']}. Measured with"
        f" `{document['command']}` on: {document['device']}, {document['date'][:10]}. This page is rendered from the result of that run.",
        *(["", document["note"]] if "note" in document else []),
        "",
        "A line is the whole pipeline with one thing off, and as correct: a test runs each on the reference executor. Where (=) follows, the"
        " program is the same, byte for byte: for this model the pass has nothing to do. `bytes` is what the"
        " launches of a step read and write (weights, cache, activations), counted from the program; `activations` the part of it"
        " that passes between launches, most of which stays in the L2 cache; `arena` what the plan needs."
        + (
            " `µs` is the median of some repetitions of many steps in a CUDA graph; lines within 2 % of each other are not told apart."
            if timed
            else " Times need a GPU."
        ),
    ]
    for bucket in buckets:
        chosen = [row for row in rows if row["bucket"] == bucket]
        lines += ["", f"## {_title(bucket)}", "", *_table(chosen, timed)]
    return "\n".join(lines) + "\n"


def _title(bucket: str) -> str:
    return "Decode, one token" if bucket == "t1" else f"Prefill, {bucket.removeprefix('t')} tokens"


def _table(rows: Sequence[Mapping[str, Any]], timed: bool) -> list[str]:
    """Markdown: a line a variant."""
    header = [
        "",
        "launches",
        "a layer",
        "kernels",
        "bytes, MB",
        "activations, MB",
        "arena, KiB",
        *(["µs", "to all passes"] if timed else []),
    ]
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    for row in rows:
        cells = [
            f"{row['name']} (=)" if row["same_program"] else row["name"],
            str(row["launches"]),
            f"{row['launches_a_layer']:g}",
            str(row["kernels"]),
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['activation_bytes'] / 1e6:.2f}",
            f"{row['arena_bytes'] / 1024:.1f}",
        ]
        if timed:
            base = rows[0].get("us")
            us = row.get("us")
            cells += [f"{us:.1f}" if us else "", f"{us / base:.3f} ×" if us and base else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines

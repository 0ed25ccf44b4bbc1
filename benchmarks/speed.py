# pyright: basic
"""Decode and prefill: Lamella, its peers and the bound of the device, measured in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median

from benchmarks.hugging_face import generate_milliseconds, transformers_model
from benchmarks.lamella_runner import cold_compilation, decode_step, load, prefill_step
from benchmarks.peers import PeerModel, PeerStep, parse_peer, ready
from benchmarks.results import Report, compare, timed
from benchmarks.settings import Settings
from benchmarks.timing import Timing, a_step, matmul_rate, measure, read_bandwidth, release
from benchmarks.traffic import step_flops, step_traffic
from lamella.errors import LamellaError
from lamella.frontends import LoadedModel, open_model
from lamella.program import Shape
from lamella.runtime.manifest import Manifest
from lamella.semantics import DTYPES

COLUMNS = ("name", "ms", "spread", "ratio", "bound_share", "compile_seconds")


def decode(
    settings: Settings,
    *,
    batch: int,
    context: int,
    max_context: int,
    peers: Sequence[str],
    quantize: Sequence[str] = (),
    steps_per_replay: int = 1,
) -> Report:
    """Milliseconds a token of each of `batch` sequences, from `context` tokens on. Raises LamellaError.

    Beside the model as it is, those of `quantize`; and where `steps_per_replay` is more than 1, graphs of so many steps.
    """
    plans = _plans(peers, "explicit")
    opened = open_model(settings.config, random_weights=0)
    facts = {"config": settings.name, "shape": {"batch": batch, "context": context, "max_context": max_context}}
    report = Report("decode", settings.device, facts, settings.output)
    report.note(read_bandwidth=read_bandwidth(settings.device))
    release()
    launches = settings.steps
    manifest = _lamella_decode(report, settings, batch, context, max_context)
    release()
    if steps_per_replay > 1:
        _lamella_decode(report, settings, batch, context, max_context, steps=steps_per_replay)
        release()
    for kind in quantize:
        _lamella_decode(report, settings, batch, context, max_context, kind=kind)
        release()
    bucket = manifest.buckets[0]
    # The mean context of the launches that count, of which one that does not is the first.
    traffic = step_traffic(manifest, bucket, context + (launches + 1) / 2)
    floor = traffic.total * 1e3 / report.facts["read_bandwidth"]
    report.note(bound="read bandwidth", bytes={**asdict(traffic), "total": traffic.total}, floor_ms=floor)

    def step(model: PeerModel, attention: str) -> PeerStep:
        return PeerStep.decode(model, context, attention)

    _torch_peers(report, settings, opened, manifest.dtype, plans, batch, max_context, step)
    if "hf-generate" in peers:
        _generate(report, settings, opened, manifest.dtype, batch, context)
    compare(report)
    ours = next((r for r in report.rows if r["name"] == "lamella" and "ms" in r), None)
    if ours:
        report.note(achieved_bandwidth=traffic.total * 1e3 / ours["ms"])
    report.table(
        COLUMNS, f"decode: {settings.name}, {manifest.dtype}, batch {batch}, context {context} of {max_context}, {_device(report)}"
    )
    print(
        f"read bandwidth {report.facts['read_bandwidth'] / 1e12:.3f} TB/s; a step moves {traffic.total / 1e9:.3f} GB"
        f" (weights {traffic.weights / 1e9:.3f}, cache {traffic.cache / 1e9:.3f}, logits {traffic.logits / 1e9:.4f}): floor {floor:.4g} ms"
    )
    _print_ratio(report)
    return report


def prefill(settings: Settings, *, tokens: int, max_context: int, peers: Sequence[str]) -> Report:
    """Milliseconds of a fresh prompt of `tokens` tokens. Raises LamellaError."""
    if "hf-generate" in peers:
        raise LamellaError("hf-generate is a peer of decode alone")
    plans = _plans(peers, "sdpa")
    opened = open_model(settings.config, random_weights=0)
    facts = {"config": settings.name, "shape": {"tokens": tokens, "max_context": max_context}}
    report = Report("prefill", settings.device, facts, settings.output)
    manifest = _lamella_prefill(report, settings, tokens, max_context)
    release()
    report.note(matmul_rate=matmul_rate(settings.device, DTYPES[manifest.dtype]))
    release()
    flops = step_flops(manifest, manifest.buckets[0])
    floor = flops * 1e3 / report.facts["matmul_rate"]
    report.note(bound="matmul rate", flops=flops, floor_ms=floor)

    def step(model: PeerModel, attention: str) -> PeerStep:
        return PeerStep.prefill(model, tokens)

    _torch_peers(report, settings, opened, manifest.dtype, plans, 1, max_context, step)
    compare(report)
    report.table(COLUMNS, f"prefill: {settings.name}, {manifest.dtype}, {tokens} tokens, {_device(report)}")
    print(f"matmul {report.facts['matmul_rate'] / 1e12:.1f} TFLOP/s; a prompt takes {flops / 1e12:.3f} TFLOP: floor {floor:.4g} ms")
    _print_ratio(report)
    return report


def _lamella_decode(
    report: Report, settings: Settings, batch: int, context: int, max_context: int, *, kind: str = "none", steps: int = 1
) -> Manifest:
    """A row of Lamella: `lamella`, `lamella int4` (weights of that kind), `lamella, 8 steps a graph`."""
    with cold_compilation():
        model = load(
            settings.config,
            [Shape.decode(batch)],
            device=settings.device,
            dtype=settings.dtype,
            max_context=max_context,
            sequences=batch,
            quantize=kind,
            steps_per_replay=steps,
        )
    manifest = model.executor.manifest
    report.note(**settings.facts(model.opened.config, manifest.dtype, **report.facts["shape"]))
    launches = max(1, settings.steps // steps)
    step = decode_step(model, context, (launches + 1) * steps, steps=steps)
    timing = measure(step, settings.device, launches=launches, repetitions=settings.repetitions, reset=step.reset)
    bucket = manifest.buckets[0]
    name = "lamella" if kind == "none" else f"lamella {kind}"
    row = report.add(
        name=name if steps == 1 else f"{name}, {steps} steps a graph",
        **timed(a_step(timing, steps)),
        compile_seconds=model.seconds["compile"],
        kernel_launches=len(bucket.launches),
    )
    if kind != "none":
        row["floor_ms"] = step_traffic(manifest, bucket, context + (launches + 1) / 2).total * 1e3 / report.facts["read_bandwidth"]
    return manifest


def _lamella_prefill(report: Report, settings: Settings, tokens: int, max_context: int) -> Manifest:
    with cold_compilation():
        model = load(settings.config, [Shape.prefill(tokens)], device=settings.device, dtype=settings.dtype, max_context=max_context)
    manifest = model.executor.manifest
    report.note(**settings.facts(model.opened.config, manifest.dtype, **report.facts["shape"]))
    step = prefill_step(model, manifest.buckets[0])
    timing = measure(step, settings.device, launches=settings.steps, repetitions=settings.repetitions)
    kernels = len(manifest.buckets[0].launches)
    report.add(name="lamella", **timed(timing), compile_seconds=model.seconds["compile"], kernel_launches=kernels)
    return manifest


def _plans(peers: Sequence[str], attention: str) -> list[tuple[str, str, str]]:
    """(name, peer, attention) of the peers in plain PyTorch. Raises LamellaError for one that does not exist."""
    return [(name, *parse_peer(name, attention)) for name in peers if name not in ("none", "hf-generate")]


def _torch_peers(
    report: Report,
    settings: Settings,
    opened: LoadedModel,
    dtype: str,
    plans: Sequence[tuple[str, str, str]],
    batch: int,
    length: int,
    step_of: Callable[[PeerModel, str], PeerStep],
) -> None:
    """One row a peer, all on one copy of the weights; a peer that fails leaves its error and the next one's turn."""
    if not plans:
        return
    model: PeerModel | None = None
    for name, peer, attention in plans:
        with _recorded(report, name):
            model = model or PeerModel(opened.config, opened.source, dtype=dtype, device=settings.device, batch=batch, length=length)
            step = step_of(model, attention)
            with ready(step, peer) as (run, seconds):
                timing = measure(run, settings.device, launches=settings.steps, repetitions=settings.repetitions, reset=step.reset)
            report.add(name=name, **timed(timing), compile_seconds=seconds or None, attention=step.attention)
        release()
    del model
    release()


def _generate(report: Report, settings: Settings, opened: LoadedModel, dtype: str, batch: int, context: int) -> None:
    with _recorded(report, "hf-generate"):
        model = transformers_model(opened.config, opened.source, DTYPES[dtype], settings.device, weights=dtype)
        times = generate_milliseconds(model, batch, context, settings.steps, settings.device, settings.repetitions)
        timing = Timing(median(times), min(times), max(times), settings.steps, settings.repetitions)
        report.add(name="hf-generate", **timed(timing))
    release()


@contextmanager
def _recorded(report: Report, name: str):
    """An exception of the body becomes the row of `name`."""
    try:
        yield
    except Exception as error:  # whatever a peer dies of, the others are still worth measuring
        text = f"{type(error).__name__}: {error}".strip()
        report.add(name=name, error=text.splitlines()[0][:300], detail=text[:2000])


def _device(report: Report) -> str:
    return report.facts["device"]


def _print_ratio(report: Report) -> None:
    if report.facts["ratio"] is not None:
        print(f"the best peer, {report.facts['best_peer']}, takes {report.facts['ratio']:.3f} times as long as Lamella")

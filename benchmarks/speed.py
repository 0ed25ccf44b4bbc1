# pyright: basic
"""Decode and prefill: Lamella, its peers and the bound of the device, measured in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.hugging_face import generate_milliseconds, transformers_model
from benchmarks.lamella_runner import cold_compilation, decode_step, load, prefill_step
from benchmarks.peer_weights import PEER_WEIGHTS
from benchmarks.peers import Peer, PeerModel, PeerStep, ready
from benchmarks.results import Report, compare, timed
from benchmarks.settings import Settings
from benchmarks.timing import Timing, a_step, matmul_rate, measure, read_bandwidth, release
from benchmarks.traffic import step_flops, step_traffic
from lamella import api
from lamella.errors import LamellaError
from lamella.frontends import LoadedModel, open_model
from lamella.pipeline import Options, PassSpec
from lamella.program import Shape
from lamella.runtime.manifest import Bucket
from lamella.semantics import DTYPES
from lamella.tools.options import pass_options_of

COLUMNS = ("name", "ms", "spread", "ratio", "bound_share", "compile_seconds")


def decode(
    settings: Settings,
    *,
    batch: int,
    context: int,
    max_context: int,
    peers: Sequence[str],
    quantize: Sequence[str] = (),
    kv_cache: str = "auto",
    steps_per_replay: int = 1,
    set_options: Sequence[str] = (),
) -> Report:
    """Milliseconds a token of each of `batch` sequences, from `context` tokens on. Raises LamellaError.

    Beside the model as it is, those of `quantize`; and where `steps_per_replay` is more than 1, graphs of so many steps; and all of them with `set_options`
    (`PASS.OPTION=VALUE`) too. All with that `kv_cache`.
    """
    plans(peers, "explicit")
    options = pass_options_of(list(set_options))
    for name, own in options.items():
        PassSpec(name).build(Options(), own)
    opened = open_model(settings.config, random_weights=0)
    report = decode_report(settings, batch, context, max_context)
    report.note(kv_cache=kv_cache)
    report.note(read_bandwidth=read_bandwidth(settings.device))
    release()

    def row(kind: str = "none", steps: int = 1, *, changed: bool = False) -> None:
        with cold_compilation():
            model = load(
                settings.config,
                [Shape.decode(batch)],
                device=settings.device,
                dtype=settings.dtype,
                max_context=max_context,
                sequences=batch,
                quantize=kind,
                kv_cache=kv_cache,
                steps_per_replay=steps,
                pass_options=options if changed else None,
            )
        changes = ", ".join(set_options) if changed else ""
        decode_row(report, settings, model, model.executor.manifest.buckets[0], context, kind=kind, steps=steps, changes=changes)
        del model
        release()

    wanted = [("none", 1), *([("none", steps_per_replay)] if steps_per_replay > 1 else []), *((kind, 1) for kind in quantize)]
    for kind, steps in wanted:
        row(kind, steps)
        if options:
            row(kind, steps, changed=True)
    decode_peers(report, settings, opened, peers)
    print_decode(report)
    return report


def decode_report(settings: Settings, batch: int, context: int, max_context: int) -> Report:
    """An empty one. It lacks `read_bandwidth`, which rows are compared to."""
    facts = {"config": settings.name, "shape": {"batch": batch, "context": context, "max_context": max_context}}
    return Report("decode", settings.device, facts, settings.output)


def decode_row(
    report: Report,
    settings: Settings,
    model: api.Model,
    bucket: Bucket,
    context: int,
    *,
    kind: str = "none",
    steps: int = 1,
    changes: str = "",
) -> None:
    """A row of Lamella: `lamella`, `lamella int4` (weights of that kind), `lamella, 8 steps a graph`, and options that were changed. The plain one gives the report its bound."""
    manifest = model.executor.manifest
    report.note(**settings.facts(model.opened.config, manifest.dtype, **report.facts["shape"]))
    launches = max(1, settings.steps // steps)
    step = decode_step(model, context, (launches + 1) * steps, steps=steps, bucket=bucket)
    timing = measure(step, settings.device, launches=launches, repetitions=settings.repetitions, reset=step.reset, seconds=settings.seconds)
    # The mean context of the launches that count, of which one that does not is the first.
    traffic = step_traffic(manifest, bucket, context + (timing.launches * steps + 1) / 2)
    floor = traffic.total * 1e3 / report.facts["read_bandwidth"]
    plain = kind == "none" and steps == 1 and not changes
    if plain:
        report.note(bound="read bandwidth", bytes={**asdict(traffic), "total": traffic.total}, floor_ms=floor)
        report.note(achieved_bandwidth=traffic.total * 1e3 / timing.milliseconds)
    name = "lamella" if kind == "none" else f"lamella {kind}"
    report.add(
        name=", ".join([name, *([f"{steps} steps a graph"] if steps > 1 else []), *([changes] if changes else [])]),
        **timed(a_step(timing, steps)),
        compile_seconds=model.seconds.get("compile"),
        kernel_launches=len(bucket.launches),
        **({} if kind == "none" else {"weights": kind, "floor_ms": floor}),
    )
    compare(report)


def decode_peers(report: Report, settings: Settings, opened: LoadedModel, peers: Sequence[str], pool: PeerPool | None = None) -> None:
    """Rows of the peers, each compared to Lamella's as soon as it is there."""
    shape, dtype = report.facts["shape"], report.facts["dtype"]

    def step(model: PeerModel, attention: str) -> PeerStep:
        return PeerStep.decode(model, shape["context"], attention)

    torch_peers(
        report, settings, plans(peers, "explicit"), pool or PeerPool(opened, dtype, settings), shape["batch"], shape["max_context"], step
    )
    if "hf-generate" in peers:
        _generate(report, settings, opened, dtype, shape["batch"], shape["context"])
    compare(report)


def print_decode(report: Report) -> None:
    """The table and the bound."""
    facts = report.facts
    shape, traffic = facts["shape"], facts["bytes"]
    where = f"batch {shape['batch']}, context {shape['context']} of {shape['max_context']}"
    report.table(COLUMNS, f"decode: {facts['config']}, {facts['dtype']}, {where}, {facts['device']}")
    print(
        f"read bandwidth {facts['read_bandwidth'] / 1e12:.3f} TB/s; a step moves {traffic['total'] / 1e9:.3f} GB"
        f" (weights {traffic['weights'] / 1e9:.3f}, cache {traffic['cache'] / 1e9:.3f}, logits {traffic['logits'] / 1e9:.4f}):"
        f" floor {facts['floor_ms']:.4g} ms"
    )
    _print_ratio(report)


def prefill(settings: Settings, *, tokens: int, max_context: int, peers: Sequence[str], quantize: Sequence[str] = ()) -> Report:
    """Milliseconds of a fresh prompt of `tokens` tokens, beside the model as it is of those of `quantize`. Raises LamellaError."""
    plans(peers, "sdpa", decoding=False)
    opened = open_model(settings.config, random_weights=0)
    report = prefill_report(settings, tokens, max_context)
    for kind in ("none", *quantize):
        with cold_compilation():
            model = load(
                settings.config,
                [Shape.prefill(tokens)],
                device=settings.device,
                dtype=settings.dtype,
                max_context=max_context,
                quantize=kind,
            )
        if kind == "none":
            report.note(matmul_rate=matmul_rate(settings.device, DTYPES[model.executor.manifest.dtype]))
            release()
        prefill_row(report, settings, model, model.executor.manifest.buckets[0], kind)
        del model
        release()
    prefill_peers(report, settings, opened, peers)
    print_prefill(report)
    return report


def prefill_report(settings: Settings, tokens: int, max_context: int) -> Report:
    """An empty one. It lacks `matmul_rate`, which rows are compared to."""
    facts = {"config": settings.name, "shape": {"tokens": tokens, "max_context": max_context}}
    return Report("prefill", settings.device, facts, settings.output)


def prefill_row(report: Report, settings: Settings, model: api.Model, bucket: Bucket, kind: str = "none") -> None:
    """A row of Lamella: `lamella`, `lamella int8` (weights of that kind). The plain one gives the report its bound, at whose rate bytes are not multiplied."""
    manifest = model.executor.manifest
    report.note(**settings.facts(model.opened.config, manifest.dtype, **report.facts["shape"]))
    step = prefill_step(model, bucket)
    timing = measure(step, settings.device, launches=settings.steps, repetitions=settings.repetitions, seconds=settings.seconds)
    flops = step_flops(manifest, bucket)
    if kind == "none":
        report.note(bound="matmul rate", flops=flops, floor_ms=flops * 1e3 / report.facts["matmul_rate"])
    report.add(
        name="lamella" if kind == "none" else f"lamella {kind}",
        **timed(timing),
        compile_seconds=model.seconds.get("compile"),
        kernel_launches=len(bucket.launches),
        **({} if kind == "none" else {"weights": kind}),
        **({"floor_ms": None} if "+" in kind else {}),
    )
    compare(report)


def prefill_peers(report: Report, settings: Settings, opened: LoadedModel, peers: Sequence[str], pool: PeerPool | None = None) -> None:
    """Rows of the peers, each compared to Lamella's as soon as it is there."""
    shape, dtype = report.facts["shape"], report.facts["dtype"]

    def step(model: PeerModel, attention: str) -> PeerStep:
        return PeerStep.prefill(model, shape["tokens"])

    chosen = plans(peers, "sdpa", decoding=False)
    torch_peers(report, settings, chosen, pool or PeerPool(opened, dtype, settings), 1, shape["max_context"], step)
    compare(report)


def print_prefill(report: Report) -> None:
    """The table and the bound."""
    facts = report.facts
    report.table(COLUMNS, f"prefill: {facts['config']}, {facts['dtype']}, {facts['shape']['tokens']} tokens, {facts['device']}")
    print(
        f"matmul {facts['matmul_rate'] / 1e12:.1f} TFLOP/s; a prompt takes {facts['flops'] / 1e12:.3f} TFLOP: floor {facts['floor_ms']:.4g} ms"
    )
    _print_ratio(report)


def plans(peers: Sequence[str], attention: str, *, decoding: bool = True) -> list[Peer]:
    """The peers in plain PyTorch. Raises LamellaError for one that does not exist, or not for prefill."""
    if "hf-generate" in peers and not decoding:
        raise LamellaError("hf-generate is a peer of decode alone")
    return [Peer.parse(name, attention) for name in peers if name not in ("none", "hf-generate")]


@dataclass
class PeerPool:
    """The peers' model, loaded when it is first asked for, for one batch and length after the other; other weights take its place."""

    opened: LoadedModel
    dtype: str
    settings: Settings
    model: PeerModel | None = None
    weights: str = ""

    def of(self, batch: int, length: int, weights: str = "") -> PeerModel:
        """The model with caches for so many sequences of so many tokens. Raises LamellaError for weights nobody can make here."""
        if self.model is None or weights != self.weights:
            self.model, self.weights = None, weights
            release()
            self.model = PeerModel(
                self.opened.config,
                self.opened.source,
                dtype=self.dtype,
                device=self.settings.device,
                batch=batch,
                length=length,
                weights=PEER_WEIGHTS[weights],
            )
        else:
            self.model.resize(batch, length)
        return self.model


def torch_peers(
    report: Report,
    settings: Settings,
    chosen: Sequence[Peer],
    pool: PeerPool,
    batch: int,
    length: int,
    step_of: Callable[[PeerModel, str], PeerStep],
) -> None:
    """One row a peer; a peer that fails leaves its error and the next one's turn."""
    for peer in chosen:
        with _recorded(report, peer.name):
            step = step_of(pool.of(batch, length, peer.weights), peer.attention)
            with ready(step, peer) as (run, seconds):
                timing = measure(
                    run,
                    settings.device,
                    launches=settings.steps,
                    repetitions=settings.repetitions,
                    reset=step.reset,
                    seconds=settings.seconds,
                )
            kind = {} if peer.kind == "none" else {"weights": peer.kind}
            report.add(name=peer.name, **timed(timing), compile_seconds=seconds or None, attention=step.attention, **kind)
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


def _print_ratio(report: Report) -> None:
    if report.facts["ratio"] is not None:
        print(f"the best peer, {report.facts['best_peer']}, takes {report.facts['ratio']:.3f} times as long as Lamella")
    for row in (row for row in report.rows if "peer_ratio" in row):
        print(f"weights of {row['weights']}: the best peer, {row['best_peer']}, takes {row['peer_ratio']:.3f} times as long as Lamella")

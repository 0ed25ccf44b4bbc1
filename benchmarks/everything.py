# pyright: basic
"""All benchmarks of a model, one after the other, within a time limit: one JSON document holds the documents of all of them.

Lamella comes first, on weights that are loaded once, then its peers, the most wanted of each first: a run that is cut short has written
what it knew after every measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.compile_time import compile_time
from benchmarks.kernels import measure_kernels
from benchmarks.lamella_runner import cold_compilation, load, on_same_weights
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.speed import (
    PeerPool,
    decode_peers,
    decode_report,
    decode_row,
    plans,
    prefill_peers,
    prefill_report,
    prefill_row,
)
from benchmarks.start import free, start_peer, start_report, start_rows
from benchmarks.timing import matmul_rate, read_bandwidth, release
from lamella import api
from lamella.errors import LamellaError
from lamella.frontends import open_model
from lamella.program import Shape
from lamella.runtime.manifest import Bucket
from lamella.semantics import DTYPES

COLUMNS = ("name", "ms", "spread", "bound_share", "best_peer", "ratio", "cold_seconds", "warm_seconds", "seconds", "error")
PEER_SECONDS = 80.0
"""No peer begins when less than this is left: torch.compile of a large model takes about so long."""


@dataclass(frozen=True)
class Plan:
    """What is measured: decode steps of `batches` sequences at `context`, and `prompts` of so many tokens."""

    batches: Sequence[int]
    prompts: Sequence[int]
    context: int
    max_context: int

    @property
    def first_batch(self) -> int:
        """The one most wanted."""
        return self.batches[0]

    @property
    def usual(self) -> list[int]:
        """Prompts for which there is room in the context of the decode steps, the longest first."""
        return sorted((n for n in self.prompts if n <= self.max_context), reverse=True)

    @property
    def long(self) -> list[int]:
        """All others."""
        return sorted(n for n in self.prompts if n > self.max_context)


@dataclass
class Models:
    """Programs of one model over one set of weights: one at a time, as each has a cache."""

    settings: Settings
    plan: Plan
    model: api.Model | None = None
    now: str = ""
    before: int = 0
    """Bytes of the device that were free before anything was loaded."""

    def get(self, name: str) -> api.Model:
        """`first`: one batch, and the prompts that fit its context; `batches`: the other batches; `long`: the other prompts."""
        if name == self.now and self.model is not None:
            return self.model
        plan, longest = self.plan, self.plan.max_context
        sequences = 1
        if name == "first":
            shapes, sequences = [Shape.decode(plan.first_batch), *map(Shape.prefill, plan.usual)], plan.first_batch
        elif name == "batches":
            shapes, sequences = [Shape.decode(n) for n in plan.batches[1:]], max(plan.batches[1:])
        else:
            shapes, longest = [Shape.prefill(n) for n in plan.long], max(plan.long)
        if self.model is None:
            self.before = free(self.settings.device)
            self.model = load(
                self.settings.config,
                shapes,
                device=self.settings.device,
                dtype=self.settings.dtype,
                max_context=longest,
                sequences=sequences,
            )
        else:
            self.model = on_same_weights(self.model, shapes, max_context=longest, sequences=sequences)
            release()
        self.now = name
        return self.model

    def bucket(self, name: str, *, batch: int = 0, tokens: int = 0) -> tuple[api.Model, Bucket]:
        """The program that holds a decode step of `batch` sequences, or a prompt of `tokens` tokens, and its bucket."""
        model = self.get(name)
        found = (
            b for b in model.executor.manifest.buckets if (b.advance and b.sequences == batch) or (not b.advance and b.tokens == tokens)
        )
        return model, next(found)


@dataclass
class Run:
    """One run: the reports made so far, by the names of their sections, and the report that holds them all."""

    settings: Settings
    plan: Plan
    peers: Sequence[str]
    limit: float
    begin: float = field(default_factory=perf_counter)
    made: dict[str, Report] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    whole: Report = field(init=False)

    def __post_init__(self) -> None:
        facts = {"config": self.settings.name, "limit_seconds": self.limit, "sections": []}
        self.whole = Report("all", self.settings.device, facts, self.settings.output)

    @property
    def gone(self) -> float:
        """Seconds since the beginning."""
        return perf_counter() - self.begin

    def section(self, name: str, run: Callable[[], Report]) -> None:
        """A section leaves its report, or the error that it died of, and the next one its turn."""
        start = self.gone
        if start > self.limit:
            self.whole.add(name=name, error=f"not run: {start:.0f} s of {self.limit:.0f} s are gone")
            return
        try:
            found = run()
        except Exception as error:  # whatever one dies of, the others are still worth measuring
            self.whole.add(name=name, error=_line(error))
            return
        finally:
            # What the section held is garbage by now, and the next one is measured without it.
            release()
        self.made[name] = found
        self.whole.facts["sections"].append({})
        self.whole.rows.append({"name": name, "seconds": self.gone - start})
        self.update()

    def update(self) -> None:
        """Writes what the reports hold by now."""
        self.whole.facts["sections"] = [{"section": name, **report.document()} for name, report in self.made.items()]
        for row in self.whole.rows:
            if row["name"] in self.made:
                row.update(summary(self.made[row["name"]]))
        self.whole.note(seconds=self.gone)

    def peer(self, name: str, peer: str, run: Callable[[Report], None]) -> None:
        """A peer joins the report of a section that was measured, while there is time."""
        report = self.made.get(name)
        if report is None:
            return
        if self.gone > self.limit - PEER_SECONDS:
            report.add(name=peer, error=f"not run: {self.gone:.0f} s of {self.limit:.0f} s are gone")
        else:
            start = self.gone
            try:
                run(report)
            except Exception as error:
                report.add(name=peer, error=_line(error))
            finally:
                release()
            report.note(peer_seconds={**report.facts.get("peer_seconds", {}), peer: self.gone - start})
        self.update()


def everything(settings: Settings, plan: Plan, *, peers: Sequence[str], limit: float) -> Report:
    """Runs all sections, then the peers of each. Nothing begins after `limit` seconds, and no peer near their end: the document says so.

    A section that fails leaves its error, and the next one its turn. Raises LamellaError when all fail, and for an unknown peer.
    """
    plans(peers, "explicit")
    if "hf-generate" not in peers:
        plans(peers, "sdpa", decoding=False)
    run = Run(settings, plan, peers, limit)
    with cold_compilation():
        for name, section in sections(run):
            run.section(name, section)
    # torch.compile has caches of its own, which are empty for every peer.
    if peers:
        measure_peers(run)
    whole = run.whole
    whole.note(seconds=run.gone)
    whole.table(COLUMNS, f"all: {settings.name}, {whole.facts['device']}, {whole.facts['seconds']:.0f} s")
    if all("error" in row for row in whole.rows):
        raise LamellaError("no benchmark ran", got=whole.rows[0]["error"])
    return whole


def sections(run: Run) -> Iterator[tuple[str, Callable[[], Report]]]:
    """What is measured of Lamella, the most wanted first; each is asked for when the one before is done."""
    settings, plan, models = run.settings, run.plan, Models(run.settings, run.plan)

    def rates(*names: str) -> dict[str, float]:
        """What the device does at best, measured once."""
        for name in names:
            if name not in run.rates:
                dtype = DTYPES[models.get(models.now or "first").executor.manifest.dtype]
                run.rates[name] = read_bandwidth(settings.device) if name == "read_bandwidth" else matmul_rate(settings.device, dtype)
                release()
        return {name: run.rates[name] for name in names}

    def starting() -> Report:
        model = models.get("first")
        report = start_report(settings)
        start_rows(report, settings, model, first_tokens(plan), models.before)
        return report

    def decoding(batch: int) -> Report:
        model, bucket = models.bucket("first" if batch == plan.first_batch else "batches", batch=batch)
        report = decode_report(settings, batch, plan.context, plan.max_context)
        report.note(**rates("read_bandwidth"))
        decode_row(report, settings, model, bucket, plan.context)
        return report

    def prefilling(tokens: int) -> Report:
        model, bucket = models.bucket("first" if tokens in plan.usual else "long", tokens=tokens)
        report = prefill_report(settings, tokens, model.executor.manifest.max_context)
        report.note(**rates("matmul_rate"))
        prefill_row(report, settings, model, bucket)
        return report

    def kernels(**which: int) -> Report:
        model, bucket = models.bucket("long" if which.get("tokens") in plan.long else "first", **which)
        report = Report("kernels", settings.device, {"config": settings.name})
        return measure_kernels(report, settings, model, bucket, plan.context, rates("read_bandwidth", "matmul_rate"))

    pair = (1, min(plan.prompts))
    yield "compile", lambda: compile_time(settings, tokens=pair, max_context=max(plan.max_context, *pair), empty=True)
    yield "start", starting
    yield decode_name(plan.first_batch), lambda: decoding(plan.first_batch)
    yield "kernels, decode", lambda: kernels(batch=plan.first_batch)
    for tokens in plan.usual:
        yield prefill_name(tokens), lambda tokens=tokens: prefilling(tokens)
    for tokens in plan.usual[:1]:
        yield f"kernels, {tokens} tokens", lambda tokens=tokens: kernels(tokens=tokens)
    for batch in plan.batches[1:]:
        yield decode_name(batch), lambda batch=batch: decoding(batch)
    for tokens in plan.long:
        yield prefill_name(tokens), lambda tokens=tokens: prefilling(tokens)
    for tokens in plan.long[-1:]:
        yield f"kernels, {tokens} tokens", lambda tokens=tokens: kernels(tokens=tokens)
    # Peers find the device as empty as Lamella did.
    models.model = None
    release()


def measure_peers(run: Run) -> None:
    """One peer after the other, the most wanted section first: the first decode step, then prompts, then what is left."""
    settings, plan = run.settings, run.plan
    opened = open_model(settings.config, random_weights=0)
    torch_peers = [peer for peer in run.peers if peer != "hf-generate"]
    if torch_peers and run.made:
        dtype = next((r.facts["dtype"] for r in run.made.values() if "dtype" in r.facts), "")
        pool = PeerPool(opened, dtype, settings)
        names: list[tuple[str, Callable[..., None]]] = [(decode_name(plan.first_batch), decode_peers)]
        names += [(prefill_name(n), prefill_peers) for n in plan.usual[:1]]
        names += [(decode_name(n), decode_peers) for n in plan.batches[1:]]
        names += [(prefill_name(n), prefill_peers) for n in (*plan.usual[1:], *plan.long)]
        for name, join in names:
            for peer in torch_peers:
                run.peer(name, peer, lambda report, join=join, peer=peer: join(report, settings, opened, [peer], pool))
        del pool
        release()
    if "hf-generate" in run.peers:
        # Whole generations take long, and for a large batch say little else.
        run.peer("start", "hf-generate", lambda report: start_peer(report, settings, opened))
        name = decode_name(plan.first_batch)
        run.peer(name, "hf-generate", lambda report: decode_peers(report, settings, opened, ["hf-generate"]))


def first_tokens(plan: Plan) -> list[int]:
    """Prompts whose first token is waited for: there must be room for it."""
    return sorted({min(n, plan.max_context - 1) for n in plan.prompts})


def decode_name(batch: int) -> str:
    """Of the section."""
    return f"decode, batch {batch}"


def prefill_name(tokens: int) -> str:
    """Of the section."""
    return f"prefill, {tokens} tokens"


def summary(report: Report) -> dict[str, Any]:
    """Of Lamella's row: its time, and how it compares; of a compilation, cold and warm seconds; of kernels, their step."""
    if report.benchmark == "compile":
        return {f"{row['name']}_seconds": row["seconds"] for row in report.rows}
    if report.benchmark == "kernels":
        return {key: report.facts["step"][key] for key in ("ms", "spread", "bound_share")}
    ours = next((row for row in report.rows if row["name"] == "lamella" and "ms" in row), {})
    row = {key: ours.get(key) for key in ("ms", "spread", "bound_share")}
    return {**row, "best_peer": report.facts.get("best_peer"), "ratio": report.facts.get("ratio")}


def _line(error: Exception) -> str:
    return (f"{type(error).__name__}: {error}".strip().splitlines() or [""])[0][:300]

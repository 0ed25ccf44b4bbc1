# pyright: basic
"""All benchmarks of a model, one after the other, within a time limit: one JSON document holds the documents of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from benchmarks.compile_time import compile_time
from benchmarks.kernels import kernels
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.speed import decode, prefill
from benchmarks.start import start
from benchmarks.timing import release
from lamella.errors import LamellaError

COLUMNS = ("name", "ms", "spread", "bound_share", "best_peer", "ratio", "cold_seconds", "warm_seconds", "seconds", "error")


@dataclass(frozen=True)
class Section:
    """A benchmark under a name; `run` is given the peers that there is time for."""

    name: str
    run: Callable[[Sequence[str]], Report]


def sections(
    settings: Settings, *, batches: Sequence[int], prompts: Sequence[int], context: int, max_context: int, prefill_steps: int
) -> list[Section]:
    """What is measured, the most wanted first."""
    fewer = replace(settings, steps=prefill_steps)

    def decoding(batch: int) -> Section:
        # Whole generations take long, and for a large batch say little else.
        def run(peers: Sequence[str]) -> Report:
            chosen = [p for p in peers if batch == 1 or p != "hf-generate"]
            return decode(settings, batch=batch, context=context, max_context=max_context, peers=chosen)

        return Section(f"decode, batch {batch}", run)

    def prefilling(tokens: int) -> Section:
        def run(peers: Sequence[str]) -> Report:
            chosen = [p for p in peers if p != "hf-generate"]
            return prefill(fewer, tokens=tokens, max_context=max(max_context, tokens), peers=chosen)

        return Section(f"prefill, {tokens} tokens", run)

    pair = (1, prompts[0])
    return [
        Section("compile", lambda peers: compile_time(settings, tokens=pair, max_context=max_context)),
        Section("start", lambda peers: start(fewer, tokens=[n for n in prompts if n < max_context], max_context=max_context, peers=peers)),
        Section("kernels", lambda peers: kernels(settings, batch=1, context=context, max_context=max_context)),
        *(decoding(batch) for batch in batches),
        *(prefilling(tokens) for tokens in prompts),
    ]


def everything(settings: Settings, plan: Sequence[Section], *, peers: Sequence[str], limit: float) -> Report:
    """Runs the sections. Without peers once more than 3/4 of `limit` seconds are gone, and none once all are: the document says so.

    A section that fails leaves its error, and the next one its turn. Raises LamellaError when all fail.
    """
    report = Report("all", settings.device, {"config": settings.name, "limit_seconds": limit, "sections": []}, settings.output)
    begin = perf_counter()
    for section in plan:
        gone = perf_counter() - begin
        if gone > limit:
            report.add(name=section.name, error=f"not run: {gone:.0f} s of {limit:.0f} s are gone")
            continue
        chosen = peers if gone <= 0.75 * limit else []
        try:
            found = section.run(chosen)
        except Exception as error:  # whatever one dies of, the others are still worth measuring
            report.add(name=section.name, error=(f"{type(error).__name__}: {error}".strip().splitlines() or [""])[0][:300])
            continue
        finally:
            # What the section held is garbage by now, and the next one is measured without it.
            release()
        report.facts["sections"].append({"section": section.name, "peers_asked": list(chosen), **found.document()})
        report.add(name=section.name, **summary(found), seconds=perf_counter() - begin - gone)
    report.note(seconds=perf_counter() - begin)
    report.table(COLUMNS, f"all: {settings.name}, {report.facts['device']}, {report.facts['seconds']:.0f} s")
    if all("error" in row for row in report.rows):
        raise LamellaError("no benchmark ran", got=report.rows[0]["error"])
    return report


def summary(report: Report) -> dict[str, Any]:
    """Of Lamella's row: its time, and how it compares; of a compilation, cold and warm seconds."""
    if report.benchmark == "compile":
        return {f"{row['name']}_seconds": row["seconds"] for row in report.rows}
    ours = next((row for row in report.rows if row["name"] == "lamella" and "ms" in row), {})
    row = {key: ours.get(key) for key in ("ms", "spread", "bound_share")}
    return {**row, "best_peer": report.facts.get("best_peer"), "ratio": report.facts.get("ratio")}

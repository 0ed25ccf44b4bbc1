# pyright: basic
"""Results of the same benchmarks, measured several times, enter; each figure with all of its values, and how far they lie apart, leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from lamella.errors import LamellaError

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A number of one result, by the section it is in and its name there."""

    section: str
    name: str
    quantity: str
    """`ms`, `us`, `seconds`, `bytes`, `share` or `ratio`: what the unit is, and how many digits say something."""
    value: float


@dataclass(frozen=True)
class Line:
    """A figure of several results; None where one lacks it."""

    section: str
    name: str
    quantity: str
    values: tuple[float | None, ...]

    @property
    def spread(self) -> float | None:
        """(highest - lowest) / mean of those that are there; None where fewer than two are."""
        found = [v for v in self.values if v is not None]
        return (max(found) - min(found)) / abs(mean(found)) if len(found) > 1 and mean(found) else None


def read(path: Path) -> Document:
    """A result file. Raises LamellaError where it is none."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LamellaError("cannot be read as a result", where=str(path), got=str(error)) from error
    if not isinstance(document, dict) or "benchmark" not in document or "rows" not in document:
        raise LamellaError("is no result of a benchmark", where=str(path), expected="a file that --output has written")
    return document


def parts(document: Document) -> Iterator[tuple[str, Document]]:
    """(section, document) of a result: those it holds, or itself under the name that `all` would give it."""
    if document["benchmark"] == "all":
        yield from ((section["section"], section) for section in document["sections"])
        return
    shape = document.get("shape", {})
    names = {"decode": f"decode, batch {shape.get('batch')}", "prefill": f"prefill, {shape.get('tokens')} tokens"}
    kernels = f"kernels, {shape['tokens']} tokens" if "tokens" in shape else "kernels, decode"
    yield names.get(document["benchmark"], kernels if document["benchmark"] == "kernels" else document["benchmark"]), document


def figures(document: Document) -> Iterator[Figure]:
    """All numbers of a result that another run may be compared by."""
    for section, part in parts(document):
        kind = part["benchmark"]
        for row in part["rows"]:
            # What did not run says so, and has no size.
            name = f"{row['name']}, {row['tokens']} tokens" if "tokens" in row and kind == "start" else row["name"]
            for key, quantity in (("ms", "ms"), ("us", "us"), ("seconds", "seconds"), ("library_us", "us"), ("bound_share", "share")):
                if isinstance(row.get(key), int | float):
                    label = {"library_us": f"{name}: {row.get('library')}", "bound_share": f"{name}: share of the bound"}.get(key, name)
                    yield Figure(section, label, quantity, float(row[key]))
        if kind == "kernels":
            yield Figure(section, "step", "us", part["step"]["ms"] * 1e3)
            yield Figure(section, "sum of the kernels", "us", part["sum_of_kernels_us"])
        memory = part.get("memory", {})
        for key in ("driver_bytes", "predicted_bytes", "weights_and_cache_bytes"):
            if key in memory:
                yield Figure(section, key.removesuffix("_bytes").replace("_", " "), "bytes", float(memory[key]))
        for key, quantity in (("floor_ms", "ms"), ("read_bandwidth", "GB/s"), ("matmul_rate", "TFLOP/s"), ("ratio", "ratio")):
            if isinstance(part.get(key), int | float):
                scale = {"GB/s": 1e9, "TFLOP/s": 1e12}.get(quantity, 1.0)
                label = {"floor_ms": "bound", "ratio": "best peer over Lamella"}.get(key, key.replace("_", " "))
                yield Figure(section, label, quantity, part[key] / scale)


def lines(documents: Sequence[Document]) -> list[Line]:
    """The figures of all results, in the order of the first that has each. Raises LamellaError where they are not of one model."""
    configs = {(d["config"], d["device"]) for d in documents}
    if len(configs) > 1:
        raise LamellaError("results of different models or devices", got="; ".join(f"{c} on {d}" for c, d in sorted(configs)))
    found = [{(f.section, f.name, f.quantity): f.value for f in figures(d)} for d in documents]
    keys = dict.fromkeys(key for each in found for key in each)
    return [Line(*key, tuple(each.get(key) for each in found)) for key in keys]


def text(quantity: str, value: float | None) -> str:
    """A number with as many digits as say something."""
    if value is None:
        return ""
    if quantity == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if quantity == "share":
        return f"{value * 100:.1f} %"
    return f"{value:.3f}" if quantity in ("ms", "ratio") and value < 10 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def markdown(documents: Sequence[Document]) -> str:
    """A page: a table a section, all runs side by side, with their spread; of kernels also what a library takes."""
    first = documents[0]
    runs = [f"run {i + 1}" for i in range(len(documents))]
    out = [
        f"# {first['config']}, {first['device']}",
        "",
        *(f"* run {i + 1}: `{d['command']}`, {d['date']}" for i, d in enumerate(documents)),
    ]
    sections: dict[str, list[Line]] = {}
    for line in lines(documents):
        sections.setdefault(line.section, []).append(line)
    for section, own in sections.items():
        out += ["", f"## {section}", "", *table(["", "unit", *runs, "spread"], [cells(line) for line in own])]
        shown = [part for name, part in parts(first) if name == section and part["benchmark"] == "kernels"]
        for part in shown:
            out += ["", *kernel_table(part)]
    return "\n".join(out) + "\n"


def cells(line: Line) -> list[str]:
    """A line as cells of a table."""
    spread = f"{line.spread * 100:.1f} %" if line.spread is not None else ""
    unit = "" if line.quantity in ("share", "ratio", "bytes") else "s" if line.quantity == "seconds" else line.quantity
    return [line.name, unit, *(text(line.quantity, value) for value in line.values), spread]


def kernel_table(part: Document) -> list[str]:
    """Each kernel of a step in one run: time, rates, share of the bound, and a library beside it; then the step and what is between."""
    header = ["kernel", "made of", "launches", "us", "GB/s", "TFLOP/s", "share", "library", "us", "library / kernel"]
    rows: list[list[str]] = []
    for row in part["rows"]:
        if "error" in row:
            rows.append([row["name"], row["error"], *[""] * 8])
            continue
        rows.append(
            [
                row["name"],
                row["made_of"],
                str(row["launches_a_step"]),
                f"{row['us']:.2f}",
                f"{row['gb_s']:.0f}",
                f"{row.get('tflop_s', 0):.1f}",
                f"{row['bound_share'] * 100:.0f} %",
                row.get("library", ""),
                f"{row['library_us']:.2f}" if row.get("library_us") else "",
                f"{row['library_ratio']:.2f}" if row.get("library_ratio") else "",
            ]
        )
    step = part["step"]["ms"] * 1e3
    gaps = step - part["sum_of_kernels_us"]
    note = f"The step takes {step:.1f} us, its kernels by themselves {part['sum_of_kernels_us']:.1f}: {gaps:+.1f} us ({gaps / step * 100:+.1f} %)"
    return [*table(header, rows), "", f"{note} between them."]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of markdown."""
    return [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}", *(f"| {' | '.join(row)} |" for row in rows)]

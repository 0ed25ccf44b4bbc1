# pyright: basic
"""Measurements enter one by one; a JSON file, complete after each, and a short table leave."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import lamella
from benchmarks.timing import Timing

PACKAGES = ("torch", "triton", "transformers", "xdsl")


def device_name(device: torch.device) -> str:
    """The chip's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {os.cpu_count()} cores"


def measured_arguments(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments without those that only say where results go, and files by their names: they lie elsewhere on another machine."""
    kept: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word in ("-o", "--output", "--doc"):
            next(rest, None)
        elif not word.startswith(("--output=", "--doc=")):
            kept.append(Path(word).name if Path(word).is_absolute() else word)
    return kept


@dataclass
class Report:
    """One run. `facts` describe it, `rows` are its measurements; both go to `output` whenever they change."""

    benchmark: str
    device: torch.device
    facts: dict[str, Any]
    output: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.facts = {
            "benchmark": self.benchmark,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(["python", "-m", "benchmarks", *measured_arguments(sys.argv[1:])]),
            "device": device_name(self.device),
            "versions": {"python": platform.python_version(), "lamella": lamella.__version__, **{p: version(p) for p in PACKAGES}},
            **self.facts,
        }
        self.save()

    def add(self, **row: Any) -> dict[str, Any]:
        """A measurement; printed at once, so that a run that is cut short has said what it knew."""
        self.rows.append(row)
        text = ", ".join(f"{k} {_short(v)}" for k, v in row.items() if k != "name" and v is not None)
        print(f"{row.get('name', self.benchmark)}: {text}", file=sys.stderr, flush=True)
        self.save()
        return row

    def note(self, **facts: Any) -> None:
        """More facts."""
        self.facts.update(facts)
        self.save()

    def document(self) -> dict[str, Any]:
        """What the file holds."""
        return {**self.facts, "rows": self.rows}

    def save(self) -> None:
        """Writes `output`, if there is one; its folder is made."""
        if self.output is not None:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self.output.write_text(json.dumps(self.document(), indent=1) + "\n")

    def table(self, columns: Sequence[str], title: str) -> None:
        """Prints the rows; an error takes the place of its row's numbers."""
        table = Table()
        for i, column in enumerate(columns):
            table.add_column(column.replace("_", " "), justify="left" if i == 0 else "right", no_wrap=True, max_width=40)
        for row in self.rows:
            error = row.get("error")
            cells = [row["name"], f"failed: {error}"[:80]] if error else [_short(row.get(c)) for c in columns]
            table.add_row(*(escape(c) for c in cells))
        print(title)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def timed(timing: Timing) -> Mapping[str, float | int]:
    """A timing as fields of a row."""
    return {
        "ms": timing.milliseconds,
        "ms_low": timing.low,
        "ms_high": timing.high,
        "spread": timing.spread,
        "launches": timing.launches,
        "repetitions": timing.repetitions,
    }


def compare(report: Report) -> None:
    """Notes the best peer of the rows, how many times longer it takes than Lamella, and each row's share of the bound.

    Rows with packed weights may have their own bound, `floor_ms` of Lamella's (None: none is known), and Lamella's its own best peer, `best_peer` and `peer_ratio`.
    """
    measured = [row for row in report.rows if "ms" in row]
    ours = {row.get("weights", "none"): row for row in reversed(measured) if row["name"].startswith("lamella")}
    for row in measured:
        same = ours.get(row.get("weights", "none"), row)
        floor = row.get("floor_ms", same.get("floor_ms", report.facts["floor_ms"]))
        row["bound_share"] = None if floor is None else floor / row["ms"]
        if "none" in ours and row is not ours["none"]:
            row["ratio"] = row["ms"] / ours["none"]["ms"]
    plain: dict[str, Any] = {"best_peer": None, "ratio": None}
    for kind, mine in ours.items():
        peers = [row for row in measured if not row["name"].startswith("lamella") and row.get("weights", "none") == kind]
        best = min(peers, key=lambda row: row["ms"], default=None)
        if best is not None and kind == "none":
            plain = {"best_peer": best["name"], "ratio": best["ms"] / mine["ms"]}
        elif best is not None:
            mine |= {"best_peer": best["name"], "peer_ratio": best["ms"] / mine["ms"]}
    report.note(**plain)


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"
    return str(value)

"""The ledger of a compilation goes in; tables leave: what fused and what did not, schedules, places; identical layers on one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

LAYER = re.compile(r"\blayers\.(\d+)\b")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One decision, the same in each of `layers` (empty: outside the layers); bytes and launches are sums over `count` records."""

    bucket: str
    verdict: str
    producer: str
    consumer: str
    loc: str
    kind: str
    schedule: str
    reason: str
    layers: tuple[int, ...]
    count: int
    bytes: int
    launches: int

    @property
    def where(self) -> str:
        """The location, with the layers it stands for: `layers.0-29.attn.q`."""
        return self.loc.replace("layers.*", f"layers.{ranges(self.layers)}") if self.layers else self.loc


TEXTS = ("bucket", "verdict", "producer", "consumer", "loc", "kind", "schedule", "reason")


def group(ledger: Iterable[Record]) -> list[Line]:
    """The records of a ledger, those that differ only by layer merged, in the order of their first record."""
    merged: dict[tuple[str, ...], tuple[set[int], list[int]]] = {}
    for record in ledger:
        key = tuple(_anonymous(record.get(name, "")) for name in TEXTS)
        layers, sums = merged.setdefault(key, (set(), [0, 0, 0]))
        layers.update(int(n) for n in LAYER.findall(str(record.get("loc", ""))))
        for i, amount in enumerate((1, record.get("bytes", 0), record.get("launches", 0))):
            sums[i] += int(amount)
    return [Line(*key, layers=tuple(sorted(layers)), count=n, bytes=b, launches=k) for key, (layers, (n, b, k)) in merged.items()]


def explain_tables(ledger: Iterable[Record]) -> list[Table]:
    """For each bucket: what fused, what did not, the schedules, and what is written in place; an empty table is left out."""
    lines = group(ledger)
    tables: list[Table] = []
    for bucket in dict.fromkeys(line.bucket for line in lines):
        own = [line for line in lines if line.bucket == bucket]
        in_bucket = f", bucket {bucket}" if bucket else ""
        tables += [
            _table(
                f"Fused{in_bucket}",
                ("producer", "into", "region", "how", "times", "bytes saved", "launches saved"),
                [
                    (_op(x.producer), _op(x.consumer), x.where, x.kind, str(x.count), byte_size(x.bytes), str(x.launches))
                    for x in own
                    if x.verdict == "joined"
                ],
            ),
            _table(
                f"Not fused{in_bucket}",
                ("producer", "into", "region", "why", "times"),
                [(_op(x.producer), _op(x.consumer), x.where, x.reason, str(x.count)) for x in own if x.verdict == "refused"],
            ),
            _table(
                f"Schedules{in_bucket}",
                ("region", "schedule", "why", "times"),
                [(x.where, x.schedule, x.reason, str(x.count)) for x in own if x.verdict == "chosen"],
            ),
            _table(
                f"Places{in_bucket}",
                ("region", "result is written", "why", "times"),
                [(x.where, PLACES[x.verdict], x.reason, str(x.count)) for x in own if x.verdict in PLACES],
            ),
        ]
    return [table for table in tables if table.row_count]


PLACES = {"in_place": "over an input", "not_in_place": "to a new buffer"}
NUMBERS = {"times", "bytes saved", "launches saved"}


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def totals(ledger: Iterable[Record]) -> list[str]:
    """One sentence for each bucket."""
    lines = group(ledger)
    sentences: list[str] = []
    for bucket in dict.fromkeys(line.bucket for line in lines):
        own = [line for line in lines if line.bucket == bucket]
        joined = [line for line in own if line.verdict == "joined"]
        fused, apart = sum(x.count for x in joined), sum(x.count for x in own if x.verdict == "refused")
        saved = f"{byte_size(sum(x.bytes for x in joined))} and {sum(x.launches for x in joined)} launches saved a step"
        sentences.append(f"{bucket + ': ' if bucket else ''}{fused} fusions, {apart} refused; {saved}")
    return sentences


def _op(name: str) -> str:
    """An op of the ledger without its dialect, which is always `tile`."""
    return name.removeprefix("tile.")


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers, runs of neighbours abbreviated: `0-3,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def byte_size(size: int) -> str:
    """A number of bytes for people: `1.5 MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024 or unit == "GiB":
            return f"{size} B" if unit == "B" else f"{amount:.2f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def _anonymous(text: Any) -> str:
    return LAYER.sub("layers.*", str(text))

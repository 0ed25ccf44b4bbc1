"""Two folders that `lamella compile` wrote go in; what differs leaves: launches, regions, decisions, kernels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lamella.errors import ManifestError
from lamella.tools.explain import Region, regions
from lamella.tools.text_table import aligned

LEDGER = "ledger.json"


@dataclass(frozen=True)
class Package:
    """What a folder says of its compilation: regions with their decisions, and the text of each kernel."""

    folder: Path
    regions: Sequence[Region]
    kernels: Mapping[str, str]

    @staticmethod
    def read(folder: str | Path) -> Package:
        """The ledger and kernels of a folder. Raises ManifestError for one that has none."""
        root = Path(folder)
        try:
            ledger: Any = json.loads((root / LEDGER).read_text(encoding="utf-8"))
        except OSError as error:
            raise ManifestError(f"no {LEDGER}", where=str(root), expected="a folder that lamella compile wrote") from error
        except ValueError as error:
            raise ManifestError(f"{LEDGER} is no JSON: {error}", where=str(root)) from error
        if not isinstance(ledger, list) or not all(isinstance(record, dict) for record in cast("list[Any]", ledger)):
            raise ManifestError(f"{LEDGER} holds no list of records", where=str(root))
        kernels = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / "kernels").glob("*.py"))}
        return Package(root, regions(cast("list[dict[str, Any]]", ledger)), kernels)

    def launches(self) -> Counter[str]:
        """Launches of each bucket."""
        return _sums((r.bucket, r.count) for r in self.regions)

    def runs(self) -> Counter[tuple[str, str]]:
        """For each bucket and list of ops that run in one launch: how many launches."""
        return _sums(((r.bucket, f"{r.where}: {', '.join(r.ops)} ({r.schedule.partition(' ')[0]})"), r.count) for r in self.regions)

    def decisions(self) -> dict[tuple[str, ...], Counter[str]]:
        """Verdicts and reasons by bucket, kind, producer and consumer, with their numbers."""
        found: dict[tuple[str, ...], Counter[str]] = {}
        for region in self.regions:
            for d in region.decisions:
                if d.producer:
                    verdict = f"{d.verdict}: {d.reason}"
                    found.setdefault((region.bucket, d.kind, d.producer, d.consumer), Counter())[verdict] += region.count
        return found


def diff_text(first: Package, second: Package) -> str:
    """What differs, as text: `-` for the first folder, `+` for the second; one line where nothing does."""
    paragraphs = [
        _launches(first, second),
        _paragraph("Launches", _signed(first.runs(), second.runs())),
        _paragraph("Decisions", _decisions(first, second)),
        _paragraph("Kernels", _kernels(first, second)),
    ]
    return "\n\n".join(p for p in paragraphs if p) or f"{first.folder} and {second.folder}: the same launches, decisions and kernels"


def _launches(first: Package, second: Package) -> str:
    counts = first.launches(), second.launches()
    lines = [
        f"Bucket {b}: {counts[0][b]} -> {counts[1][b]} launches" for b in sorted(counts[0] | counts[1]) if counts[0][b] != counts[1][b]
    ]
    return "\n".join(lines)


def _signed(before: Counter[tuple[str, str]], after: Counter[tuple[str, str]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for bucket, runs in dict.fromkeys([*before, *after]):
        old, new = before[bucket, runs], after[bucket, runs]
        if old > new:
            rows.append([f"- {old - new}x", bucket, runs])
        elif new > old:
            rows.append([f"+ {new - old}x", bucket, runs])
    return sorted(rows, key=lambda row: (row[1], row[0][0] == "+"))


def _decisions(first: Package, second: Package) -> list[list[str]]:
    rows: list[list[str]] = []
    before, after = first.decisions(), second.decisions()
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key, Counter[str]()), after.get(key, Counter[str]())
        if set(old) == set(new):
            continue
        bucket, kind, producer, consumer = key
        pair = f"{producer} into {consumer}".replace("tile.", "")
        rows += [
            [sign, bucket, kind, pair, text]
            for sign, only in (("-", set(old) - set(new)), ("+", set(new) - set(old)))
            for text in sorted(only)
        ]
    return rows


def _kernels(first: Package, second: Package) -> list[list[str]]:
    rows: list[list[str]] = []
    for name in sorted({*first.kernels, *second.kernels}):
        old, new = first.kernels.get(name), second.kernels.get(name)
        if old == new:
            continue
        if old is None or new is None:
            rows.append(["-" if new is None else "+", name, ""])
        else:
            lines = [set(text.splitlines()) for text in (old, new)]
            rows.append(["~", name, f"{len(lines[0] - lines[1])} lines gone, {len(lines[1] - lines[0])} new"])
    return rows


def _paragraph(title: str, rows: list[list[str]]) -> str:
    return "\n".join([title, *(f"  {line}" for line in aligned(rows))]) if rows else ""


def _sums(pairs: Any) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for key, number in pairs:
        counts[key] += number
    return counts

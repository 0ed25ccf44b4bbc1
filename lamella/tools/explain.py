"""The ledger of a compilation goes in; text leaves: for each launch what runs in it, what fused, what was refused and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lamella.tools.text_table import aligned

LAYER = re.compile(r"\blayers\.(\d+)\b")
Record = Mapping[str, Any]

TEXTS = ("verdict", "kind", "producer", "consumer", "reason")
PLACES = {"swapped": "pairs swapped", "in_place": "over an input", "not_in_place": "new buffer"}
PAIRED = ("horizontal", "epilogue", "prologue", "anchors")
"""Kinds of fusion few enough to name both sides."""


@dataclass(frozen=True)
class Decision:
    """A record of one region, layer numbers replaced by `*`; `bytes` and `launches` are what it saves."""

    verdict: str
    kind: str
    producer: str
    consumer: str
    reason: str
    bytes: int = 0
    launches: int = 0
    out: int = 0
    benefit: float = 0.0
    """Microseconds that a fusion saves, by the cost model."""


@dataclass(frozen=True)
class Region:
    """A region and those of other layers in which the same was decided: one launch each."""

    bucket: str
    kernel: str
    loc: str
    schedule: str
    ops: tuple[str, ...]
    """Locations of the model's ops that run in it, in order."""
    decisions: tuple[Decision, ...]
    layers: tuple[int, ...]
    count: int

    @property
    def where(self) -> str:
        """The location, with the layers it stands for: `layers.0-29.attn`; `step` for what belongs to no layer."""
        return _with_layers(self.loc, self.layers) or "step"

    def saved(self) -> tuple[int, int]:
        """Bytes and launches that the fusions in one such region save."""
        joined = [d for d in self.decisions if d.verdict == "joined"]
        return sum(d.bytes for d in joined), sum(d.launches for d in joined)


def regions(ledger: Iterable[Record]) -> list[Region]:
    """The regions of a ledger, those that differ only by layer merged, in the order of their first launch."""
    found: dict[tuple[Any, ...], tuple[set[int], list[int]]] = {}
    for _, group in groupby((r for r in ledger if "region" in r), key=lambda r: (r["bucket"], r["region"])):
        head, *records = group
        own = LAYER.search(str(head["loc"]))
        layer = int(own[1]) if own else None
        decisions = tuple(
            Decision(
                *(_relative(r.get(name, ""), layer) for name in TEXTS),
                bytes=int(r.get("bytes", 0)),
                launches=int(r.get("launches", 0)),
                out=int(r.get("out", 0)),
                benefit=float(r.get("benefit_us", 0.0)),
            )
            for r in records
        )
        loc = _relative(head["loc"], layer)
        ops = tuple(_relative(op, layer) for op in head["ops"])
        key = (head["bucket"], head["kernel"], loc, _schedule(head), ops, decisions)
        layers, count = found.setdefault(key, (set(), [0]))
        layers.update(() if layer is None else (layer,))
        count[0] += 1
    return [Region(*key, layers=tuple(sorted(layers)), count=count[0]) for key, (layers, count) in found.items()]


def explain(ledger: Sequence[Record]) -> str:
    """The whole ledger as text: a paragraph a region, a line of totals a bucket."""
    paragraphs = [*splits(ledger), *folds(ledger), *idle(ledger, "")]
    every = regions(ledger)
    for bucket in dict.fromkeys(region.bucket for region in every):
        own = [region for region in every if region.bucket == bucket]
        kernels = len({region.kernel for region in own})
        paragraphs.append(f"Bucket {bucket}: {_count(sum(r.count for r in own), 'launch', 'launches')} of {_count(kernels, 'kernel')}")
        paragraphs += [describe(region) for region in own]
        paragraphs += idle(ledger, bucket)
        paragraphs.append(totals(bucket, own))
    return "\n\n".join(paragraphs)


def splits(ledger: Iterable[Record]) -> list[str]:
    """Paragraphs on the buckets that became smaller ones, and on kernels that spilled and were taken apart: none where all was as asked for."""
    out: list[str] = []
    for kind, title in (("bucket", "Split buckets"), ("kernel", "Kernels that spilled")):
        rows = [[f"{kind} {r['what']}", str(r["reason"])] for r in ledger if r["verdict"] == "split" and r["kind"] == kind]
        out += ["\n".join([title, *(f"  {line}" for line in aligned(rows))])] if rows else []
    return out


def folds(ledger: Iterable[Record]) -> list[str]:
    """A paragraph on what was computed before any step runs, which all buckets share: none where nothing was decided."""
    merged: dict[tuple[str, str, str], set[int]] = {}
    for record in ledger:
        if "region" not in record and record["verdict"] not in ("idle", "split"):
            key = (str(record["verdict"]).replace("_", " "), _anonymous(record.get("what", "")), _anonymous(record.get("reason", "")))
            merged.setdefault(key, set()).update(int(n) for n in LAYER.findall(str(record.get("what", ""))))
    lines = [
        [
            verdict,
            _with_layers(what, sorted(layers)).replace("transformer.", ""),
            reason.replace("layers.*.", "").replace("transformer.", ""),
        ]
        for (verdict, what, reason), layers in merged.items()
    ]
    return ["\n".join(["All buckets, once at load time", *(f"  {line}" for line in aligned(lines))])] if lines else []


def idle(ledger: Iterable[Record], bucket: str) -> list[str]:
    """A paragraph on the passes, and steps of passes, that were on and matched nothing, with what came nearest: none where all did."""
    rows = [[str(r["kind"]), str(r["what"]), _anonymous(r["reason"])] for r in ledger if r["verdict"] == "idle" and r["bucket"] == bucket]
    title = f"Bucket {bucket}: on, but matched nothing" if bucket else "All buckets: on, but matched nothing"
    return ["\n".join([title, *(f"  {line}" for line in aligned(rows))])] if rows else []


def totals(bucket: str, own: Sequence[Region]) -> str:
    """One sentence on a bucket."""
    saved = [(r.saved(), r.count) for r in own]
    joined, refused = (sum(r.count * sum(d.verdict == v for d in r.decisions) for r in own) for v in ("joined", "refused"))
    size, launches = (sum(amounts[i] * n for amounts, n in saved) for i in (0, 1))
    return (
        f"Bucket {bucket}: {_count(joined, 'fusion')} accepted, {refused} refused; against one launch an op, "
        f"a step saves {_count(launches, 'launch', 'launches')} and {byte_size(size)} of memory traffic"
    )


def describe(region: Region) -> str:
    """The paragraph of one region."""
    times = "" if region.count == 1 else f", {region.count} launches"
    heading = f"{region.where}: {region.kernel}{times}, {region.schedule}"
    rows: list[list[str]] = []
    if region.ops:
        rows.append(["runs", ", ".join(_short(op, region.loc) for op in region.ops)])
    for verdict, word in (("joined", "fused"), ("refused", "refused")):
        lines = _joins([d for d in region.decisions if d.verdict == verdict], region.loc)
        rows += [[word, line] for line in aligned(lines)]
    rows += [["schedule", d.reason] for d in region.decisions if d.verdict in ("measured", "not_measured", "chosen")]
    for place, group in groupby(
        (d for d in region.decisions if d.verdict in PLACES), key=lambda d: f"{PLACES[d.verdict]}: {_short(d.reason, region.loc)}"
    ):
        numbers = ranges(d.out for d in group)
        rows.append([f"result {numbers}", place])
    return "\n".join([heading, *(f"  {line}" for line in aligned(rows))])


def _joins(decisions: Sequence[Decision], loc: str) -> list[list[str]]:
    """Lines of fusions, accepted or refused, those of one kind and reason together: kind, what is saved, who and why."""
    merged: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        merged.setdefault((decision.kind, decision.reason), []).append(decision)
    lines: list[list[str]] = []
    for (kind, reason), group in merged.items():
        if kind in PAIRED:
            pairs = dict.fromkeys((_short(d.producer, loc), _short(d.consumer, loc)) for d in group)
            who = "; ".join(f"{producer} into {consumer}" for producer, consumer in pairs)
        else:
            counts = Counter(_op(d.producer) for d in group)
            who = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in counts.items())
        size, launches = sum(d.bytes for d in group), sum(d.launches for d in group)
        gain = sum(d.benefit for d in group)
        time = f", {gain:.2f} us" if gain else ""
        saved = [f"{byte_size(size)}, {_count(launches, 'launch', 'launches')}{time}"] if launches else []
        lines.append([f"{kind:<10}", *saved, f"{who}: {_short(reason, loc)}"])
    return lines


def _schedule(head: Record) -> str:
    """`gemv (rows 4, k 2048, warps 8)`."""
    parameters = ", ".join(f"{name} {value}" for name, value in head["parameters"].items())
    return f"{head['schedule']} ({parameters})" if parameters else str(head["schedule"])


def _short(text: str, loc: str) -> str:
    """A text without dialects and without the layer that the region's heading names."""
    text = text.replace("tile.", "")
    return text.replace("layers.*.", "") if loc.startswith("layers.*") else text


def _op(name: str) -> str:
    """The op of `tile.map at layers.3.attn`."""
    return name.split(" ", maxsplit=1)[0].removeprefix("tile.")


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def _relative(text: Any, layer: int | None) -> str:
    """A text in which the region's own layer is `layers.*` and the one before it `previous`, so that regions of all layers compare."""
    if layer is None:
        return str(text)
    names = {layer: "layers.*", layer - 1: "previous"}
    return LAYER.sub(lambda found: names.get(int(found[1]), found[0]), str(text))


def _anonymous(text: Any) -> str:
    return LAYER.sub("layers.*", str(text))


def _with_layers(loc: str, layers: Sequence[int]) -> str:
    return loc.replace("layers.*", f"layers.{ranges(layers)}") if layers else loc


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

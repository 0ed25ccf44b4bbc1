# pyright: basic
"""Results of decode enter; a picture of Lamella's time beside those of its peers, and of the bound, leaves as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.summary import Document, parts
from lamella.errors import LamellaError
from lamella.tools.svg import FAINT, INK, Picture, fitting, text_width

OURS, PEERS, BOUND = "#3b7dc4", "#c7ccd4", "#c0504d"
LEFT, WIDTH, BAR, GAP = 190.0, 520.0, 18.0, 26.0
MOST, LEAST = 3.0, 1.6
"""A bar longer than so many of Lamella's is cut, and says so; the page is at least so many wide."""
NAMES = {"compile": "torch.compile, graph", "compile-max": "max-autotune, graph", "eager": "eager", "hf-generate": "transformers generate"}


@dataclass
class Group:
    """A model and a batch: milliseconds a token by name, and the bound."""

    title: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    floor: float = 0.0

    @property
    def bars(self) -> list[tuple[str, float]]:
        """Lamella's first, then from the fastest to the slowest."""
        return sorted(self.milliseconds.items(), key=lambda item: (not item[0].startswith("lamella"), item[1]))


def groups(documents: Iterable[Document]) -> list[Group]:
    """Decode steps of all results, in the order of the first of each; of a number that several have, the last counts. Raises LamellaError
    where there is none.
    """
    found: dict[tuple[object, ...], Group] = {}
    for document in documents:
        for _, part in parts(document):
            if part["benchmark"] != "decode":
                continue
            shape, model = part["shape"], part["model"]
            sizes = tuple(model[name] for name in ("layers", "hidden", "ffn", "vocabulary"))
            group = found.setdefault((*sizes, part["dtype"], *sorted(shape.items())), Group(""))
            group.title = f"{part['config']}, {part['dtype']}, batch {shape['batch']}, context {shape['context']}"
            rows: Sequence[Mapping[str, Any]] = part["rows"]
            group.milliseconds.update({row["name"]: row["ms"] for row in rows if "ms" in row})
            group.floor = part.get("floor_ms") or group.floor
    made = [group for group in found.values() if "lamella" in group.milliseconds]
    if not made:
        raise LamellaError("no decode step is among the results", expected="files of `decode` or `all`")
    return made


def picture(documents: Sequence[Document]) -> str:
    """A bar a way to decode, as long as it takes, each model and batch on a scale of its own; a line where the bound is."""
    found = groups(documents)
    height = 70 + sum(30 + GAP * len(group.bars) + 14 for group in found)
    devices = sorted({document["device"] for document in documents})
    heading = f"{', '.join(devices)}; the red line is what the bytes of a step take at the measured read bandwidth"
    made = Picture(max(LEFT + WIDTH + 150, text_width(heading, 12) + 48), height, "Milliseconds a decode step, Lamella and its peers")
    made.text(24, 30, "Milliseconds a decode step", size=16, bold=True)
    made.text(24, 50, heading, fill=FAINT)
    y = 70.0
    for group in found:
        y = _draw(made, group, y)
    return made.render()


def _draw(made: Picture, group: Group, top: float) -> float:
    """One group below `top`; returns where the next begins."""
    ours = group.milliseconds["lamella"]
    longest = max(LEAST * ours, min(max(group.milliseconds.values()), MOST * ours))
    scale = WIDTH / longest
    made.text(24, top + 18, group.title, size=13, bold=True)
    y = top + 30
    for name, milliseconds in group.bars:
        mine = name.startswith("lamella")
        width = min(milliseconds, longest) * scale
        made.text(LEFT - 10, y + 13, fitting(NAMES.get(name, name), LEFT - 34, 12), anchor="end", bold=mine)
        made.rect(LEFT, y, width, BAR, fill=OURS if mine else PEERS, radius=2)
        if milliseconds > longest:
            # Two strokes of the page across a bar that is not as long as it should be.
            for shift in (22.0, 15.0):
                made.rect(LEFT + width - shift, y - 1, 3, BAR + 2, fill="#ffffff")
        times = "" if mine else f", {milliseconds / ours:.2f} ×"
        made.text(
            LEFT + width + 8, y + 13, f"{milliseconds:.3g} ms{times}" if milliseconds >= 1 else f"{milliseconds:.3f} ms{times}", fill=INK
        )
        y += GAP
    if group.floor:
        made.line(LEFT + group.floor * scale, top + 26, LEFT + group.floor * scale, y - 4, stroke=BOUND, dashed=True)
    return y + 14

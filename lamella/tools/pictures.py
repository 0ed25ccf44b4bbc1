"""A manifest and its printed kernels go in; pictures of the arena over time and of one layer's kernels leave, as SVG."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.tools.explain import byte_size, ranges
from lamella.tools.report import bucket_name
from lamella.tools.roofline import layer_of
from lamella.tools.svg import FAINT, INK, Picture, fitting, text_width

COLOURS = (
    "#9cc5e8",
    "#f6c28b",
    "#b5dba0",
    "#e3a9a5",
    "#c9b8e4",
    "#f0de8d",
    "#a5d9d2",
    "#e8b5d3",
    "#c7ccd4",
    "#d6bd9e",
    "#8fd0e0",
    "#cfe08f",
    "#f0a7c0",
    "#b9c2f0",
)
MANY_LAYERS = 4
ALIGNMENT = 256
"""Bytes that buffers are rounded up to."""
LEFT, TOP = 96.0, 158.0


@dataclass(frozen=True)
class Buffer:
    """A range of the arena from the launch that first uses it to the last, both included; the step's end counts as a launch."""

    name: str
    offset: int
    size: int
    first: int
    last: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> tuple[str, str, tuple[int, ...]]:
        """What buffers of the same role in other layers have in common."""
        return self.name, self.dtype, self.shape

    @property
    def label(self) -> str:
        """`gated bf16 1×8192, 16 KiB`."""
        return f"{self.name} {self.dtype} {'×'.join(map(str, self.shape))}, {short_size(self.size)}"


def short_size(size: int) -> str:
    """A number of bytes, without decimals that say nothing: `16 KiB`."""
    return byte_size(size).replace(".00 ", " ")


def parameter_names(source: str) -> list[str]:
    """The parameters of a printed kernel in order, without what only says that they are pointers or results."""
    found = re.search(r"^SIGNATURE = (\{.*\})$", source, flags=re.MULTILINE)
    names: list[str] = list(ast.literal_eval(found.group(1))) if found else []
    return [re.sub(r"(_out)?(_\d+)?_ptr$", "", name) for name in names]


def name_of(launch: Launch, index: int, names: Mapping[str, Sequence[str]]) -> str:
    """What argument `index` of a launch is called in its kernel's text, or a stand-in where there is no text."""
    known = names.get(launch.kernel, ())
    return known[index] if index < len(known) else f"buffer {index}"


def buffers(bucket: Bucket, names: Mapping[str, Sequence[str]]) -> list[Buffer]:
    """The arena's buffers in the order of their first use, from the launches' arguments and dead ranges."""
    alive: dict[tuple[int, int], Buffer] = {}
    out: list[Buffer] = []
    for at, launch in enumerate(bucket.launches):
        for index, ref in enumerate(launch.args):
            if ref.pool == "arena" and (ref.offset, ref.bytes) not in alive:
                made = Buffer(name_of(launch, index, names), ref.offset, ref.bytes, at, at, ref.dtype, ref.shape)
                alive[ref.offset, ref.bytes] = made
        for spot in launch.dead:
            if spot in alive:
                out.append(replace(alive.pop(spot), last=at))
    out += [replace(buffer, last=len(bucket.launches)) for buffer in alive.values()]
    return sorted(out, key=lambda b: (b.first, b.offset))


@dataclass(frozen=True)
class Columns:
    """Where launches lie on the page: those in `hidden` (a range of launch numbers) share one column."""

    count: int
    hidden: range

    def of(self, launch: int) -> int:
        """The column of a launch."""
        if launch in self.hidden:
            return self.hidden.start
        return launch if launch < self.hidden.start or not self.hidden else launch - len(self.hidden) + 1

    @property
    def total(self) -> int:
        """Columns on the page, one for the end of the step included."""
        return self.of(self.count) + 1


def columns(bucket: Bucket) -> Columns:
    """Hides the layers after the second and before the last, where there are many and they launch the kernels of the second."""
    spans: dict[int, list[int]] = {}
    for at, launch in enumerate(bucket.launches):
        layer = layer_of(launch)
        if layer is not None:
            spans.setdefault(layer, []).append(at)
    layers = sorted(spans)
    if len(layers) <= MANY_LAYERS:
        return Columns(len(bucket.launches), range(0))

    def kernels(layer: int) -> list[str]:
        return [bucket.launches[at].kernel for at in spans[layer]]

    middle = layers[2:-1]
    first, last = spans[middle[0]][0], spans[middle[-1]][-1]
    alike = all(kernels(layer) == kernels(layers[1]) for layer in middle)
    whole = last - first + 1 == sum(len(spans[layer]) for layer in middle)
    return Columns(len(bucket.launches), range(first, last + 1) if alike and whole else range(0))


def arena_picture(manifest: Manifest, bucket: Bucket, kernels: Mapping[str, str]) -> str:
    """The arena of one bucket: a rectangle a buffer, offset downwards, launches to the right. Heights grow with the logarithm of bytes."""
    names = {name: parameter_names(text) for name, text in kernels.items()}
    found = buffers(bucket, names)
    cols = columns(bucket)
    step = max(30.0, min(96.0, 1060.0 / cols.total))
    scale = _offsets(found)
    kinds = list(dict.fromkeys(b.kind for b in found))
    bottom = TOP + scale[max(scale)] if scale else TOP
    legend = [next(b for b in found if b.kind == kind) for kind in kinds]
    rows = -(-len(legend) // 2)
    heading = _heading(manifest, bucket)
    width = max(LEFT + step * cols.total + 24, text_width(heading, 12) + 48, 2 * 440 + 48)
    picture = Picture(width, bottom + 64 + 20 * rows, f"Arena of {manifest.model.family}, {bucket_name(bucket)}")
    picture.text(24, 30, "The arena over one step", size=16, bold=True)
    picture.text(24, 50, heading, fill=FAINT)
    _draw_columns(picture, bucket, cols, step, bottom)
    for offset, y in scale.items():
        picture.line(LEFT - 4, TOP + y, LEFT + step * cols.total, TOP + y, stroke="#dfe4ea")
        picture.text(LEFT - 8, TOP + y + 4, f"{offset:,}", size=10, fill=FAINT, anchor="end")
    for buffer in found:
        _draw_buffer(picture, buffer, kinds.index(buffer.kind), cols, step, scale)
    picture.text(
        24, bottom + 40, "Buffers: heights grow with the logarithm of bytes; a number stands where a name does not fit", size=12, bold=True
    )
    for index, buffer in enumerate(legend):
        x, y = 24 + (index // rows) * max(440, (width - 48) / 2), bottom + 48 + 20 * (index % rows)
        picture.rect(x, y, 24, 14, fill=COLOURS[index % len(COLOURS)], stroke=INK)
        picture.text(x + 12, y + 11, str(index + 1), size=10, anchor="middle")
        picture.text(x + 32, y + 11, fitting(f"{buffer.label}, made by {bucket.launches[buffer.first].kernel}", 400, 11), size=11)
    return picture.render()


def _heading(manifest: Manifest, bucket: Bucket) -> str:
    return (
        f"{manifest.model.layers} layers, {bucket_name(bucket)}: {len(bucket.launches)} launches;"
        f" arena {bucket.arena_bytes:,} bytes, at most live {bucket.max_live_bytes:,}, all buffers {bucket.buffer_bytes:,}"
    )


def _offsets(found: Sequence[Buffer]) -> dict[int, float]:
    """How far down each offset lies: what is between two edges is as high as the logarithm of its bytes, gaps are thin."""
    edges = sorted({edge for b in found for edge in (b.offset, b.offset + b.size)})
    out: dict[int, float] = {}
    y = 0.0
    for low, high in zip(edges, [*edges[1:], edges[-1] if edges else 0], strict=True):
        out[low] = y
        # What only alignment leaves between two buffers is a strip.
        is_slack = high - low < ALIGNMENT and all(b.offset != low for b in found)
        y += 14 if is_slack else 18 + 4 * math.log2(1 + (high - low) / 64)
    return out


def _draw_columns(picture: Picture, bucket: Bucket, cols: Columns, step: float, bottom: float) -> None:
    """Layers and kernels above, and lines between launches."""
    spans: dict[str, list[int]] = {}
    for at, launch in enumerate(bucket.launches):
        column = cols.of(at)
        if at in cols.hidden:
            if at == cols.hidden.start:
                hidden = sorted({layer for i in cols.hidden if (layer := layer_of(bucket.launches[i])) is not None})
                picture.rect(LEFT + column * step, TOP - 66, step, bottom - TOP + 66, fill="#f1f3f6")
                picture.text(LEFT + (column + 0.5) * step + 4, TOP - 4, f"{ranges(hidden)} alike", size=10, fill=FAINT, up=True)
            continue
        layer = layer_of(launch)
        if layer is not None:
            spans.setdefault(f"layer {layer}", []).append(column)
        picture.line(LEFT + column * step, TOP - 66, LEFT + column * step, bottom, stroke="#eef1f4")
        picture.text(LEFT + (column + 0.5) * step + 4, TOP - 4, fitting(re.sub(r"^t\d+\w*?_", "", launch.kernel), 62, 10), size=10, up=True)
    end = cols.of(cols.count)
    picture.line(LEFT + end * step, TOP - 66, LEFT + end * step, bottom, stroke="#eef1f4")
    picture.text(LEFT + (end + 0.5) * step + 4, TOP - 4, "end", size=10, fill=FAINT, up=True)
    for label, own in spans.items():
        x, width = LEFT + min(own) * step, (max(own) - min(own) + 1) * step
        picture.line(x + 2, TOP - 68, x + width - 2, TOP - 68, stroke=INK)
        picture.text(x + width / 2, TOP - 72, fitting(label, width, 11), size=11, anchor="middle")


def _draw_buffer(picture: Picture, buffer: Buffer, kind: int, cols: Columns, step: float, scale: Mapping[int, float]) -> None:
    """One rectangle, unless all of it lies in the hidden launches, with its name or its number."""
    if buffer.first in cols.hidden and buffer.last in cols.hidden:
        return
    first, last = cols.of(buffer.first), cols.of(buffer.last)
    # What ends among the hidden launches and what begins there may lie in one place: each has half of their column.
    left = first + (0.5 if buffer.first in cols.hidden else 0.0)
    right = last + (0.5 if buffer.last in cols.hidden else 1.0)
    x, width = LEFT + left * step + 1, (right - left) * step - 2
    y, height = TOP + scale[buffer.offset], scale[buffer.offset + buffer.size] - scale[buffer.offset]
    box = picture.rect(x, y + 1, width, height - 2, fill=COLOURS[kind % len(COLOURS)], stroke=INK, radius=2)
    ElementTree.SubElement(box, "title").text = f"{buffer.label}, bytes {buffer.offset:,} to {buffer.offset + buffer.size:,}"
    text = buffer.name if text_width(buffer.name, 11) < width - 4 else str(kind + 1)
    picture.text(x + width / 2, y + height / 2 + 4, fitting(text, width, 11), size=11, anchor="middle")

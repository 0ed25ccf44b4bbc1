"""A manifest and its printed kernels go in; a picture of one layer leaves: its kernels in launch order, what each does, what lies between."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.tools.costs import operand, size_of
from lamella.tools.pictures import Buffer, buffers, name_of, parameter_names, short_size
from lamella.tools.report import bucket_name, made_of
from lamella.tools.roofline import layer_of
from lamella.tools.svg import FAINT, INK, Picture, fitting, text_width

SILENT = {"load", "store", "cast", "constant"}
"""What a printed line says of its source when it says nothing of what is computed."""
BOX_X, BOX_WIDTH, PAGE = 310.0, 660.0, 1200.0
SIDE = 24.0
CHIP, LINE, GAP = 20.0, 16.0, 64.0
"""Heights: a labelled box for a weight or buffer, a line of text, and what lies between two kernels."""
READ_ONLY, CACHE, ACTIVATION, KERNEL = "#f0de8d", "#e3a9a5", "#9cc5e8", "#eef3f8"


@dataclass(frozen=True)
class Box:
    """A launch and its number in the step, the lines that say what it does, what it reads beside activations, and its part of the cache."""

    launch: Launch
    at: int
    title: str
    lines: tuple[str, ...]
    sides: tuple[str, ...]
    cache: tuple[str, ...]

    @property
    def height(self) -> float:
        """Pixels of the box."""
        return max(36 + LINE * len(self.lines), 8 + (CHIP + 4) * max(len(self.sides), len(self.cache)))


def operations(text: str) -> list[str]:
    """What a printed kernel computes, a line for each op of the model: `ffn_norm: square, sum, mul, add, rsqrt`.

    Read from the comments. The order is that in which results are done, for weights are loaded ahead; what both branches of an `if` do
    counts in the first.
    """
    done: dict[str, int] = {}
    kinds: dict[str, dict[str, None]] = {}
    settled: set[str] = set()
    for number, line in enumerate(text.splitlines()):
        if line.strip() == "else:":
            settled = set(done)
        found = re.search(r"  # ([\w.]+)(?:: (\w+))?$", line)
        if found is None or found.group(1) in SILENT:
            continue
        where, kind = found.groups()
        if where not in settled:
            done[where] = number
        if kind is not None and kind not in SILENT:
            kinds.setdefault(where, {})[kind] = None
    return [f"{where}: {', '.join(kinds[where])}" if where in kinds else where for where in sorted(done, key=lambda w: done[w])]


def pictured_layer(bucket: Bucket) -> int | None:
    """The layer to draw: the second, which has no first or last layer's peculiarities, or the only one."""
    layers = sorted({layer for launch in bucket.launches if (layer := layer_of(launch)) is not None})
    return layers[min(1, len(layers) - 1)] if layers else None


def layer_picture(manifest: Manifest, bucket: Bucket, kernels: Mapping[str, str]) -> str:
    """The kernels of one layer from top to bottom; weights enter from the left, the cache is on the right, activations are between."""
    names = {name: parameter_names(text) for name, text in kernels.items()}
    layer = pictured_layer(bucket)
    boxes = [
        _box(manifest, bucket, at, names, kernels.get(launch.kernel))
        for at, launch in enumerate(bucket.launches)
        if layer in (None, layer_of(launch))
    ]
    live = buffers(bucket, names)
    height = 84 + sum(box.height for box in boxes) + GAP * (len(boxes) + 1)
    what = "The model" if layer is None else f"Layer {layer}"
    picture = Picture(PAGE, height, f"{what} of {manifest.model.family}, {bucket_name(bucket)}")
    picture.text(SIDE, 30, f"{what} of {manifest.model.family}: {len(boxes)} kernels", size=16, bold=True)
    picture.text(SIDE, 50, f"{bucket_name(bucket)}, {manifest.dtype}; blue: in the arena, yellow: read only, red: cache", fill=FAINT)
    y = 62.0
    for index in range(len(boxes) + 1):
        _draw_gap(picture, _crossing(manifest, live, boxes, index), y)
        y += GAP
        if index < len(boxes):
            _draw_box(picture, boxes[index], y)
            y += boxes[index].height
    return picture.render()


@dataclass(frozen=True)
class Crossing:
    """A buffer between two kernels: whether the one above wrote it, and whether the one below reads it."""

    buffer: Buffer
    written: bool
    read: bool


def _box(manifest: Manifest, bucket: Bucket, at: int, names: Mapping[str, Sequence[str]], text: str | None) -> Box:
    launch = bucket.launches[at]
    kernel = manifest.kernels[launch.kernel]
    attends = any(op[0].startswith("tile.attend") for op in kernel.body["ops"])
    lines = operations(text) if text is not None else [made_of(kernel.sources)]
    sides: list[str] = []
    cache: list[str] = []
    for index, ref in enumerate(launch.args):
        is_input = index < kernel.inputs
        if ref.pool == "cache" and (attends or not is_input):
            cache.append(f"{'read' if is_input else 'write'} cache {ref.layer}")
        elif ref.pool in ("weight", "constant", "input") and is_input:
            own = re.sub(r"^layers\.\d+\.", "", ref.name)
            sides.append(f"{own} {short_size(size_of(operand(manifest, bucket, ref)))}")
            # Launches share a kernel, whose text has the names of the first of them.
            lines = [re.sub(rf"^{re.escape(name_of(launch, index, names))}\b", own, line) for line in lines]
    how = f"grid {'×'.join(map(str, launch.grid))}, {kernel.num_warps} warp{'s' * (kernel.num_warps > 1)}"
    title = f"{launch.kernel}, {'a call of the library' if kernel.library else how}"
    return Box(launch, at, title, tuple(lines), tuple(dict.fromkeys(sides)), tuple(dict.fromkeys(cache)))


def _touches(launch: Launch, buffer: Buffer, arguments: Iterable[int]) -> bool:
    spot = (buffer.offset, buffer.size)
    return any(launch.args[i].pool == "arena" and (launch.args[i].offset, launch.args[i].bytes) == spot for i in arguments)


def _crossing(manifest: Manifest, live: Sequence[Buffer], boxes: Sequence[Box], index: int) -> list[Crossing]:
    """The buffers that are alive between box `index - 1` and box `index` and that the layer uses."""
    below = boxes[index].at if index < len(boxes) else boxes[-1].at + 1
    out: list[Crossing] = []
    for buffer in live:
        own = [box for box in boxes if buffer.first <= box.at <= buffer.last]
        if not buffer.first < below <= buffer.last or not any(_touches(b.launch, buffer, range(len(b.launch.args))) for b in own):
            continue
        written = read = False
        if index > 0:
            above = boxes[index - 1].launch
            written = _touches(above, buffer, range(manifest.kernels[above.kernel].inputs, len(above.args)))
        if index < len(boxes):
            following = boxes[index].launch
            read = _touches(following, buffer, range(manifest.kernels[following.kernel].inputs))
        out.append(Crossing(buffer, written, read))
    return out


def _draw_gap(picture: Picture, crossing: Sequence[Crossing], y: float) -> None:
    """What the kernel above wrote and the one below reads as boxes with arrows; the rest in words."""
    moving = [c for c in crossing if c.written or c.read]
    room = BOX_WIDTH - 10 * max(0, len(moving) - 1)
    natural = sum(text_width(c.buffer.label, 11) + 12 for c in moving)
    x = BOX_X
    for item in moving:
        label = item.buffer.label
        if natural > room:
            label = fitting(label, room * (text_width(label, 11) + 12) / natural - 12, 11)
        width = text_width(label, 11) + 12
        top = y + (GAP - CHIP) / 2
        if item.written:
            picture.arrow(x + width / 2, y, x + width / 2, top)
        if item.read:
            picture.arrow(x + width / 2, top + CHIP, x + width / 2, y + GAP)
        picture.rect(x, top, width, CHIP, fill=ACTIVATION, stroke=INK, radius=10)
        picture.text(x + 6, top + 14, label, size=11)
        x += width + 10
    kept = [c.buffer.name for c in crossing if not (c.written or c.read)]
    if kept:
        label = fitting(f"kept: {', '.join(kept)}", PAGE - BOX_X - BOX_WIDTH - 24, 11)
        picture.text(BOX_X + BOX_WIDTH + 12, y + GAP / 2 + 4, label, size=11, fill=FAINT)


def _draw_box(picture: Picture, box: Box, y: float) -> None:
    """A kernel with its lines, its weights on the left and its cache on the right."""
    picture.rect(BOX_X, y, BOX_WIDTH, box.height, fill=KERNEL, stroke=INK, radius=4)
    picture.text(BOX_X + 12, y + 20, fitting(box.title, BOX_WIDTH - 24, 12), bold=True)
    for number, line in enumerate(box.lines):
        picture.text(BOX_X + 24, y + 40 + LINE * number, fitting(line, BOX_WIDTH - 36, 11), size=11)
    for number, label in enumerate(box.sides):
        text = fitting(label, BOX_X - SIDE - 36, 11)
        width, top = text_width(text, 11) + 12, y + 6 + (CHIP + 4) * number
        picture.rect(BOX_X - 24 - width, top, width, CHIP, fill=READ_ONLY, stroke=INK)
        picture.text(BOX_X - 18 - width, top + 14, text, size=11)
        picture.arrow(BOX_X - 24, top + CHIP / 2, BOX_X, top + CHIP / 2)
    for number, label in enumerate(box.cache):
        width, top, x = text_width(label, 11) + 12, y + 6 + (CHIP + 4) * number, BOX_X + BOX_WIDTH + 24
        picture.rect(x, top, width, CHIP, fill=CACHE, stroke=INK)
        picture.text(x + 6, top + 14, label, size=11)
        ends = (x, x - 24) if label.startswith("read") else (x - 24, x)
        picture.arrow(ends[0], top + CHIP / 2, ends[1], top + CHIP / 2)

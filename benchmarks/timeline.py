# pyright: basic
"""A step whose programs stamp the device's clock enters; when each launch starts, stops waiting and ends leaves, as a table and a picture.

Launches overlap in a step: each starts while the one before drains, asks for its weights, and waits. What kernels take by themselves does not show
where a step's time goes; this does. Stamps make a step some 10 to 15 % longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any

import torch

from benchmarks.lamella_runner import decode_step, load, prefill_step
from benchmarks.results import Report, timed
from benchmarks.settings import Settings
from benchmarks.timing import measure, release
from lamella import api
from lamella.errors import DeviceError, LamellaError
from lamella.program import Shape
from lamella.runtime.executor import MemoryExecutor, make_executor
from lamella.runtime.manifest import Bucket
from lamella.tools.svg import FAINT, INK, Picture, fitting

CAPACITY = 1 << 21
"""Programs of a step that find room in the log."""
FIELDS = 4
"""Of a record: clock at the start, clock when the wait was over, clock at the end, number of the kernel."""
SETTLE = 20
"""Steps before the one that counts."""
WAIT = "tl.extra.cuda.gdc_wait()"
CLOCK = "tl.extra.cuda.globaltimer()"
TIMES = ("starts", "last_start", "waited", "ends", "median_end", "last_end")
COLUMNS = ("name", "launches", "programs", *TIMES)


@dataclass(frozen=True)
class Log:
    """Where programs leave their records."""

    records: torch.Tensor
    """int64 [CAPACITY · FIELDS]."""
    count: torch.Tensor
    """int32 [1]: records so far, those that found no room among them."""

    @classmethod
    def on(cls, device: torch.device) -> Log:
        """An empty one."""
        return cls(torch.zeros(CAPACITY * FIELDS, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int32, device=device))

    def stamped(self, text: str, name: str, number: int) -> str:
        """The text of kernel `name`, which leaves a record a program: its clock at the start, when its wait is over, at the end, and `number`."""
        head, found, body = re.split(rf"(?<=\n)(def {name}\(.*\):\n)", text, maxsplit=1)
        body = re.sub(rf"^( *){re.escape(WAIT)}\n", rf"\g<0>\1t_waited = {CLOCK}\n", body, flags=re.MULTILINE)
        lines = [
            f"    t_end = {CLOCK}",
            f"    log_ptr = tl.full((), {self.records.data_ptr()}, tl.int64).to(tl.pointer_type(tl.int64))",
            f"    count_ptr = tl.full((), {self.count.data_ptr()}, tl.int64).to(tl.pointer_type(tl.int32))",
            f'    record = tl.atomic_add(count_ptr, 1, sem="relaxed").to(tl.int64) * {FIELDS}',
            f"    fits = record < {CAPACITY * FIELDS}",
            *(f"    tl.store(log_ptr + record + {i}, {v}, mask=fits)" for i, v in enumerate(("t_start", "t_waited", "t_end", number))),
        ]
        return f"{head}{found}    t_start = {CLOCK}\n    t_waited = t_start\n{body.rstrip()}\n" + "\n".join(lines) + "\n"

    def read(self) -> torch.Tensor:
        """int64 [programs, FIELDS] on the CPU. Raises DeviceError where not all found room."""
        count = int(self.count.item())
        if count > CAPACITY:
            raise DeviceError(
                "the step has too many programs", expected=f"at most {CAPACITY}", got=str(count), remedy="fewer layers: --layers"
            )
        return self.records[: count * FIELDS].view(count, FIELDS).cpu()


def timeline(
    settings: Settings, *, batch: int, context: int, max_context: int, tokens: int | None = None, quantize: str = "none"
) -> Report:
    """The launches of a decode step of `batch` sequences, or of a prompt of `tokens` tokens. Raises DeviceError without a GPU."""
    if settings.device.type != "cuda":
        raise DeviceError("a timeline is read off a GPU's clock", got=str(settings.device))
    shape = Shape.prefill(tokens) if tokens else Shape.decode(batch)
    report = Report("timeline", settings.device, {"config": settings.name, "quantize": quantize}, settings.output)
    options = {"max_context": max_context, "sequences": 1 if tokens else batch, "quantize": quantize}
    model = load(settings.config, [shape], device=settings.device, dtype=settings.dtype, **options)
    manifest = model.executor.manifest
    sizes = {"tokens": tokens} if tokens else {"batch": batch, "context": context}
    report.note(**settings.facts(model.opened.config, manifest.dtype, **sizes, max_context=max_context))
    bucket = manifest.buckets[0]

    def ready(one: api.Model):
        return prefill_step(one, bucket) if tokens else decode_step(one, context, settings.steps + SETTLE + 2, bucket=bucket)

    plain = ready(model)
    report.note(step=timed(measure(plain, settings.device, launches=settings.steps, repetitions=settings.repetitions, reset=plain.reset)))
    log, names = Log.on(settings.device), [name for name, kernel in manifest.kernels.items() if not kernel.library]
    step = ready(stamped_model(model, log, names))
    report.note(stamped=timed(measure(step, settings.device, launches=settings.steps, repetitions=settings.repetitions, reset=step.reset)))
    step.reset()
    for _ in range(SETTLE):
        step()
    torch.cuda.synchronize()
    log.count.zero_()
    step()
    torch.cuda.synchronize()
    found = launches(log.read(), bucket, names)
    report.note(launches=found)
    for row in by_kernel(found):
        report.add(**row)
    release()
    report.table(
        COLUMNS, f"launches of {settings.name}, {manifest.dtype}, {sizes}: us after the last program of the launch before has ended"
    )
    return report


def stamped_model(model: api.Model, log: Log, names: Sequence[str]) -> api.Model:
    """The same model on the same weights, its kernels stamping."""
    manifest, executor = model.executor.manifest, model.executor
    assert isinstance(executor, MemoryExecutor)
    kernels = {name: log.stamped(text, name, names.index(name)) for name, text in model.program.kernels.items()}
    tokens = (executor.caches[0].shape[0] - 1) * manifest.cache.block
    made = make_executor(
        manifest, executor.memory.weights, executor="cuda", device=str(executor.device), kernels=kernels, cache_tokens=tokens
    )
    made.prepare()
    return api.Model(model.opened, model.program, made, {})


def launches(records: torch.Tensor, bucket: Bucket, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row a launch that stamps, in order: its kernel and place, its programs, and TIMES in us after the first program of the step has started.

    Programs of one kernel are its launches' in the order in which their waits were over. Raises LamellaError where records are missing.
    """
    by_name = {name: records[records[:, 3] == number] for number, name in enumerate(names)}
    queues = {name: found[found[:, 1].sort().indices] for name, found in by_name.items()}
    taken = dict.fromkeys(names, 0)
    first = int(records[:, 0].min())
    rows: list[dict[str, Any]] = []
    for launch in bucket.launches:
        if launch.kernel not in queues:
            continue
        programs, at = prod(launch.grid), taken[launch.kernel]
        taken[launch.kernel] += programs
        own = queues[launch.kernel][at : at + programs]
        if len(own) < programs:
            raise LamellaError(f"records of {launch.kernel} are missing", expected=str(programs), got=str(len(own)))
        rows.append({"name": launch.kernel, "loc": launch.loc, "programs": programs, **_times(own, first)})
    return rows


def _times(own: torch.Tensor, first: int) -> dict[str, float]:
    start, waited, end = ((own[:, i] - first).double() / 1e3 for i in range(3))
    values = (start.min(), start.max(), waited.min(), end.min(), end.median(), end.max())
    return {name: round(float(value), 3) for name, value in zip(TIMES, values, strict=True)}


def by_kernel(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a kernel and number of programs: medians over its launches, us after the last program of the launch before has ended."""
    groups: dict[tuple[str, int], list[list[float]]] = {}
    for before, launch in pairwise(found):
        times = [launch[name] - before["last_end"] for name in TIMES]
        groups.setdefault((launch["name"], launch["programs"]), []).append(times)
    return [
        {"name": name, "launches": len(rows), "programs": programs}
        | {time: round(median(column), 3) for time, column in zip(TIMES, zip(*rows, strict=True), strict=True)}
        for (name, programs), rows in groups.items()
    ]


# The picture

EARLY, WORK, DRAIN = "#dfe5ec", "#3b7dc4", "#9cc0e4"
LEFT, WIDTH, BAR, ROW = 250.0, 620.0, 16.0, 26.0


def picture(document: Mapping[str, Any], layer: int | None = None) -> str:
    """One layer's launches as bars over time: pale while they wait, blue from the end of the wait to the first program's end, lighter until the last one's.

    `layer` None: the one in the middle. Raises LamellaError for a document without launches, or without that layer.
    """
    found = document.get("launches")
    if document.get("benchmark") != "timeline" or not found:
        raise LamellaError("these results hold no timeline", expected="a file of `python -m benchmarks timeline`")
    chosen = of_layer(found, document["model"]["layers"] // 2 if layer is None else layer)
    begin = min(row["waited"] for row in chosen) - 4
    end = max(row["last_end"] for row in chosen) + 1
    scale = WIDTH / (end - begin)
    made = Picture(LEFT + WIDTH + 110, 116 + ROW * len(chosen), "A layer of a step, launch by launch")
    made.text(24, 30, f"{document['config']}, {document['dtype']}: one layer of a step, launch by launch", size=16, bold=True)
    legend = "pale: started, asks for weights, waits; blue: works; light: its last programs end. Microseconds, with stamps"
    made.text(24, 50, legend, fill=FAINT)
    bottom = 74 + ROW * len(chosen)
    for tick in range(0, int(end - begin) + 1, 10):
        x = LEFT + tick * scale
        made.line(x, 66, x, bottom, stroke="#eceff3")
        made.text(x, bottom + 16, str(tick), size=11, fill=FAINT, anchor="middle")
    for number, row in enumerate(chosen):
        y = 70 + ROW * number
        x = [LEFT + (min(max(row[name], begin), end) - begin) * scale for name in ("starts", "waited", "ends", "last_end")]
        made.text(LEFT - 12, y + 13, fitting(f"{row['name']} x{row['programs']}", LEFT - 36, 12), anchor="end")
        for left, right, fill in ((x[0], x[1], EARLY), (x[1], x[2], WORK), (x[2], x[3], DRAIN)):
            made.rect(left, y, max(right - left, 0.5), BAR, fill=fill)
        made.text(x[3] + 6, y + 13, f"{row['last_end'] - row['waited']:.1f}", size=11, fill=INK)
    return made.render()


def of_layer(found: Sequence[Mapping[str, Any]], layer: int) -> list[Mapping[str, Any]]:
    """The launches whose place in the model is in a layer. Raises LamellaError where there are none."""
    chosen = [row for row in found if re.match(rf"layers\.{layer}(\.|$)", row["loc"])]
    if not chosen:
        raise LamellaError("no launch is of that layer", where=f"layer {layer}")
    return chosen

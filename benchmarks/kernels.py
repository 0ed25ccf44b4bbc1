# pyright: basic
"""The launches of a decode step, kernel by kernel: time, bytes and share of the read bandwidth of each, and their sum beside the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.lamella_runner import Step, decode_step, load, prefill_step
from benchmarks.results import Report, timed
from benchmarks.settings import Settings
from benchmarks.timing import measure, read_bandwidth, release
from benchmarks.traffic import launch_traffic, ref_bytes, step_traffic
from lamella import api
from lamella.program import Shape
from lamella.runtime.executor import Executor, MemoryExecutor
from lamella.runtime.manifest import Bucket, Launch, Manifest, Ref

LAUNCHES = 64
"""At least so many launches make one timed graph, lest the start of the graph count."""
COLUMNS = ("name", "launches_a_step", "us", "spread", "step_us", "kilobytes", "gb_s", "bound_share", "cold", "made_of")


@dataclass(frozen=True)
class Part:
    """The launches of one kernel in a step, in order, and how often the timed bucket repeats them."""

    kernel: str
    launches: tuple[Launch, ...]
    first: int
    """Number of the first among the step's launches."""
    repeats: int
    before: Bucket
    """The step up to there."""
    timed: Bucket


def kernels(settings: Settings, *, batch: int, context: int, max_context: int, tokens: int | None = None) -> Report:
    """Times each distinct kernel of the decode bucket of `batch` sequences, or of the prefill bucket of `tokens` tokens.

    A kernel runs with all the operands it has in a step, one launch after another, so that weights come from memory, not from a cache
    (`cold`: what one round touches is more than twice the L2 cache).
    """
    report = Report("kernels", settings.device, {"config": settings.name}, settings.output)
    bandwidth = read_bandwidth(settings.device)
    report.note(read_bandwidth=bandwidth, bound="read bandwidth")
    release()
    shape = Shape.prefill(tokens) if tokens else Shape.decode(batch)
    model = load(
        settings.config, [shape], device=settings.device, dtype=settings.dtype, max_context=max_context, sequences=1 if tokens else batch
    )
    manifest, bucket = model.executor.manifest, model.executor.manifest.buckets[0]
    sizes = {"tokens": tokens} if tokens else {"batch": batch, "context": context}
    report.note(**settings.facts(model.opened.config, manifest.dtype, **sizes, max_context=max_context))
    length = tokens or context
    whole = prefill_step(model, bucket) if tokens else decode_step(model, context, settings.steps + 1)
    step_time = measure(whole, settings.device, launches=settings.steps, repetitions=settings.repetitions, reset=whole.reset)
    parts = parts_of(bucket, LAUNCHES if settings.device.type == "cuda" else 1)
    executor = isolated(model, bucket, parts)
    total = 0.0
    for part in parts:
        row = _measure(report, settings, whole, executor, manifest, part, length, bandwidth)
        total += row.get("step_us", 0.0)
    moved = step_traffic(manifest, bucket, length).total
    report.note(
        step={**timed(step_time), "bytes": moved, "bound_share": moved * 1e3 / step_time.milliseconds / bandwidth},
        sum_of_kernels_us=total,
    )
    report.table(COLUMNS, f"kernels of {settings.name}, {manifest.dtype}, {sizes}, {report.facts['device']}")
    print(
        f"read bandwidth {bandwidth / 1e12:.3f} TB/s; the step takes {step_time.milliseconds * 1e3:.1f} us, its kernels by themselves"
        f" {total:.1f} us, the bytes it moves {moved * 1e6 / bandwidth:.1f} us"
    )
    return report


def parts_of(bucket: Bucket, least: int = LAUNCHES) -> list[Part]:
    """The distinct kernels of a bucket, in the order of their first launches, each repeated until it makes `least` of them.

    The buckets made here differ in their key, by a longest query that no real one has. They claim no bytes of the arena and free none:
    what the launches before left there is what the timed ones read.
    """
    names = list(dict.fromkeys(launch.kernel for launch in bucket.launches))
    parts: list[Part] = []
    for i, name in enumerate(names):
        own = tuple(replace(launch, dead=()) for launch in bucket.launches if launch.kernel == name)
        first = next(n for n, launch in enumerate(bucket.launches) if launch.kernel == name)
        earlier = tuple(replace(launch, dead=()) for launch in bucket.launches[:first])
        key = bucket.longest_query + 1 + 2 * i
        repeats = -(-least // len(own))
        before = replace(bucket, longest_query=-key, launches=earlier, outputs=(), arena_bytes=0)
        isolated = replace(bucket, longest_query=-key - 1, launches=own * repeats, outputs=(), arena_bytes=0)
        parts.append(Part(name, own, first, repeats, before, isolated))
    return parts


def isolated(model: api.Model, bucket: Bucket, parts: Sequence[Part]) -> Executor:
    """An executor over the same memory that knows the buckets of the parts, which share the inputs of `bucket`."""
    executor = model.executor
    assert isinstance(executor, MemoryExecutor)
    inputs = executor.memory.inputs[bucket.key]
    buckets = [b for part in parts for b in (part.before, part.timed)]
    memory = replace(executor.memory, inputs={b.key: inputs for b in buckets})
    if memory.device.type == "cuda":
        from lamella.runtime.cuda import CudaExecutor

        made: Executor = CudaExecutor(memory, model.program.kernels)
    else:
        from lamella.runtime.reference import ReferenceExecutor

        made = ReferenceExecutor(memory)
    for part in parts:
        # Preparing a bucket runs it once. The indices that a part reads must be in the arena by then, so what makes them goes first.
        if part.before.launches:
            made.prepare([part.before])
        made.prepare([part.timed])
    return made


def unsafe(part: Part, kernel_inputs: int) -> str | None:
    """Why the launches cannot run by themselves: one reads indices that are not those the launches before the first have left.

    Any numbers will do for values, but an index must be one.
    """
    ranges = [
        [(r.offset, r.bytes) for r in launch.args[:kernel_inputs] if r.pool == "arena" and r.dtype.startswith("i")]
        for launch in part.launches
    ]
    if any(r not in ranges[0] for later in ranges for r in later):
        return "launches read different indices"
    written = [(r.offset, r.bytes) for launch in part.launches for r in launch.args[kernel_inputs:] if r.pool == "arena"]
    if any(a < c + d and c < a + b for a, b in ranges[0] for c, d in written):
        return "a launch overwrites indices that the next reads"
    return None


def _measure(
    report: Report, settings: Settings, whole: Step, executor: Executor, manifest: Manifest, part: Part, context: float, bandwidth: float
) -> dict:
    why = unsafe(part, manifest.kernels[part.kernel].inputs)
    if why is not None:
        return report.add(name=part.kernel, error=why)

    def reset() -> None:
        whole.reset()
        if part.before.launches:
            executor.launch(part.before)

    rounds = max(1, settings.steps // 5)
    timing = measure(lambda: executor.launch(part.timed), settings.device, launches=rounds, repetitions=settings.repetitions, reset=reset)
    count = len(part.launches)
    microseconds = timing.milliseconds * 1e3 / (count * part.repeats)
    moved = sum(launch_traffic(manifest, part.timed, launch, context) for launch in part.launches) / count
    names = {r.name for launch in part.launches for r in launch.args if r.pool == "weight"}
    weights = sum(ref_bytes(manifest, part.timed, Ref("weight", name)) for name in names)
    return report.add(
        name=part.kernel,
        launches_a_step=count,
        us=microseconds,
        spread=timing.spread,
        step_us=microseconds * count,
        kilobytes=moved / 1e3,
        gb_s=moved / microseconds / 1e3,
        bound_share=moved * 1e6 / microseconds / bandwidth,
        weights_mb=weights / 1e6,
        cold=_is_cold(settings.device, weights),
        grid=list(part.launches[0].grid),
        num_warps=manifest.kernels[part.kernel].num_warps,
        made_of=" ".join(manifest.kernels[part.kernel].sources),
        loc=part.launches[0].loc or None,
    )


def _is_cold(device: torch.device, touched: int) -> bool | None:
    """None where the size of the cache is not known."""
    return touched > 2 * torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else None

# pyright: basic
"""The launches of a decode step, kernel by kernel: time, bytes and share of the read bandwidth of each, and their sum beside the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.lamella_runner import Step, decode_step, load, prefill_step
from benchmarks.library import counterpart, microseconds
from benchmarks.results import Report, timed
from benchmarks.settings import Settings
from benchmarks.timing import matmul_rate, measure, read_bandwidth, release
from benchmarks.traffic import launch_flops, launch_traffic, ref_bytes, step_flops, step_traffic
from lamella import api
from lamella.program import Shape
from lamella.runtime.executor import Executor, MemoryExecutor
from lamella.runtime.manifest import Bucket, Launch, Manifest, Ref

LAUNCHES = 64
"""At least so many launches make one timed graph, lest the start of the graph count."""
FEW_LAUNCHES = 4
"""Of kernels that take long, as those of many tokens do."""
INDICES = ("i32", "i64")
"""Types of numbers that choose rows of a table or slots of a cache; bytes are values."""
COLUMNS = (
    "name",
    "launches_a_step",
    "us",
    "spread",
    "step_us",
    "gb_s",
    "tflop_s",
    "bound_share",
    "library_us",
    "library_ratio",
    "cold",
    "made_of",
)


@dataclass(frozen=True)
class Part:
    """The launches of one kernel in a step, in order, and how often the timed bucket repeats them, or the first of them."""

    kernel: str
    launches: tuple[Launch, ...]
    first: int
    """Number of the first among the step's launches."""
    repeats: int
    before: Bucket
    """The step up to there."""
    timed: Bucket


def kernels(settings: Settings, *, batch: int, context: int, max_context: int, tokens: int | None = None, quantize: str = "none") -> Report:
    """Times each distinct kernel of the decode bucket of `batch` sequences, or of the prefill bucket of `tokens` tokens; weights are packed as
    `quantize` says."""
    report = Report("kernels", settings.device, {"config": settings.name}, settings.output)
    rates = rates_of(settings.device)
    shape = Shape.prefill(tokens) if tokens else Shape.decode(batch)
    report.note(quantize=quantize)
    model = load(
        settings.config,
        [shape],
        device=settings.device,
        dtype=settings.dtype,
        max_context=max_context,
        sequences=1 if tokens else batch,
        quantize=quantize,
    )
    return measure_kernels(report, settings, model, model.executor.manifest.buckets[0], context, rates)


def rates_of(device: torch.device) -> dict[str, float]:
    """What the device does at best: `read_bandwidth` and `matmul_rate`."""
    rates = {"read_bandwidth": read_bandwidth(device), "matmul_rate": matmul_rate(device, torch.bfloat16)}
    release()
    return rates


def measure_kernels(
    report: Report, settings: Settings, model: api.Model, bucket: Bucket, context: int, rates: Mapping[str, float]
) -> Report:
    """Times each distinct kernel of a bucket beside what a library takes for its product or its attention, and the whole step.

    A kernel runs with all the operands it has in a step, one launch after another, so that weights come from memory, not from a cache
    (`cold`: what one round touches is more than twice the L2 cache). Of a bucket of many tokens the launches of a few layers stand for all.
    """
    manifest, prefill = model.executor.manifest, bucket.longest_query > 1
    sizes = {"tokens": bucket.tokens} if prefill else {"batch": bucket.sequences, "context": context}
    report.note(
        **settings.facts(model.opened.config, manifest.dtype, **sizes, max_context=manifest.max_context),
        **rates,
        bound="read bandwidth or matmul rate, whichever takes longer",
    )
    length = bucket.tokens if prefill else context
    whole = prefill_step(model, bucket) if prefill else decode_step(model, context, settings.steps + 1, bucket=bucket)
    step_time = measure(
        whole, settings.device, launches=settings.steps, repetitions=settings.repetitions, reset=whole.reset, seconds=settings.seconds
    )
    on_gpu = settings.device.type == "cuda"
    parts = parts_of(bucket, FEW_LAUNCHES if prefill or not on_gpu else LAUNCHES, most=FEW_LAUNCHES if prefill else None)
    executor = isolated(model, bucket, parts)
    total, gaps = 0.0, True
    for part in parts:
        row = _measure(report, settings, whole, executor, manifest, part, length, rates)
        total += row.get("step_us", 0.0)
        gaps = gaps and "error" not in row
    release()
    for row, part in zip(report.rows, parts, strict=True):
        _beside_a_library(row, settings, manifest, part, length)
        report.save()
    moved, step_us = step_traffic(manifest, bucket, length).total, step_time.milliseconds * 1e3
    floor = max(moved / rates["read_bandwidth"], step_flops(manifest, bucket) / rates["matmul_rate"] if prefill else 0.0) * 1e6
    report.note(
        step={**timed(step_time), "bytes": moved, "bound_share": floor / step_us},
        sum_of_kernels_us=total,
        # Kernels that overlap in a step make this negative.
        gaps_us=step_us - total if gaps else None,
        gaps_share=(step_us - total) / step_us if gaps else None,
    )
    report.table(COLUMNS, f"kernels of {settings.name}, {manifest.dtype}, {sizes}, {report.facts['device']}")
    print(
        f"read bandwidth {rates['read_bandwidth'] / 1e12:.3f} TB/s, matmul {rates['matmul_rate'] / 1e12:.0f} TFLOP/s; the step takes"
        f" {step_us:.1f} us, its kernels by themselves {total:.1f} us, at the bound {floor:.1f} us"
    )
    return report


def _beside_a_library(row: dict[str, Any], settings: Settings, manifest: Manifest, part: Part, length: int) -> None:
    """Adds to a row the times of a library, the best of them over the kernel's (above 1, the kernel is faster), and what was asked of it."""
    wanted = counterpart(manifest, part.timed, part.launches[0], length)
    if wanted is None or "error" in row:
        return
    try:
        found = microseconds(wanted, settings.device, settings.repetitions)
    except Exception as error:  # the kernels are measured; what a library dies of is worth a line
        row["library_error"] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
        return
    finally:
        release()
    best = min((us for us in found.values() if isinstance(us, float)), default=None)
    row |= {"library": wanted.name, **found, "library_us": best, "library_ratio": best / row["us"] if best else None}


def parts_of(bucket: Bucket, least: int = LAUNCHES, most: int | None = None) -> list[Part]:
    """The distinct kernels of a bucket, in the order of their first launches, each repeated until it makes `least` of them; where it has
    more launches than `most`, the first of them stand for all.

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
        chosen = own[:most]
        repeats = -(-least // len(chosen))
        before = replace(bucket, longest_query=-key, launches=earlier, outputs=(), arena_bytes=0)
        isolated = replace(bucket, longest_query=-key - 1, launches=chosen * repeats, outputs=(), arena_bytes=0)
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
        [(r.offset, r.bytes) for r in launch.args[:kernel_inputs] if r.pool == "arena" and r.dtype in INDICES] for launch in part.launches
    ]
    if any(r not in ranges[0] for later in ranges for r in later):
        return "launches read different indices"
    written = [(r.offset, r.bytes) for launch in part.launches for r in launch.args[kernel_inputs:] if r.pool == "arena"]
    if any(a < c + d and c < a + b for a, b in ranges[0] for c, d in written):
        return "a launch overwrites indices that the next reads"
    return None


def _measure(
    report: Report,
    settings: Settings,
    whole: Step,
    executor: Executor,
    manifest: Manifest,
    part: Part,
    context: float,
    rates: Mapping[str, float],
) -> dict[str, Any]:
    why = unsafe(part, manifest.kernels[part.kernel].inputs)
    if why is not None:
        return report.add(name=part.kernel, error=why)

    def reset() -> None:
        whole.reset()
        if part.before.launches:
            executor.launch(part.before)

    rounds = max(1, settings.steps // 5)
    timing = measure(
        lambda: executor.launch(part.timed),
        settings.device,
        launches=rounds,
        repetitions=settings.repetitions,
        reset=reset,
        seconds=settings.seconds / 4,
    )
    count = len(part.launches)
    us = timing.milliseconds * 1e3 / len(part.timed.launches)
    moved = sum(launch_traffic(manifest, part.timed, launch, context) for launch in part.launches) / count
    flops = sum(launch_flops(manifest, part.timed, launch, context) for launch in part.launches) / count
    # One row of activations is multiplied outside of the tensor cores, and never at their rate.
    floor = max(moved / rates["read_bandwidth"], flops / rates["matmul_rate"]) * 1e6
    names = {r.name for launch in part.timed.launches for r in launch.args if r.pool == "weight"}
    weights = sum(ref_bytes(manifest, part.timed, Ref("weight", name)) for name in names)
    return report.add(
        name=part.kernel,
        launches_a_step=count,
        us=us,
        spread=timing.spread,
        step_us=us * count,
        kilobytes=moved / 1e3,
        gb_s=moved / us / 1e3,
        tflop_s=flops / us / 1e6,
        bound_share=floor / us,
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

# pyright: basic
"""A step enters; its time leaves, with its spread. And what this device can do at best: its read bandwidth and its matmul rate."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
import triton
import triton.language as tl

WARM_UP = 2
"""Repetitions that are run before those that count: clocks rise, caches fill."""
STREAM_VARIANTS = ((4096, 1, 4), (8192, 1, 8), (16384, 1, 8), (2048, 4, 4), (4096, 4, 8), (8192, 2, 8))
"""(elements of a block, blocks of a program, warps) of the read-only stream; the fastest counts."""
STREAM_BYTES = 1 << 32


@dataclass(frozen=True)
class Timing:
    """Milliseconds a launch: the median of some repetitions of `launches` launches each, the lowest and the highest of them."""

    milliseconds: float
    low: float
    high: float
    launches: int
    repetitions: int

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (self.high - self.low) / self.milliseconds if self.milliseconds else 0.0


def a_step(timing: Timing, steps: int) -> Timing:
    """The timing of launches of `steps` steps each, as that of a step."""
    return Timing(timing.milliseconds / steps, timing.low / steps, timing.high / steps, timing.launches * steps, timing.repetitions)


def measure(
    step: Callable[[], object],
    device: torch.device,
    *,
    launches: int,
    repetitions: int,
    reset: Callable[[], object] | None = None,
    seconds: float = math.inf,
) -> Timing:
    """Times `step`, which on CUDA only queues work on the current stream. `reset` runs before each repetition. Fewer launches than
    `launches`, but at least one, make a repetition where all of them would take longer than `seconds`.

    One launch that does not count goes first in each repetition, so that the clock starts on a busy device: `step` runs launches + 1 times
    between two resets.
    """
    begin = reset or (lambda: None)
    if seconds < math.inf:
        begin()
        once = _repetition(step, device, 1)
        launches = max(1, min(launches, int(seconds * 1e3 / (once * (WARM_UP + repetitions))) - 1))
    times: list[float] = []
    for _ in range(WARM_UP + repetitions):
        begin()
        times.append(_repetition(step, device, launches))
    counted = times[WARM_UP:]
    return Timing(median(counted), min(counted), max(counted), launches, repetitions)


def _repetition(step: Callable[[], object], device: torch.device, launches: int) -> float:
    """Milliseconds a launch."""
    if device.type != "cuda":
        step()
        start = perf_counter()
        for _ in range(launches):
            step()
        return (perf_counter() - start) * 1e3 / launches
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    step()
    begin.record()
    for _ in range(launches):
        step()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / launches


@triton.jit
def read_stream(source, sums, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):  # noqa: N803
    """Each program adds up BLOCKS blocks of int32, modulo 2^32, and stores the one sum."""
    program = tl.program_id(0)
    start = source + program.to(tl.int64) * (BLOCK * BLOCKS)
    total = tl.load(start + tl.arange(0, BLOCK), eviction_policy="evict_first")
    for i in tl.static_range(1, BLOCKS):
        total += tl.load(start + i * BLOCK + tl.arange(0, BLOCK), eviction_policy="evict_first")
    tl.store(sums + program, tl.sum(total, axis=0))


def read_bandwidth(device: torch.device, size: int = STREAM_BYTES) -> float:
    """Bytes per second of a read-only stream over `size` bytes of random numbers, far more than any cache holds.

    On a CPU, where it only serves to try the benchmarks, of `torch.sum` over a megabyte. Raises RuntimeError when a stream skipped data.
    """
    if device.type != "cuda":
        source = torch.ones(1 << 18, dtype=torch.int32)
        return source.numel() * 4e3 / measure(source.sum, device, launches=10, repetitions=3).milliseconds
    source = torch.randint(-(1 << 31), (1 << 31) - 1, (size // 4,), dtype=torch.int32, device=device)
    whole = int(source.sum(dtype=torch.int64))
    rates = [stream_rate(source, whole, *variant) for variant in STREAM_VARIANTS]
    return max(rates)


def stream_rate(source: torch.Tensor, whole: int, block: int, blocks: int, warps: int) -> float:
    """Bytes per second of one variant over an int32 tensor whose elements sum up to `whole`. Raises RuntimeError for another sum."""
    programs = source.numel() // (block * blocks)
    if programs * block * blocks != source.numel():
        raise ValueError(f"{source.numel()} elements are no multiple of {block * blocks}")
    sums = torch.zeros(programs, dtype=torch.int32, device=source.device)

    def step() -> None:
        read_stream[(programs,)](source, sums, BLOCK=block, BLOCKS=blocks, num_warps=warps)

    timing = measure(step, source.device, launches=10, repetitions=5)
    if (int(sums.sum(dtype=torch.int64)) - whole) % (1 << 32):
        raise RuntimeError(f"the stream of blocks of {block} did not read all of its data")
    return source.numel() * 4e3 / timing.milliseconds


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of an 8192³ matmul (256³ on a CPU) of normal numbers."""
    size = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    timing = measure(lambda: torch.matmul(a, b, out=out), device, launches=10, repetitions=5)
    return 2e3 * size**3 / timing.milliseconds


def release() -> None:
    """Gives the memory of what nobody refers to any more back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

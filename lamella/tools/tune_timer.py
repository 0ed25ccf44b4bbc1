# pyright: basic
"""A region compiled under several schedules goes in; the time of each on the GPU leaves, measured in CUDA graphs on cold weights.

A graph holds many launches of the region, one after the other, with programmatic dependent launch as in a step. Each reads other copies of
its weights and caches, so many that they exceed the L2 cache, as in a step, where other layers pass through it meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, prod
from statistics import median

import torch
import triton

from lamella.errors import DeviceError, KernelError
from lamella.passes.device import Device
from lamella.region_programs import RegionProgram, TunableRegion
from lamella.runtime.compile_kernels import compile_kernels, requests
from lamella.runtime.cuda import CudaExecutor
from lamella.runtime.executor import Executor
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.manifest import Bucket, CacheSpec, Input, Launch, Manifest, Ref, WeightSpec
from lamella.runtime.memory import Memory
from lamella.runtime.weights import make_constants
from lamella.semantics import DTYPES
from lamella.tools.costs import launch_cost
from lamella.tools.tune import Measured, Timing, in_a_line

LEAST_EXECUTIONS = 20
"""Of a region in a timed graph, lest its start count."""
GRAPH_US = 2000
"""A graph this long needs no more executions, but for FEWEST."""
FEWEST = 4
MOST_COPIES = 384
"""Of the weights of a small region: its graph executes it as often."""
COLD = 4
"""Times the L2 cache that the copies of a region's weights take."""
ROUNDS = 5
"""In which each schedule is measured once; the median counts, so that a drift of clocks meets all alike."""
REPLAYS = 3
"""Of a graph in one round."""
FINALISTS = 4
"""Schedules that are measured again, more often, the cost model's among them."""
FINAL_ROUNDS = 15
TOLERANCE: Mapping[str, float] = {"bf16": 0.03, "f16": 0.005, "f32": 0.001}
"""Of results against the cost model's schedule, relative to the largest: sums run in another order."""
ALIGNMENT = 256
SEED = 0


class GpuTimer:
    """Measures regions on the current CUDA device."""

    def __init__(self, target: Device) -> None:
        """Raises DeviceError where there is no GPU, or one of another architecture."""
        if not torch.cuda.is_available():
            raise DeviceError("there is no CUDA GPU here to measure on", remedy="lamella tune --dry-run lists what would be measured")
        major, minor = torch.cuda.get_device_capability()
        if f"sm_{major}{minor}" != target.arch:
            raise DeviceError("the GPU is of another architecture", expected=target.arch, got=f"sm_{major}{minor}")
        self.target = target
        self.device = torch.device("cuda", torch.cuda.current_device())

    @property
    def name(self) -> str:
        """What the device calls itself."""
        return torch.cuda.get_device_name(self.device)

    @property
    def triton(self) -> str:
        """The version that compiles the kernels."""
        return triton.__version__

    def compile(self, programs: Sequence[RegionProgram], show: Callable[[int, int], None]) -> None:
        """Puts the kernels into Triton's cache, in parallel processes; what does not compile says so when it is measured."""
        manifest = replace(programs[0].manifest, kernels={n: k for p in programs for n, k in p.manifest.kernels.items()})
        files = KernelFiles(manifest, {name: text for program in programs for name, text in program.kernels.items()})
        with suppress(KernelError):
            compile_kernels(requests(manifest, files), progress=lambda done, total, name: show(done, total))

    def measure(self, region: TunableRegion, programs: Sequence[RegionProgram]) -> Measured:
        """The time of each program, the first of which is the cost model's. Raises DeviceError when the first cannot run."""
        context = context_of(region)
        bound = bound_us(programs[0], context, self.target)
        least = min(LEAST_EXECUTIONS, max(FEWEST, ceil(GRAPH_US / bound)))
        bench = build(region, programs, context, self.target, self.device, CudaExecutor, least)
        failures = prepare(bench)
        if 0 in failures:
            raise DeviceError(
                "the cost model's schedule does not run, or the one before it broke the device", where=region.key, got=failures[0]
            )
        failures |= differing(bench, failures)
        rounds = self._rounds(bench, [i for i in range(len(programs)) if i not in failures], ROUNDS)
        finals = sorted({0, *sorted(rounds, key=lambda i: median(rounds[i]))[:FINALISTS]})
        rounds |= self._rounds(bench, finals, FINAL_ROUNDS)
        del bench
        gc.collect()
        torch.cuda.empty_cache()
        timings = [
            Timing(None, failures[i]) if i in failures else Timing(median(rounds[i]), final=i in finals) for i in range(len(programs))
        ]
        return Measured(timings, bound)

    def _rounds(self, bench: Bench, numbers: Sequence[int], rounds: int) -> dict[int, list[float]]:
        """Microseconds of one execution in each round, by number of the program."""
        times: dict[int, list[float]] = {i: [] for i in numbers}
        for i in numbers:
            bench.executor.launch(bench.buckets[i])
        for _ in range(rounds):
            for i in numbers:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                # The first replay keeps the device busy while the host queues the rest.
                bench.executor.launch(bench.buckets[i])
                begin.record()
                for _ in range(REPLAYS):
                    bench.executor.launch(bench.buckets[i])
                end.record()
                end.synchronize()
                times[i].append(begin.elapsed_time(end) * 1e3 / (REPLAYS * bench.executions))
        return times


@dataclass(frozen=True)
class Bench:
    """An executor that knows one bucket a program, in their order; each bucket executes the region `executions` times."""

    executor: Executor
    buckets: Sequence[Bucket]
    once: Sequence[Bucket]
    """One execution, after what makes the values that the region reads."""
    executions: int


def context_of(region: TunableRegion) -> int:
    """Tokens in each sequence's cache while a region is measured: half of the longest context for decode, else its own queries."""
    return max(1, region.max_context // 2) if region.longest == 1 else region.longest


def bound_us(program: RegionProgram, context: int, target: Device) -> float:
    """The longer of bytes over bandwidth and operations over their rate."""
    (bucket,) = program.manifest.buckets
    costs = [launch_cost(program.manifest, bucket, launch, context) for launch in program.launches]
    compute = sum(count / target.flops[dtype] for cost in costs for dtype, count in cost.flops.items() if dtype in target.flops)
    return 1e6 * max(sum(c.bytes for c in costs) / target.bandwidth, compute)


def copies_of(program: RegionProgram, context: int, target: Device) -> int:
    """How many copies of weights and caches exceed the L2 cache COLD times; two at least, lest some of the last one be still there."""
    (bucket,) = program.manifest.buckets
    costs = [launch_cost(program.manifest, bucket, launch, context) for launch in program.launches]
    touched = sum(c.weights + c.cache for c in costs)
    return max(2, min(MOST_COPIES, ceil(COLD * target.cache_bytes / max(1, touched))))


def repeated(program: RegionProgram, number: int, launches: Sequence[Launch], base: int, copies: int, executions: int) -> Bucket:
    """A bucket of some launches of a program, again and again on copy after copy, its buffers from `base` of the arena on.

    Copies of a weight are called `name#3`, copies of a cache are its layers. `number` makes a key of its own, which no real bucket has.
    """
    (bucket,) = program.manifest.buckets

    def moved(ref: Ref, copy: int) -> Ref:
        match ref.pool:
            case "arena":
                return replace(ref, offset=ref.offset + base)
            case "weight":
                return replace(ref, name=f"{ref.name}#{copy}")
            case "cache":
                return replace(ref, layer=copy)
            case _:
                return ref

    again: list[Launch] = []
    for execution in range(executions):
        again += [replace(launch, args=tuple(moved(ref, execution % copies) for ref in launch.args), dead=()) for launch in launches]
    outputs = tuple(replace(o, ref=moved(o.ref, 0)) for o in bucket.outputs if o.ref.pool == "arena")
    return replace(bucket, longest_query=-number, launches=tuple(again), outputs=outputs)


def build(
    region: TunableRegion,
    programs: Sequence[RegionProgram],
    context: int,
    target: Device,
    device: torch.device,
    executor: Callable[[Memory, Mapping[str, str]], Executor],
    least: int = LEAST_EXECUTIONS,
) -> Bench:
    """Memory for all programs of a region, filled with random numbers, and the `executor` over it; at least so many executions a bucket."""
    first = programs[0].manifest
    copies = copies_of(programs[0], context, target)
    executions = copies * ceil(least / copies)
    buckets: list[Bucket] = []
    once: list[Bucket] = []
    base = 0
    for number, program in enumerate(programs, 1):
        buckets.append(repeated(program, 2 * number, program.launches, base, copies, executions))
        once.append(repeated(program, 2 * number + 1, program.manifest.buckets[0].launches, base, copies, 1))
        base += ceil(program.manifest.arena_bytes / ALIGNMENT) * ALIGNMENT
    generator = torch.Generator(device).manual_seed(SEED)
    weights: dict[str, torch.Tensor] = {}
    for name, spec in first.weights.items():
        for copy in range(copies):
            weights[f"{name}#{copy}"] = numbers_of(spec, generator, device)
    manifest: Manifest = replace(
        first,
        weights={f"{name}#{copy}": spec for name, spec in first.weights.items() for copy in range(copies)},
        constants={name: spec for program in programs for name, spec in program.manifest.constants.items()},
        kernels={name: kernel for program in programs for name, kernel in program.manifest.kernels.items()},
        cache=replace(first.cache, layers=copies),
        buckets=tuple(replace(bucket, arena_bytes=base) for bucket in (*buckets, *once)),
    )
    (bucket,) = first.buckets
    uses_cache = any(ref.pool == "cache" for launch in bucket.launches for ref in launch.args)
    # Attention reads whole sequences, others write their tokens' slots; block 0 belongs to nobody.
    whole = bucket.sequences * first.cache.blocks_per_sequence
    blocks = 1 + (whole if region.op == "attend" else ceil(bucket.tokens / first.cache.block))
    shape = (blocks, 2, first.cache.kv_heads, first.cache.block, first.cache.head_dim)
    dtype = DTYPES[first.cache.dtype]
    caches = [torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator) for _ in range(copies if uses_cache else 1)]
    inputs = {i.name: _input(i, region.roles.get(i.name, ""), bucket, context, first.cache, generator, device) for i in bucket.inputs}
    arena = torch.zeros(base, dtype=torch.uint8, device=device)
    memory = Memory(manifest, device, arena, {b.key: inputs for b in (*buckets, *once)}, weights, make_constants(manifest, device), caches)
    sources = {name: text for program in programs for name, text in program.kernels.items()}
    return Bench(executor(memory, sources), buckets, once, executions)


def prepare(bench: Bench) -> dict[int, str]:
    """Loads the kernels of all programs and captures their graphs; returns why some cannot run, by number."""
    # All at once where all can run. Else one by one, each with its own reason; what was compiled is in Triton's cache.
    with suppress(Exception):
        bench.executor.prepare(bench.once)
        bench.executor.prepare(bench.buckets)
        return {}
    failures: dict[int, str] = {}
    for number, (once, bucket) in enumerate(zip(bench.once, bench.buckets, strict=True)):
        try:
            bench.executor.prepare([once])
            bench.executor.prepare([bucket])
        except Exception as error:  # Triton and its assembler raise many classes
            failures[number] = in_a_line(error)
    return failures


def differing(bench: Bench, failures: Mapping[int, str]) -> dict[int, str]:
    """The programs whose results are not those of the first. Leaves in the arena what each of them reads."""
    found: dict[int, str] = {}
    expected: dict[str, torch.Tensor] = {}
    for number, bucket in enumerate(bench.once):
        if number in failures:
            continue
        bench.executor.launch(bucket)
        got = {o.name: bench.executor.output(bucket, o.name).float().clone() for o in bucket.outputs}
        expected = expected or got
        for name, value in got.items():
            allowed = TOLERANCE.get(bench.executor.manifest.dtype, 0.03) * max(1e-6, float(expected[name].abs().max()))
            if not bool((value - expected[name]).abs().max() <= allowed):
                found[number] = f"its {name} is not that of the cost model's schedule"
    return found


def numbers_of(spec: WeightSpec, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """A weight, so small that a product stays near 1."""
    dtype = DTYPES[spec.dtype]
    if dtype.is_floating_point:
        # There are no random numbers of eight bits.
        made = torch.empty(spec.shape, dtype=torch.float32 if dtype.itemsize == 1 else dtype, device=device)
        return made.normal_(std=max(1, spec.shape[-1]) ** -0.5, generator=generator).to(dtype)
    if len(spec.shape) == 1:
        # The columns of a weight in the order in which it keeps them; packed numbers are words of a matrix.
        return torch.randperm(spec.shape[0], generator=generator, device=device).to(dtype)
    return torch.empty(spec.shape, dtype=dtype, device=device).random_(-8, 8, generator=generator)


def _input(
    given: Input, role: str, bucket: Bucket, context: int, cache: CacheSpec, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """An input of a region: numbers that mean what its ops take them for."""
    dtype = DTYPES[given.dtype]
    if dtype.is_floating_point:
        return torch.empty(given.shape, dtype=dtype, device=device).normal_(generator=generator)
    count = prod(given.shape)
    match role.split():
        case ["block_table"]:
            values = torch.randperm(count, generator=torch.Generator().manual_seed(SEED)) + 1
        case ["query_start"]:
            values = torch.arange(count) * (bucket.tokens // bucket.sequences)
        case ["context_len"]:
            values = torch.full((count,), context)
        case ["slots"]:
            values = torch.arange(count) + cache.block
        case ["rows", size]:
            values = torch.arange(count) % int(size)
        case _:
            values = torch.zeros(count)
    return values.reshape(given.shape).to(device, dtype)

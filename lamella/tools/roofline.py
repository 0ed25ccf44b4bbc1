"""A manifest and what a device can do go in; for each kernel of a step its work, its floor in microseconds, and what bounds it leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamella.passes.check_coalescing import FLAGGED
from lamella.passes.device import Device
from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.tools.costs import Cost, context_of, launch_cost, pools
from lamella.tools.explain import LAYER, ranges

if TYPE_CHECKING:
    from lamella.tools.cross_compile import KernelResources

Access = Mapping[str, Any]
"""A record of `check-coalescing`."""

WARP = 32
REGISTER_UNIT = 256
"""Registers are handed to warps in such pieces, by each of a multiprocessor's four schedulers from its own quarter."""
SCHEDULERS = 4
RESERVED_SHARED = 1024
"""Bytes of shared memory the driver keeps for itself in each program (compute capability 8.0 and later)."""


@dataclass(frozen=True)
class Time:
    """Microseconds that a cost takes at the device's ceilings: moving its bytes, computing its products, and starting its launches.

    A step cannot be faster than its kernels' `floor`s together; launches come on top where nothing hides them.
    """

    bandwidth: float
    arithmetic: float
    launches: float

    @property
    def floor(self) -> float:
        """The slower of moving and computing, which overlap."""
        return max(self.bandwidth, self.arithmetic)

    @property
    def bound(self) -> str:
        """The largest of the three: `launches`, `bandwidth` or `arithmetic`."""
        return max((self.launches, "launches"), (self.arithmetic, "arithmetic"), (self.bandwidth, "bandwidth"))[1]

    def __add__(self, other: Time) -> Time:
        return Time(self.bandwidth + other.bandwidth, self.arithmetic + other.arithmetic, self.launches + other.launches)


@dataclass(frozen=True)
class KernelWork:
    """All launches of one kernel in a step. `cost` and `time` are their sums."""

    kernel: str
    launches: int
    grid: tuple[int, ...]
    where: tuple[str, ...]
    cost: Cost
    time: Time


@dataclass(frozen=True)
class StepWork:
    """One bucket: its kernels in the order of their first launches, and their sums. `floor` is the sum of the launches' floors."""

    bucket: Bucket
    context: int
    kernels: tuple[KernelWork, ...]
    cost: Cost
    time: Time
    floor: float


@dataclass(frozen=True)
class Occupancy:
    """How many programs of a kernel fit a multiprocessor, the share of its threads they fill, and what there is too little of."""

    programs: int
    share: float
    limit: str


def step_work(manifest: Manifest, bucket: Bucket, device: Device, context: int) -> StepWork:
    """The work of a step; a decode step ends with `context` tokens in the cache of each sequence, a longer one starts its sequences."""
    tokens = context_of(bucket, context)
    grouped: dict[str, list[tuple[Launch, Cost, Time]]] = {}
    for launch in bucket.launches:
        cost = launch_cost(manifest, bucket, launch, tokens)
        grouped.setdefault(launch.kernel, []).append((launch, cost, time_of(cost, device, manifest.arena_bytes)))
    kernels = tuple(
        KernelWork(
            kernel=name,
            launches=len(group),
            grid=group[0][0].grid,
            where=places(place_of(launch) for launch, _, _ in group),
            cost=sum((cost for _, cost, _ in group), Cost()),
            time=sum((time for _, _, time in group), Time(0.0, 0.0, 0.0)),
        )
        for name, group in grouped.items()
    )
    return StepWork(
        bucket,
        tokens,
        kernels,
        sum((k.cost for k in kernels), Cost()),
        sum((k.time for k in kernels), Time(0.0, 0.0, 0.0)),
        sum(time.floor for group in grouped.values() for _, _, time in group),
    )


def time_of(cost: Cost, device: Device, arena_bytes: int) -> Time:
    """A launch at the device's ceilings. Activations come from the L2 cache where the arena fits it; weights and cache never do."""
    far = cost.weights + cost.cache + (cost.activations if arena_bytes > device.cache_bytes else 0)
    moved = max(far / device.bandwidth, cost.bytes / device.cache_bandwidth)
    computed = sum(count / device.flops.get(kind, device.flops["f32"]) for kind, count in cost.flops.items())
    return Time(moved * 1e6, computed * 1e6, device.launch_us)


def layer_of(launch: Launch) -> int | None:
    """The layer a launch belongs to: where it comes from says so, else the first layer whose weights or cache it takes."""
    found = [int(n) for n in LAYER.findall(launch.loc)]
    found += [int(n) for ref in launch.args if ref.pool == "weight" for n in LAYER.findall(ref.name)]
    found += [ref.layer for ref in launch.args if ref.pool == "cache"]
    return found[0] if found else None


def place_of(launch: Launch) -> str:
    """Where in the model a launch belongs; one that spans layers counts to the first, whose weights it takes."""
    layer = layer_of(launch)
    return launch.loc if layer is None or LAYER.search(launch.loc) else f"layers.{layer}"


def places(locations: Iterable[str]) -> tuple[str, ...]:
    """Model locations, those that differ by layer merged: `layers.0-15.attn`."""
    layers: dict[str, set[int]] = {}
    for location in locations:
        layers.setdefault(LAYER.sub("layers.*", location), set()).update(int(n) for n in LAYER.findall(location))
    return tuple(place.replace("layers.*", f"layers.{ranges(sorted(found))}") for place, found in layers.items() if place)


def occupancy(device: Device, registers: int, shared_memory: int, num_warps: int) -> Occupancy:
    """Resident programs by registers, threads, shared memory and slots, as the CUDA occupancy calculator counts them."""
    per_warp = -(-max(1, registers) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    warps = device.registers // SCHEDULERS // per_warp * SCHEDULERS
    limits = {
        "registers": warps // num_warps,
        "threads": device.threads // (num_warps * WARP),
        "shared memory": (device.shared_memory + RESERVED_SHARED) // (shared_memory + RESERVED_SHARED),
        "slots": device.programs,
    }
    limit = min(limits, key=lambda name: limits[name])
    programs = limits[limit]
    return Occupancy(programs, programs * num_warps * WARP / device.threads, limit)


def triage(work: StepWork) -> str:
    """One sentence: what bounds a step, and what the two others would take."""
    time = work.time
    parts = {"launches": time.launches, "bandwidth": time.bandwidth, "arithmetic": time.arithmetic}
    others = " and ".join(f"{name} {microseconds(value)}" for name, value in parts.items() if name != time.bound)
    return (
        f"bound by {time.bound}, {microseconds(parts[time.bound])} for {len(work.bucket.launches)} launches, beside {others};"
        f" no step is faster than {microseconds(work.floor)}"
    )


def microseconds(value: float) -> str:
    """`1.23 us`, `1402 us` or `12.3 ms`; less than ten nanoseconds is said to be so."""
    if value >= 10_000:
        return f"{value / 1e3:.1f} ms"
    if value >= 100:
        return f"{value:.0f} us"
    return f"{value:.3g} us" if value >= 0.01 else "<0.01 us"


def report_json(
    manifest: Manifest,
    device: Device,
    context: int,
    figures: Mapping[str, KernelResources] | None = None,
    accesses: Mapping[str, Sequence[Access]] | None = None,
) -> dict[str, Any]:
    """The whole report as JSON; docs/report.md names the fields."""
    memory = pools(manifest, context * max((b.sequences for b in manifest.buckets), default=1), device.graph_bytes, device.library_bytes)
    return {
        "device": {
            "arch": device.arch,
            "bandwidth": device.bandwidth,
            "cache_bandwidth": device.cache_bandwidth,
            "flops": dict(device.flops),
            "launch_us": device.launch_us,
        },
        "context": context,
        "memory": {**memory, "total": sum(memory.values())},
        "buckets": [_bucket_json(manifest, step_work(manifest, bucket, device, context)) for bucket in manifest.buckets],
        "kernels": {name: _kernel_json(manifest, device, name, figures, accesses) for name in manifest.kernels},
    }


def flagged(accesses: Sequence[Access]) -> list[int]:
    """Which accesses waste a part of most lines they touch."""
    return [index for index, access in enumerate(accesses) if access["verdict"] in FLAGGED]


def access_lines(source: str) -> list[int]:
    """The lines of a printed kernel that hold its accesses, in the order of `check-coalescing`'s records; the first line is 1."""
    starts = ("tl.load(", "tl.store(", "tl.atomic_add(")
    return [number for number, line in enumerate(source.splitlines(), 1) if any(start in line for start in starts)]


def _cost_json(cost: Cost) -> dict[str, Any]:
    kinds = ("weights", "constants", "inputs", "activations", "cache")
    return {"bytes": {**{kind: getattr(cost, kind) for kind in kinds}, "total": cost.bytes}, "flops": dict(cost.flops)}


def _time_json(time: Time, floor: float) -> dict[str, Any]:
    return {
        "bandwidth_us": time.bandwidth,
        "arithmetic_us": time.arithmetic,
        "launches_us": time.launches,
        "floor_us": floor,
        "bound": time.bound,
    }


def _bucket_json(manifest: Manifest, work: StepWork) -> dict[str, Any]:
    bucket = work.bucket
    return {
        "tokens": bucket.tokens,
        "sequences": bucket.sequences,
        "longest_query": bucket.longest_query,
        "logit_rows": bucket.logit_rows,
        "advance": bucket.advance,
        "context": work.context,
        "launches": len(bucket.launches),
        "arena_bytes": bucket.arena_bytes,
        "buffer_bytes": bucket.buffer_bytes,
        "max_live_bytes": bucket.max_live_bytes,
        **_cost_json(work.cost),
        **_time_json(work.time, work.floor),
        "triage": triage(work),
        "kernels": [
            {
                "kernel": kernel.kernel,
                "launches": kernel.launches,
                "grid": list(kernel.grid),
                "where": list(kernel.where),
                **_cost_json(kernel.cost),
                **_time_json(kernel.time, kernel.time.floor),
            }
            for kernel in work.kernels
        ],
    }


def _kernel_json(
    manifest: Manifest,
    device: Device,
    name: str,
    figures: Mapping[str, KernelResources] | None,
    accesses: Mapping[str, Sequence[Access]] | None,
) -> dict[str, Any]:
    kernel = manifest.kernels[name]
    out: dict[str, Any] = {"made_of": dict(Counter(kernel.sources))}
    if kernel.library:
        return {**out, "library": dict(kernel.library)}
    out |= {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    if kernel.max_registers:
        out["max_registers"] = kernel.max_registers
    if figures is not None:
        figure = figures[name]
        found = occupancy(device, figure.registers, figure.shared_memory, figure.num_warps)
        out |= {
            "registers": figure.registers,
            "spills": figure.spills,
            "shared_memory": figure.shared_memory,
            "occupancy": {"programs": found.programs, "share": found.share, "limit": found.limit},
        }
    if accesses is not None:
        out["accesses"] = [dict(access) for access in accesses.get(name, ())]
    return out

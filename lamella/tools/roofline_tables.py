"""The work of a step goes in; tables leave: what each kernel moves and computes, how it fills the device, which accesses waste lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lamella.passes.device import Device
from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.tools.costs import Cost, operand, pools
from lamella.tools.explain import byte_size
from lamella.tools.report import bucket_name
from lamella.tools.roofline import Access, StepWork, access_lines, flagged, microseconds, occupancy, places
from lamella.tools.text_table import TextTable

if TYPE_CHECKING:
    from lamella.tools.cross_compile import KernelResources


def work_table(work: StepWork) -> TextTable:
    """Per kernel of a step: where it serves, its bytes and operations, what bounds it, and its floor, for a launch and for all of them."""
    numbers = ("launches", "weights", "cache", "other bytes", "GFLOP", "floor of one", "of all")
    header = ("kernel", "launches", "serves", *numbers[1:5], "bound by", *numbers[5:])
    rows: list[list[str]] = []
    for kernel in work.kernels:
        floor = kernel.time.floor
        each = microseconds(floor / kernel.launches)
        amounts = _amounts(kernel.cost)
        rows.append([kernel.kernel, str(kernel.launches), ", ".join(kernel.where), *amounts, kernel.time.bound, each, microseconds(floor)])
    rows.append(["all", str(len(work.bucket.launches)), "", *_amounts(work.cost), work.time.bound, "", microseconds(work.floor)])
    title = f"Work of a step: {bucket_name(work.bucket)}, {work.context} tokens in the cache of each sequence"
    return TextTable(title, header, rows, frozenset(numbers))


def library_lines(manifest: Manifest, bucket: Bucket, device: Device) -> list[str]:
    """A line for each kind of product of a step that the library computes: which linears, and what the cost model makes of it and of tiles."""
    found: dict[str, list[Launch]] = {}
    for launch in bucket.launches:
        if manifest.kernels[launch.kernel].library:
            found.setdefault(launch.kernel, []).append(launch)
    lines: list[str] = []
    for name, group in found.items():
        kernel, refs = manifest.kernels[name], group[0].args
        (element, (tokens, k)), (_, (columns, _)) = (operand(manifest, bucket, refs[kernel.library[what]]) for what in ("x", "weight"))
        times = (device.library_us(tokens, columns, k, element), device.tiles_us(tokens, columns, k, element))
        model = ["not measured" if time is None else microseconds(time) for time in times]
        weights = places(str(launch.args[kernel.library["weight"]].name) for launch in group)
        shape = f"{tokens} x {k} by {columns} x {k}"
        lines.append(f"{bucket_name(bucket)}: the library computes {', '.join(weights)} ({shape}): {model[0]}, by tiles {model[1]}")
    return lines


def pool_table(manifest: Manifest, device: Device, cache_tokens: int) -> TextTable:
    """What a loaded model takes of the device's memory, pool by pool, with a cache for `cache_tokens` tokens."""
    found = pools(manifest, cache_tokens, device.graph_bytes, device.library_bytes)
    rows = [[name, byte_size(size)] for name, size in {**found, "total": sum(found.values())}.items()]
    return TextTable(f"Predicted memory with a cache of {cache_tokens} tokens", ("pool", "size"), rows, frozenset({"size"}))


def occupancy_table(manifest: Manifest, device: Device, figures: Mapping[str, KernelResources]) -> TextTable:
    """Per kernel: programs that fit a multiprocessor, the share of its threads they fill, and what there is too little of for more."""
    rows: list[list[str]] = []
    for name in [name for name, kernel in manifest.kernels.items() if not kernel.library]:
        figure = figures[name]
        found = occupancy(device, figure.registers, figure.shared_memory, figure.num_warps)
        rows.append([name, str(found.programs), f"{found.share:.0%}", found.limit])
    numbers = ("programs", "threads filled")
    return TextTable(f"Occupancy of a multiprocessor of {device.arch}", ("kernel", *numbers, "limited by"), rows, frozenset(numbers))


def access_table(accesses: Mapping[str, Sequence[Access]], sources: Mapping[str, str]) -> TextTable:
    """The accesses that `check-coalescing` flagged, with their lines in the printed kernels."""
    rows: list[list[str]] = []
    for name, records in accesses.items():
        lines = access_lines(sources.get(name, ""))
        for index in flagged(records):
            record = records[index]
            line = f"{name}.py:{lines[index]}" if len(lines) == len(records) else name
            sizes = (byte_size(record["width_bytes"]), byte_size(record["bytes"]), f"{record['waste']}%")
            texts = (f"{record['op']} {record['pointer']}", str(record["source"]), str(record["verdict"]))
            rows.append([line, *texts, str(record["stride"]), *sizes])
    numbers = ("stride", "one piece", "of a program", "wasted")
    title = "Accesses that use less than a whole line of 128 bytes"
    return TextTable(title, ("line", "access", "source", "verdict", *numbers), rows, frozenset(numbers))


def _amounts(cost: Cost) -> tuple[str, str, str, str]:
    other = cost.bytes - cost.weights - cost.cache
    weights, cache, rest = (byte_size(size) if size else "" for size in (cost.weights, cost.cache, other))
    operations = sum(cost.flops.values()) / 1e9
    return weights, cache, rest, "" if not operations else f"{operations:.3g}" if operations < 100 else f"{operations:,.0f}"

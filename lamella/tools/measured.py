"""A result of `python -m benchmarks kernels` (or `all`) enters; for each bucket what its kernels took beside their floors leaves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lamella.errors import ManifestError
from lamella.passes.device import Device
from lamella.runtime.manifest import Bucket, Manifest
from lamella.tools.report import bucket_name
from lamella.tools.roofline import StepWork, layer_of, microseconds, step_work
from lamella.tools.text_table import TextTable

SIZES = ("layers", "hidden", "ffn", "vocabulary")
"""By which a result's model is known."""


@dataclass(frozen=True)
class Measured:
    """Microseconds of one launch of each kernel of a bucket, and of its step, on `device`; `context` tokens in each cache, None for a prompt."""

    device: str
    context: int | None
    step_us: float
    us: Mapping[str, float]


@dataclass(frozen=True)
class Layer:
    """A layer in the middle of a model: its launches, what they took by themselves, and their floors together."""

    launches: int
    us: float
    floor_us: float


def read_measured(path: Path, manifest: Manifest) -> dict[Bucket, Measured]:
    """What a result file says of the buckets of a program, at least of one. Raises ManifestError for a file that says nothing of them, or was
    measured with another model, dtype or other kernels.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = dict(_of_program(document, manifest, str(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError("cannot be read as a result of the benchmarks", where=str(path), got=repr(error)) from error
    if not found:
        names = ", ".join(bucket_name(b) for b in manifest.buckets)
        raise ManifestError(
            "has no kernels of this program", where=str(path), expected=f"a step of {names}", remedy="python -m benchmarks kernels -o FILE"
        )
    return found


def _of_program(document: Mapping[str, Any], manifest: Manifest, where: str) -> Iterator[tuple[Bucket, Measured]]:
    parts = document["sections"] if document["benchmark"] == "all" else [document]
    for part in (part for part in parts if part["benchmark"] == "kernels"):
        shape = part["shape"]
        bucket = next((b for b in manifest.buckets if _is_of(b, shape)), None)
        if bucket is None:
            continue
        model = {name: getattr(manifest.model, name) for name in SIZES} | {"dtype": manifest.dtype}
        other = {name: part["model"][name] for name in SIZES} | {"dtype": part["dtype"]}
        if model != other:
            name = next(name for name in model if model[name] != other[name])
            raise ManifestError("was measured with another model", where=where, expected=f"{name} {model[name]}", got=str(other[name]))
        _same_kernels(part["rows"], bucket, manifest, where)
        us = {row["name"]: float(row["us"]) for row in part["rows"]}
        yield bucket, Measured(part["device"], shape.get("context"), float(part["step"]["ms"]) * 1e3, us)


def _is_of(bucket: Bucket, shape: Mapping[str, Any]) -> bool:
    if "tokens" in shape:
        return not bucket.advance and (bucket.tokens, bucket.sequences) == (shape["tokens"], 1)
    return bucket.advance and bucket.sequences == shape["batch"]


def _same_kernels(rows: list[Mapping[str, Any]], bucket: Bucket, manifest: Manifest, where: str) -> None:
    """Raises ManifestError where the rows are not of the bucket's kernels: other ones, other ops in them, or another number of launches."""
    launches = Counter(launch.kernel for launch in bucket.launches)
    expected = {name: (count, " ".join(manifest.kernels[name].sources)) for name, count in launches.items()}
    got = {row["name"]: (row["launches_a_step"], row["made_of"]) for row in rows}
    if expected == got:
        return
    name = next(name for name in [*expected, *got] if expected.get(name) != got.get(name))
    said = ["no such kernel" if each is None else f"{each[0]} launches of {each[1]}" for each in (expected.get(name), got.get(name))]
    raise ManifestError(f"was measured with another {name}", where=where, expected=said[0], got=said[1], remedy="measure this program")


def work_of(manifest: Manifest, bucket: Bucket, measured: Measured, device: Device, context: int) -> StepWork:
    """The work of the step that was measured; `context` where the result does not say how many tokens were in the caches."""
    return step_work(manifest, bucket, device, measured.context or context)


def layer(work: StepWork, measured: Measured, number: int) -> Layer:
    """One layer of a step."""
    floors = {kernel.kernel: kernel.time.floor / kernel.launches for kernel in work.kernels}
    own = [launch.kernel for launch in work.bucket.launches if layer_of(launch) == number]
    return Layer(len(own), sum(measured.us[name] for name in own), sum(floors[name] for name in own))


def measured_table(manifest: Manifest, bucket: Bucket, measured: Measured, device: Device, context: int) -> TextTable:
    """Per kernel, a layer and the step: what one took, its floor, the floor's share of that, and what all of them took."""
    work = work_of(manifest, bucket, measured, device, context)
    layers = manifest.model.layers
    middle = layer(work, measured, layers // 2)
    found = [(k.kernel, k.launches, measured.us[k.kernel], k.time.floor / k.launches, k.launches) for k in work.kernels]
    found += [("a layer", middle.launches, middle.us, middle.floor_us, layers)] if middle.launches else []
    found.append(("the step", len(bucket.launches), measured.step_us, work.floor, 1))
    rows = [
        [name, str(launches), microseconds(us), microseconds(floor), f"{floor / us:.0%}", microseconds(us * count)]
        for name, launches, us, floor, count in found
    ]
    numbers = ("launches", "one took", "floor of one", "share", "all took")
    title = (
        f"Measured on {measured.device}: {bucket_name(bucket)}, {work.context} tokens in the cache of each sequence; kernels by themselves"
    )
    return TextTable(title, ("kernel", *numbers), rows, frozenset(numbers))


def measured_json(manifest: Manifest, bucket: Bucket, measured: Measured, device: Device, context: int) -> dict[str, Any]:
    """The same as JSON; docs/report.md names the fields."""
    work = work_of(manifest, bucket, measured, device, context)
    return {**asdict(measured), "layer": asdict(layer(work, measured, manifest.model.layers // 2))}

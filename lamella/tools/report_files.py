"""A compiled program goes in; what `lamella report` prints or writes leaves: tables, JSON, and a picture of the arena and a layer a bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamella.passes.device import DEVICES, Device, device
from lamella.runtime.manifest import Bucket, Manifest
from lamella.tools.layer_picture import layer_picture
from lamella.tools.measured import Measured, measured_json, measured_table
from lamella.tools.pictures import arena_picture
from lamella.tools.report import bucket_name, kernel_table, memory_table, model_line, storage_table
from lamella.tools.roofline import Access, report_json, step_work, triage
from lamella.tools.roofline_tables import access_table, library_lines, occupancy_table, pool_table, work_table
from lamella.tools.text_table import TextTable

if TYPE_CHECKING:
    from lamella.tools.cross_compile import KernelResources

FILES = ("report.json", "arena-*.svg", "layer-*.svg")
"""What `write` leaves in a folder."""
DEFAULT_ARCH = "sm_90"


@dataclass(frozen=True)
class ModelReport:
    """What a report is about: a manifest, its printed kernels and their accesses, `context` tokens in each cache, and (from a
    cross-compilation) the resources of each kernel, and (from a result of the benchmarks) what they took."""

    manifest: Manifest
    sources: Mapping[str, str]
    context: int
    accesses: Mapping[str, Sequence[Access]] = field(default_factory=dict[str, Sequence[Access]])
    figures: Mapping[str, KernelResources] | None = None
    measured: Mapping[Bucket, Measured] = field(default_factory=dict[Bucket, Measured])

    @property
    def device(self) -> Device:
        """The target of the kernels; DEFAULT_ARCH for a program without any."""
        return device(self.manifest.target if self.manifest.target in DEVICES else DEFAULT_ARCH)

    @property
    def cache_tokens(self) -> int:
        """Tokens in the caches of all sequences of the largest bucket."""
        return self.context * max((b.sequences for b in self.manifest.buckets), default=1)

    def text(self) -> str:
        """The whole report as tables."""
        manifest = self.manifest
        works = [step_work(manifest, bucket, self.device, self.context) for bucket in manifest.buckets]
        tables: list[TextTable] = [memory_table(manifest), storage_table(manifest), pool_table(manifest, self.device, self.cache_tokens)]
        tables += [kernel_table(manifest, self.figures), *map(work_table, works)]
        tables += [measured_table(manifest, bucket, took, self.device, self.context) for bucket, took in self.measured.items()]
        if self.figures is not None:
            tables.append(occupancy_table(manifest, self.device, self.figures))
        wasteful = access_table(self.accesses, self.sources)
        if wasteful.rows:
            tables.append(wasteful)
        lines = [line for bucket in manifest.buckets for line in library_lines(manifest, bucket, self.device)]
        lines += [f"{bucket_name(work.bucket)}: {triage(work)}" for work in works]
        return "\n\n".join([model_line(manifest), *map(str, tables), "\n".join(lines)])

    def json(self) -> dict[str, Any]:
        """The whole report as JSON."""
        made = report_json(self.manifest, self.device, self.context, self.figures, self.accesses)
        for bucket, entry in zip(self.manifest.buckets, made["buckets"], strict=True):
            if bucket in self.measured:
                entry["measured"] = measured_json(self.manifest, bucket, self.measured[bucket], self.device, self.context)
        return made

    def write(self, folder: Path) -> None:
        """Writes `report.json` and, for each bucket, `arena-….svg` and `layer-….svg` into a folder that exists."""
        (folder / "report.json").write_text(json.dumps(self.json(), indent=1) + "\n", encoding="utf-8")
        for number, bucket in enumerate(self.manifest.buckets):
            name = short_name(bucket, number)
            (folder / f"arena-{name}.svg").write_text(arena_picture(self.manifest, bucket, self.sources), encoding="utf-8")
            (folder / f"layer-{name}.svg").write_text(layer_picture(self.manifest, bucket, self.sources), encoding="utf-8")


def short_name(bucket: Bucket, number: int) -> str:
    """What a bucket's files are called: the prefix of its kernels, `t1` or `t13s4q8`, which no two buckets share."""
    found = re.match(r"(t\d+\w*?)_", bucket.launches[0].kernel) if bucket.launches else None
    return found.group(1) if found else f"bucket{number}"

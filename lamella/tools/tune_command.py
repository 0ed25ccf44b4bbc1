# pyright: basic
"""What `lamella tune` was asked goes in; a table and a file of measurements, or JSON, leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lamella import api
from lamella.api import LoadedModel
from lamella.errors import PromptError
from lamella.passes.device import device
from lamella.passes.tuning import Measurements, read_entries
from lamella.pipeline import PassOptions
from lamella.program import DEFAULT_ARCH, Shape
from lamella.region_programs import TunableRegion, tunable_regions
from lamella.tools import tune, tune_steps
from lamella.tools.options import Storage
from lamella.tools.tune_steps import Steps


@dataclass(frozen=True)
class Asked:
    """A model whose steps are to be tuned, the buckets that count, and what is known."""

    opened: LoadedModel
    pass_options: PassOptions
    buckets: Sequence[Shape]
    dtype: str
    max_context: int
    arch: str
    known: Measurements

    def regions(self) -> list[TunableRegion]:
        """Its distinct regions."""
        return tunable_regions(
            self.opened.config,
            self.buckets,
            dtype=self.dtype,
            max_context=self.max_context,
            arch=self.arch,
            measurements=self.known,
            pass_options=self.pass_options,
        )

    def steps(self) -> Steps:
        """Its steps."""
        buckets = {bucket.name: bucket for bucket in self.buckets}
        return Steps(self.opened, buckets, self.dtype, self.max_context, self.arch, self.pass_options, self.known.entries)


def run_tune(
    model: str,
    *,
    tokens: Sequence[int],
    sequences: Sequence[int],
    arch: str | None,
    output: Path | None,
    dtype: str,
    max_context: int | None,
    random_weights: int | None,
    storage: Storage,
    budget_seconds: float | None,
    again: bool,
    in_step: bool,
    dry_run: bool,
    as_json: bool,
    show: Callable[[str], None],
) -> str:
    """Measures what is not known of the buckets of `tokens` (1: decode, else prefill) and of decode for each number of `sequences`.

    With `in_step` schedules are decided by the time of the whole step, for which weights are loaded; without, weights are never read.
    Returns what to print. Raises LamellaError for everything a user can mend, a machine without a GPU among it.
    """
    target = arch or _arch_here()
    device(target)
    path = tune.output_path(output, target)
    asked = asked_for(model, tokens, sequences, target, path, dtype, max_context, random_weights, storage)
    regions = asked.regions()
    settled = {r.key for r in regions if (tune_steps.decided(r) if in_step else r.known is not None) and not again}
    if dry_run:
        rows = [tune.Row(r, "known" if r.key in settled else "left", r.known) for r in regions]
        return json.dumps([row.as_dict() for row in rows]) if as_json else str(tune.plan_table(regions, settled))
    rows = [tune.Row(region, "known", region.known) for region in regions]
    if len(settled) < len(regions):
        from lamella.tools.tune_timer import GpuTimer

        timer = GpuTimer(device(target))
        if in_step:
            from lamella.runtime.weights import load_weights
            from lamella.tools.step_timer import GpuStepTimer

            step_timer = GpuStepTimer(timer.device, lambda manifest: load_weights(manifest, asked.opened.source, timer.device))
            work = partial(tune_steps.tune_in_step, regions, asked.steps(), timer, step_timer, path)
        else:
            work = partial(tune.tune, regions, timer, path)
        rows = work(again=again, budget_seconds=budget_seconds, show=show)
    if as_json:
        return json.dumps([row.as_dict() for row in rows])
    failures = [f"  {row.region.key}: {failure}" for row in rows for failure in row.failures]
    parts = [
        str(tune.result_table(rows)),
        *(["\n".join(["Schedules that do not run", *failures])] if failures else []),
        tune.summary(rows, path) + (f"; a step takes {tune_steps.step_gain(rows):.1%} less than with the cost model's" if in_step else ""),
    ]
    return "\n\n".join(parts)


def asked_for(
    model: str,
    tokens: Sequence[int],
    sequences: Sequence[int],
    arch: str,
    path: Path,
    dtype: str,
    max_context: int | None,
    random_weights: int | None,
    storage: Storage,
) -> Asked:
    """The model and its buckets, with what files of measurements know; weights are not read yet, however `storage` packs them.

    Raises LamellaError.
    """
    if any(count < 1 for count in sequences):
        raise PromptError("bad numbers of sequences", where="--sequences", expected="each at least 1")
    seed = 0 if random_weights is None and Path(model).suffix == ".json" else random_weights
    opened = api.open_model(model, random_weights=seed)
    opened, options = api.quantized(opened, storage.quantize, None, storage.quantize_head)
    options = api.activated(opened, storage.quantize, storage.activations, options)
    opened = api.cached_as(opened, storage.kv_cache)
    known = Measurements.read("auto", arch)
    assert known is not None
    entries = [*known.entries.values(), *(read_entries(path, arch) if path.is_file() else ())]
    buckets = [*(Shape.of(n) for n in tokens), *(Shape.decode(n) for n in sequences)]
    return Asked(
        opened,
        options or {},
        list(dict.fromkeys(buckets)),
        api.element_name(dtype, opened, on_gpu=True),
        api.context_of(opened, max_context),
        arch,
        Measurements.of(entries),
    )


def _arch_here() -> str:
    """The architecture of this machine's GPU; without one, that which programs are compiled for by default."""
    import torch

    if not torch.cuda.is_available():
        return DEFAULT_ARCH
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"

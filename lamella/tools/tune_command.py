# pyright: basic
"""What `lamella tune` was asked goes in; a table and a file of measurements, or JSON, leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lamella import api
from lamella.errors import PromptError
from lamella.passes.device import device
from lamella.passes.tuning import Measurements, read_entries
from lamella.program import DEFAULT_ARCH
from lamella.region_programs import TunableRegion, tunable_regions
from lamella.tools import tune
from lamella.tools.options import Storage


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
    dry_run: bool,
    as_json: bool,
    show: Callable[[str], None],
) -> str:
    """Measures what is not known of the buckets of `tokens` (1: decode, else prefill) and of decode for each number of `sequences`.

    Returns what to print. Raises LamellaError for everything a user can mend, a machine without a GPU among it.
    """
    target = arch or _arch_here()
    device(target)
    path = tune.output_path(output, target)
    regions = regions_of(model, tokens, sequences, target, path, dtype, max_context, random_weights, storage)
    if dry_run:
        table = tune.plan_table(regions, again=again)
        return (
            json.dumps([tune.Row(r, "known" if r.known and not again else "left", r.known).as_dict() for r in regions])
            if as_json
            else str(table)
        )
    rows = [tune.Row(region, "known", region.known) for region in regions]
    if again or any(region.known is None for region in regions):
        from lamella.tools.tune_timer import GpuTimer

        rows = tune.tune(regions, GpuTimer(device(target)), path, again=again, budget_seconds=budget_seconds, show=show)
    if as_json:
        return json.dumps([row.as_dict() for row in rows])
    failures = [f"  {row.region.key}: {failure}" for row in rows for failure in row.failures]
    parts = [
        str(tune.result_table(rows)),
        *(["\n".join(["Schedules that do not run", *failures])] if failures else []),
        tune.summary(rows, path),
    ]
    return "\n\n".join(parts)


def regions_of(
    model: str,
    tokens: Sequence[int],
    sequences: Sequence[int],
    arch: str,
    path: Path,
    dtype: str,
    max_context: int | None,
    random_weights: int | None,
    storage: Storage,
) -> list[TunableRegion]:
    """The regions of the buckets that were asked for, with what is known of them; weights are never read, however `storage` packs them.

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
    buckets = [*(api.Shape.of(n) for n in tokens), *(api.Shape.decode(n) for n in sequences)]
    return tunable_regions(
        opened.config,
        list(dict.fromkeys(buckets)),
        dtype=api.element_name(dtype, opened, on_gpu=True),
        max_context=api.context_of(opened, max_context),
        arch=arch,
        measurements=Measurements.of(entries),
        pass_options=options,
    )


def _arch_here() -> str:
    """The architecture of this machine's GPU; without one, that which programs are compiled for by default."""
    import torch

    if not torch.cuda.is_available():
        return DEFAULT_ARCH
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"

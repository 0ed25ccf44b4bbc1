# pyright: basic
"""The weight store: a manifest and a source of checkpoint tensors enter; one tensor a name, made as the kernels want it, leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import torch

from lamella.errors import ManifestError, OutOfMemoryError, TensorError, nearest
from lamella.runtime.evaluate import evaluate
from lamella.runtime.manifest import Manifest, SourceSpec, WeightSpec
from lamella.runtime.memory import free_bytes, promise, ran_out
from lamella.runtime.weight_cache import WeightCache
from lamella.semantics import DTYPES, IMPLEMENTATIONS

if TYPE_CHECKING:
    from lamella.checkpoints.source import TensorSource

SMALLER = "a smaller dtype, or packed weights: quantize"
ALIGNMENT = 256
"""Bytes: where CUDA's own allocations begin, and more than any vector load wants."""

Progress = Callable[[int, int, str], None]
"""Called as (done, total, name) after each weight."""


def load_weights(
    manifest: Manifest,
    source: TensorSource,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    *,
    cache: WeightCache | None = None,
) -> dict[str, torch.Tensor]:
    """Every weight of the manifest on `device`, in its dtype, made of its sources; one storage a name.

    Tensor by tensor: beside the store, at most one weight, its sources and what is between are alive. `cache` keeps transformed
    weights for the next time. Raises TensorError for a missing or misshapen weight, ManifestError for a transform without
    meaning, OutOfMemoryError, OutputError for a cache that cannot be written, and what the source raises.
    """
    names, where = set(source.names()), torch.device(device)
    places = _places(manifest, where) if where.type == "cuda" else {}
    _promise(manifest, source, names, where)
    weights: dict[str, torch.Tensor] = {}
    for i, (name, spec) in enumerate(manifest.weights.items()):
        stored = SourceSpec(name, spec.dtype, spec.shape)
        for wanted in spec.sources if spec.transform else (stored,):
            if wanted.name not in names:
                text = f"the checkpoint lacks the weight {wanted.name!r} of the compiled program"
                raise TensorError(text, remedy=nearest(wanted.name, names))
        try:
            weights[name] = _transformed(name, spec, source, where, cache) if spec.transform else _stored(stored, source, where)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            got = f"shape {list(spec.shape)} {spec.dtype}"
            raise OutOfMemoryError(f"weight {name!r} does not fit on {device}", got=got, remedy=SMALLER) from error
        if places:
            weights[name] = places[name].copy_(weights[name])
        if progress is not None:
            progress(i + 1, len(manifest.weights), name)
    if places:
        # What made the weights is free by now; the allocator would keep it from the driver.
        torch.cuda.empty_cache()
    return weights


def _promise(manifest: Manifest, source: TensorSource, names: set[str], device: torch.device) -> None:
    """Raises OutOfMemoryError where weights that have to be made (and are not mapped from their file) are more than a CPU's memory holds."""
    needed, on_disk = 0, source.describe().get("kind") != "random"
    for name, spec in manifest.weights.items():
        mapped = on_disk and not spec.transform and name in names and source.dtype(name) == spec.dtype
        needed += 0 if mapped else prod(spec.shape) * DTYPES[spec.dtype].itemsize
    try:
        promise(device, needed)
    except MemoryError as error:
        raise _too_large(device, needed) from error


def _too_large(device: torch.device, needed: int) -> OutOfMemoryError:
    free = free_bytes(device)
    got = None if free is None else str(free)
    return OutOfMemoryError(f"the weights do not fit on {device}", expected=f"{needed} free bytes", got=got, remedy=SMALLER)


def _places(manifest: Manifest, device: torch.device) -> dict[str, torch.Tensor]:
    """One allocation on a GPU with a place for each weight: allocated one by one, among what they are made of, weights leave holes."""
    sizes = {name: prod(spec.shape) * DTYPES[spec.dtype].itemsize for name, spec in manifest.weights.items()}
    starts = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())]
    try:
        whole = torch.empty(starts[-1], dtype=torch.uint8, device=device)
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        raise _too_large(device, starts[-1]) from error
    return {
        name: whole[start : start + sizes[name]].view(DTYPES[spec.dtype]).view(spec.shape)
        for (name, spec), start in zip(manifest.weights.items(), starts, strict=False)
    }


def _stored(spec: SourceSpec, source: TensorSource, device: torch.device) -> torch.Tensor:
    """A tensor of the checkpoint."""
    weight = source.load(spec.name, dtype=spec.dtype, device=str(device))
    return _checked(spec.name, spec.shape, weight.to(DTYPES[spec.dtype]).contiguous())


def _transformed(name: str, spec: WeightSpec, source: TensorSource, device: torch.device, cache: WeightCache | None) -> torch.Tensor:
    """A weight that is made of others: from the cache, or made and put there."""
    found = cache.load(spec) if cache is not None else None
    if found is not None:
        return found.to(device)
    (made,) = evaluate(spec.transform, [_stored(s, source, device) for s in spec.sources])
    weight = _checked(name, spec.shape, made.to(DTYPES[spec.dtype]).contiguous())
    if cache is not None:
        cache.store(spec, weight)
    return weight


def _checked(name: str, shape: tuple[int, ...], weight: torch.Tensor) -> torch.Tensor:
    if tuple(weight.shape) != shape:
        raise TensorError(f"weight {name!r} has another shape", expected=str(list(shape)), got=str(list(weight.shape)))
    return weight


def make_constants(manifest: Manifest, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Every constant of the manifest on `device`. Computed on the CPU, so that all executors share the same numbers."""
    constants: dict[str, torch.Tensor] = {}
    for name, spec in manifest.constants.items():
        function = IMPLEMENTATIONS.get(spec.op)
        if function is None:
            raise ManifestError(f"constant {name!r} uses an op without semantics", got=spec.op, remedy=nearest(spec.op, IMPLEMENTATIONS))
        try:
            # In float64 while it is computed.
            promise(torch.device("cpu"), 2 * prod(spec.shape) * torch.float64.itemsize)
            value = function(**spec.attributes)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            text = f"constant {name!r} does not fit in memory"
            raise OutOfMemoryError(text, got=f"shape {list(spec.shape)}", remedy="a smaller max_context") from error
        if tuple(value.shape) != spec.shape:
            raise ManifestError(f"constant {name!r} has another shape", expected=str(list(spec.shape)), got=str(list(value.shape)))
        constants[name] = value.to(device=device, dtype=DTYPES[spec.dtype]).contiguous()
    return constants

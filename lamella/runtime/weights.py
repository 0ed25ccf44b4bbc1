# pyright: basic
"""The weight store: a manifest and a source of checkpoint tensors enter; one tensor a name, laid out as the kernels want it, leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from lamella.errors import ManifestError, OutOfMemoryError, TensorError, nearest
from lamella.runtime.manifest import Manifest
from lamella.semantics import DTYPES, IMPLEMENTATIONS

if TYPE_CHECKING:
    from lamella.checkpoints.source import TensorSource

Progress = Callable[[int, int, str], None]
"""Called as (done, total, name) after each weight."""


def load_weights(
    manifest: Manifest, source: TensorSource, device: str | torch.device = "cpu", progress: Progress | None = None
) -> dict[str, torch.Tensor]:
    """Every weight of the manifest on `device`, in its dtype, its recipe applied; one storage a name.

    Tensor by tensor: beside the store, at most one tensor and its transform are alive. Raises TensorError for a missing or misshapen
    weight, ManifestError for an unknown recipe step, OutOfMemoryError, and what the source raises.
    """
    names = set(source.names())
    weights: dict[str, torch.Tensor] = {}
    for i, (name, spec) in enumerate(manifest.weights.items()):
        if name not in names:
            raise TensorError(f"the checkpoint lacks the weight {name!r} of the compiled program", remedy=nearest(name, names))
        try:
            weight = source.load(name, dtype=spec.dtype, device=str(device))
            for step, attributes in spec.recipe:
                weight = _step(step)(weight, **attributes)
            weight = weight.to(DTYPES[spec.dtype]).contiguous()
        except (MemoryError, torch.cuda.OutOfMemoryError) as error:
            raise OutOfMemoryError(f"weight {name!r} does not fit on {device}", got=f"shape {list(spec.shape)} {spec.dtype}") from error
        if tuple(weight.shape) != spec.shape:
            raise TensorError(f"weight {name!r} has another shape", expected=str(list(spec.shape)), got=str(list(weight.shape)))
        weights[name] = weight
        if progress is not None:
            progress(i + 1, len(manifest.weights), name)
    return weights


def make_constants(manifest: Manifest, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Every constant of the manifest on `device`. Computed on the CPU, so that all executors share the same numbers."""
    constants: dict[str, torch.Tensor] = {}
    for name, spec in manifest.constants.items():
        function = IMPLEMENTATIONS.get(spec.op)
        if function is None:
            raise ManifestError(f"constant {name!r} uses an op without semantics", got=spec.op, remedy=nearest(spec.op, IMPLEMENTATIONS))
        value = function(**spec.attributes)
        if tuple(value.shape) != spec.shape:
            raise ManifestError(f"constant {name!r} has another shape", expected=str(list(spec.shape)), got=str(list(value.shape)))
        constants[name] = value.to(device=device, dtype=DTYPES[spec.dtype]).contiguous()
    return constants


def _step(name: str) -> Callable[..., torch.Tensor]:
    function = IMPLEMENTATIONS.get(f"weight.{name}")
    if function is None:
        known = [k.removeprefix("weight.") for k in IMPLEMENTATIONS if k.startswith("weight.")]
        raise ManifestError(f"unknown recipe step {name!r}", remedy=nearest(name, known))
    return function

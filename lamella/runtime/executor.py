# pyright: basic
"""What every executor offers, and the choice of one: a manifest and weights enter, something that runs buckets leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from lamella.errors import DeviceError, nearest
from lamella.runtime.manifest import Bucket, Manifest
from lamella.runtime.memory import Memory, reserve
from lamella.runtime.weights import make_constants

EXECUTORS = ("reference", "interpret", "cuda")

Kernels = Mapping[str, str] | str | Path
"""Printed kernels: source text by kernel name, or the folder the manifest's file names are relative to."""


Progress = Callable[[int, int, str], None]
"""Called as (done, total, name) after each kernel."""


class Executor(Protocol):
    """Runs the launches of a bucket on static tensors. The same program gives the same ids in float32 on every executor."""

    @property
    def manifest(self) -> Manifest:
        """The program."""
        ...

    @property
    def device(self) -> torch.device:
        """Where all tensors live."""
        ...

    @property
    def caches(self) -> Sequence[torch.Tensor]:
        """The cache pool, [blocks, 2, kv_heads, block, head_dim] a layer."""
        ...

    def inputs(self, bucket: Bucket) -> Mapping[str, torch.Tensor]:
        """The bucket's input tensors, to be filled in place before `launch`."""
        ...

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: Progress | None = None) -> None:
        """Do now what the first `launch` of each bucket (all when None) would do: compile, capture. Inputs and cache stay as they are.

        `progress` is called after each kernel that had to be compiled.
        """
        ...

    def launch(self, bucket: Bucket) -> None:
        """Run one step; on CUDA it is only queued on the current stream."""
        ...

    def output(self, bucket: Bucket, name: str) -> torch.Tensor:
        """A named output of the last `launch`: a view that the next launch of any bucket may overwrite. Raises KeyError."""
        ...


class MemoryExecutor:
    """The part all executors share: tensors by name over one `Memory`."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._outputs: dict[tuple, dict[str, torch.Tensor]] = {}

    @property
    def manifest(self) -> Manifest:
        return self.memory.manifest

    @property
    def device(self) -> torch.device:
        return self.memory.device

    @property
    def caches(self) -> Sequence[torch.Tensor]:
        return self.memory.caches

    def inputs(self, bucket: Bucket) -> Mapping[str, torch.Tensor]:
        return self.memory.inputs[bucket.key]

    def output(self, bucket: Bucket, name: str) -> torch.Tensor:
        views = self._outputs.get(bucket.key)
        if views is None:
            views = {o.name: self.memory.view(bucket, o.ref) for o in bucket.outputs}
            self._outputs[bucket.key] = views
        return views[name]


def resolve(executor: str, device: str) -> tuple[str, torch.device]:
    """The executor and device that `auto` (or empty) names mean here. Raises DeviceError for what does not exist or does not fit together.

    `cuda` needs an NVIDIA GPU; `reference` and `interpret` run on the CPU. By default: `cuda` where there is a GPU, else `reference`.
    """
    known = ("auto", *EXECUTORS)
    if executor not in known:
        raise DeviceError(f"unknown executor {executor!r}", remedy=nearest(executor, known))
    kind = device.split(":", maxsplit=1)[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"unknown device {device!r}", expected="auto, cpu or cuda")
    if executor == "auto":
        wants_gpu = kind == "cuda" or (kind == "auto" and torch.cuda.is_available())
        executor = "cuda" if wants_gpu else "reference"
    on_gpu = executor == "cuda"
    if kind != "auto" and (kind == "cuda") != on_gpu:
        raise DeviceError(f"executor {executor!r} does not run on device {device!r}", expected=f"--device {'cuda' if on_gpu else 'cpu'}")
    if on_gpu and not torch.cuda.is_available():
        raise DeviceError("there is no CUDA GPU here", remedy="use --device cpu")
    return executor, torch.device("cpu" if not on_gpu else device if kind == "cuda" else "cuda")


def make_executor(
    manifest: Manifest,
    weights: Mapping[str, torch.Tensor],
    *,
    executor: str = "auto",
    device: str = "auto",
    kernels: Kernels = "",
    cache_tokens: int | None = None,
    graphs: bool = True,
    shuffle_seed: int | None = 0,
) -> Executor:
    """The executor by name, its memory reserved. `weights` lie on the device already (`load_weights`).

    `kernels` is needed by `interpret` and `cuda`; `graphs` matters to `cuda`, `shuffle_seed` (order of programs) to `interpret`.
    Raises DeviceError, OutOfMemoryError, ManifestError.
    """
    name, where = resolve(executor, device)
    memory = reserve(manifest, weights, make_constants(manifest, where), where, cache_tokens=cache_tokens, poisoned=name != "cuda")
    # Triton decides when it is first imported whether it interprets, so only the executor that is chosen may import it.
    if name == "reference":
        from lamella.runtime.reference import ReferenceExecutor

        return ReferenceExecutor(memory)
    if name == "interpret":
        from lamella.runtime.interpret import InterpretExecutor

        return InterpretExecutor(memory, kernels, shuffle_seed=shuffle_seed)
    from lamella.runtime.cuda import CudaExecutor

    return CudaExecutor(memory, kernels, graphs=graphs)

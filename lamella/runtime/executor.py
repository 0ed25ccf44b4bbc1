# pyright: basic
"""What every executor offers, and the choice of one: a manifest and weights enter, something that runs buckets leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch

from lamella.errors import DeviceError, nearest
from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.runtime.memory import Memory, reserve
from lamella.runtime.weights import make_constants

EXECUTORS = ("reference", "interpret", "cuda")
FLOAT8_SINCE = (8, 9)
"""The first compute capability with instructions for floats of eight bits."""

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

    @property
    def graph_bytes(self) -> int:
        """Device memory that captured graphs took; 0 where there are none."""
        ...

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: Progress | None = None, *, steps: int = 1) -> None:
        """Do now what the first `launch` of each bucket (all when None) would do: compile, capture. Inputs and cache stay as they are.

        Buckets that advance themselves are made ready also for `steps` at a time. `progress` is called after each kernel that had to be compiled.
        """
        ...

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        """Run one step, or `steps` of a bucket that advances itself, each on what the one before made; on CUDA they are only queued on the
        current stream, as one graph. The same as so many launches of one step, but for `sampled`.
        """
        ...

    def output(self, bucket: Bucket, name: str) -> torch.Tensor:
        """A named output of the last step: a view that the next launch of any bucket may overwrite. Raises KeyError."""
        ...

    def sampled(self, bucket: Bucket, steps: int = 1) -> torch.Tensor:
        """`next` of each step of the last `launch`, which was of so many: i32 [steps, R], overwritten as outputs are."""
        ...


ROW = 64
"""Bytes between tokens of one step and of the next: Triton compiles other kernels for addresses that are no multiple of 16."""


class MemoryExecutor:
    """The part all executors share: tensors by name over one `Memory`."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._outputs: dict[tuple, dict[str, torch.Tensor]] = {}
        self._between: dict[tuple, torch.Tensor] = {}

    @property
    def graph_bytes(self) -> int:
        return 0

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

    def sampled(self, bucket: Bucket, steps: int = 1) -> torch.Tensor:
        last = self.output(bucket, "next")[None]
        return last if steps == 1 else torch.cat((self.between(bucket, steps), last))

    def between(self, bucket: Bucket, steps: int) -> torch.Tensor:
        """Where steps that run together keep the tokens that the next of them overwrites: i32 [steps - 1, R], always the same memory."""
        following = self.output(bucket, "next")
        rows = self._between.get((bucket.key, steps))
        if rows is None:
            width = -(-following.shape[0] * following.itemsize // ROW) * ROW // following.itemsize
            rows = torch.zeros((steps - 1, width), dtype=following.dtype, device=following.device)
            self._between[bucket.key, steps] = rows
        return rows[:, : following.shape[0]]

    def bound(self, bucket: Bucket, steps: int) -> Iterator[tuple[tuple[Launch, list[torch.Tensor]], ...]]:
        """For each of so many steps its launches with their arguments. The tokens of all but the last go to a row of `between`, where the
        next step reads them, so that none has to be copied aside; everything else lies where the plan says.
        """
        views = {ref: self.memory.view(bucket, ref) for launch in bucket.launches for ref in launch.args}
        if steps == 1:
            yield tuple((launch, [views[ref] for ref in launch.args]) for launch in bucket.launches)
            return
        (tokens,) = (o.ref for o in bucket.outputs if o.name == "next")
        home = views[tokens]
        for read, written in pairwise((home, *self.between(bucket, steps), home)):
            found: list[tuple[Launch, list[torch.Tensor]]] = []
            now = read
            for launch in bucket.launches:
                inputs = self.manifest.kernels[launch.kernel].inputs
                args = [views[ref] if ref != tokens else now if i < inputs else written for i, ref in enumerate(launch.args)]
                found.append((launch, args))
                now = written if tokens in launch.args[inputs:] else now
            yield tuple(found)

    def repeat(self, bucket: Bucket, steps: int, run: Callable[[], None]) -> None:
        """`run` one step after the other, and keep what each samples."""
        for kept in self.between(bucket, steps) if steps > 1 else ():
            run()
            kept.copy_(self.output(bucket, "next"))
        run()


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
    if any(weight.dtype == "f8" for weight in manifest.weights.values()) and torch.cuda.get_device_capability(where) < FLOAT8_SINCE:
        got = ".".join(map(str, torch.cuda.get_device_capability(where)))
        raise DeviceError(
            "this GPU does not convert floats of eight bits", expected="compute capability 8.9", got=got, remedy="quantize to int8"
        )
    from lamella.runtime.cuda import CudaExecutor

    return CudaExecutor(memory, kernels, graphs=graphs)

# pyright: basic
"""The `cuda` executor: the printed kernels on a GPU, each bucket captured once into a CUDA graph and replayed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lamella.errors import DeviceError, OutOfMemoryError
from lamella.runtime.compile_kernels import compile_kernels, launch_options, recorded
from lamella.runtime.descriptors import described
from lamella.runtime.executor import Kernels, MemoryExecutor, Progress
from lamella.runtime.interpret import interpreting
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.library import exact_sums, library_matmul
from lamella.runtime.manifest import Bucket, Launch
from lamella.runtime.memory import Memory, ran_out


@dataclass(frozen=True)
class Step:
    """One launch with its arguments bound: `compile` only builds the kernel, `run` queues it on the current stream."""

    compile: Callable[[], Any]
    run: Callable[[], Any]


class CudaExecutor(MemoryExecutor):
    """Replays one CUDA graph a bucket, and another for several steps of one that advances itself. All addresses are static: a step is inputs
    filled in place, one replay, outputs read in place.

    Graphs are captured from one shared pool, largest first. With `graphs=False` the same launches run one by one.
    """

    def __init__(self, memory: Memory, kernels: Kernels, *, graphs: bool = True) -> None:
        """Raises DeviceError where there is no GPU or Triton interprets in this process, ManifestError for a kernel file that is missing."""
        super().__init__(memory)
        if memory.device.type != "cuda" or not torch.cuda.is_available():
            raise DeviceError("there is no CUDA GPU here", remedy="use --device cpu")
        if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0") or interpreting():
            raise DeviceError("triton interprets in this process", remedy="unset TRITON_INTERPRET; run interpret and cuda in two processes")
        self._files = KernelFiles(memory.manifest, kernels)
        self._functions = self._files.functions()
        self._use_graphs = graphs
        # Programmatic dependent launch: a kernel that has the switch starts before its predecessor ends, and waits where its text says.
        self._dependent_launch = torch.cuda.get_device_capability(memory.device) >= (9, 0)
        self._steps: dict[tuple, tuple[Step, ...]] = {}
        self._graphs: dict[tuple, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._graph_bytes = 0

    @property
    def graph_bytes(self) -> int:
        return self._graph_bytes

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: Progress | None = None, *, steps: int = 1) -> None:
        wanted = self.manifest.buckets if buckets is None else tuple(buckets)
        # A later, smaller graph then finds what the largest one needed already in the pool.
        ordered = sorted(wanted, key=lambda b: (b.tokens, b.sequences, b.logit_rows), reverse=True)
        fresh = [(b, n) for b in ordered for n in dict.fromkeys((steps if b.advance else 1, 1)) if (b.key, n) not in self._steps]
        if not fresh:
            return
        with torch.cuda.device(self.device):
            bound = {(b.key, n): tuple(self._bind(b, *launch) for step in self.bound(b, n) for launch in step) for b, n in fresh}
            _compile([step.compile for bucket, n in fresh if n == 1 for step in bound[bucket.key, 1]], progress)
            for bucket, n in fresh:
                self._warm_up(bucket, n, bound[bucket.key, n])
                self._steps[bucket.key, n] = bound[bucket.key, n]

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        key = bucket.key, steps
        if key not in self._steps:
            self.prepare([bucket], steps=steps)
        with torch.cuda.device(self.device):
            graph = self._graphs.get(key)
            if graph is not None:
                graph.replay()
            else:
                with self._numerics(bucket):
                    _run(self._steps[key])

    def _numerics(self, bucket: Bucket) -> AbstractContextManager[None]:
        """What launches of a bucket are queued, or captured, within: sums of the library in float32, where it computes something."""
        calls = any(self.manifest.kernels[launch.kernel].library for launch in bucket.launches)
        return exact_sums() if calls else nullcontext()

    def _bind(self, bucket: Bucket, launch: Launch, args: list[torch.Tensor]) -> Step:
        kernel = self.manifest.kernels[launch.kernel]
        if kernel.library:
            return Step(_nothing, library_matmul(kernel, args))
        function = self._functions[launch.kernel]
        options = launch_options(function, kernel, self._dependent_launch)
        given = described(kernel, launch.args, args)
        if launch is bucket.launches[0] or launch.ordered:
            # Later launches read the inputs before they wait, so the step before has to have ended; so has a library's call.
            options.pop("launch_pdl", None)
        return Step(partial(function.warmup, *given, grid=launch.grid, **options), partial(function[launch.grid], *given, **options))

    def _warm_up(self, bucket: Bucket, count: int, steps: tuple[Step, ...]) -> None:
        """Run the launches once, so that every module is loaded, then capture them and run the graph once, which puts it on the device;
        inputs and owned cache blocks stay as they were.

        With all inputs zero every token is padding (query_start[B] = 0): it writes to the null block and attends to nothing. Only inputs
        that the step itself advances change, and they are put back.
        """
        inputs = self.inputs(bucket)
        saved = {name: tensor.clone() for name, tensor in inputs.items()}
        try:
            _zero(inputs.values())
            # The first call of a library makes its handle, which no capture may do.
            with self._numerics(bucket):
                _run(steps)
            torch.cuda.synchronize()
            if self._use_graphs:
                torch.cuda.empty_cache()  # as a capture does, whose own memory is counted here
                before, _ = torch.cuda.mem_get_info(self.device)
                with self._numerics(bucket):
                    graph = self._capture(steps)
                _zero(inputs.values())
                graph.replay()
                torch.cuda.synchronize()
                self._graphs[bucket.key, count] = graph
                self._graph_bytes += max(0, before - torch.cuda.mem_get_info(self.device)[0])
        except RuntimeError as error:
            if not ran_out(error):
                raise
            what = f"the graph of {count} step{'s' * (count > 1)} of bucket {bucket.key} does not fit"
            raise OutOfMemoryError(what, remedy="fewer cache tokens, or fewer steps a replay") from error
        finally:
            for name, tensor in inputs.items():
                tensor.copy_(saved[name])

    def _capture(self, steps: tuple[Step, ...]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use CUDA meanwhile, so only this thread is watched.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            _run(steps)
        if self._pool is None:
            self._pool = graph.pool()
        return graph


def _zero(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


def _nothing() -> None:
    """What a call of a library has to compile."""


def _run(steps: Iterable[Step]) -> None:
    for step in steps:
        step.run()


def _compile(launches: Sequence[Callable[[], Any]], progress: Progress | None) -> None:
    """Compile what the launches need, in parallel processes, then load it: the launches find it in Triton's cache."""
    from triton import knobs

    compile_kernels(recorded(launches), progress=progress)
    with knobs.compilation.scope():
        # What was asked to be compiled in any case just was.
        knobs.compilation.always_compile = False
        for launch in launches:
            launch()

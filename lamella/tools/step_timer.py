# pyright: basic
"""Programs of one step enter; the time of each on the GPU leaves, measured as CUDA graphs of the whole step over the same weights and caches."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median

import torch

from lamella.errors import DeviceError, KernelError
from lamella.program import Program
from lamella.runtime.compile_kernels import compile_kernels, requests
from lamella.runtime.cuda import CudaExecutor
from lamella.runtime.executor import Executor
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.manifest import Bucket, Manifest
from lamella.runtime.memory import Memory, reserve
from lamella.runtime.weights import make_constants
from lamella.tools.step_inputs import fill_caches, step_inputs
from lamella.tools.tune import Timing, in_a_line

ROUNDS = 7
"""In which each program is measured once; the median counts, so that a drift of clocks meets all alike."""
ROUND_US = 100_000
"""One measurement: so long that the card settles at the clock that its power allows."""
STEP_TOLERANCE: Mapping[str, float] = {"bf16": 0.1, "f16": 0.03, "f32": 0.001}
"""Of logits against today's, root-mean-square of the difference over that of the logits: other sums round otherwise, in every layer."""


@dataclass
class GpuStepTimer:
    """Measures steps on a CUDA device. Weights are loaded once, for all programs that want the same."""

    device: torch.device
    load: Callable[[Manifest], Mapping[str, torch.Tensor]]
    """Makes the weights of a program."""
    _weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    _recipe: str = ""

    def measure(self, programs: Sequence[Program], show: Callable[[str], None]) -> list[Timing]:
        """Microseconds of a step of each program, the first of which is today's. Raises DeviceError when that one cannot run."""
        manifests = [_manifest(program) for program in programs]
        self._want(manifests[0], show)
        wanted = [i for i, manifest in enumerate(manifests) if recipe(manifest) == self._recipe]
        failures = {i: "it wants its weights otherwise" for i in range(len(programs)) if i not in wanted}
        self._compile([programs[i] for i in wanted], show)
        show(f"{len(wanted)} schedules in the step")
        made = self._executors(programs, wanted, failures)
        context = context_of(manifests[0].buckets[0], manifests[0])
        failures |= differing(made, context)
        times = self._rounds({i: e for i, e in made.items() if i not in failures}, context)
        del made
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return [Timing(None, failures[i]) if i in failures else Timing(median(times[i])) for i in range(len(programs))]

    def _want(self, manifest: Manifest, show: Callable[[str], None]) -> None:
        """Has the weights of a program loaded, unless they are."""
        if recipe(manifest) != self._recipe:
            show("loading weights")
            # Two models need not fit.
            self._weights = {}
            self._weights, self._recipe = self.load(manifest), recipe(manifest)

    def _compile(self, programs: Sequence[Program], show: Callable[[str], None]) -> None:
        """Puts all kernels into Triton's cache, in parallel processes; what does not compile says so when it is prepared."""
        files = [KernelFiles(_manifest(program), program.kernels) for program in programs]
        with suppress(KernelError):
            asked = [request for own in files for request in requests(own.manifest, own)]
            compile_kernels(asked, progress=lambda done, total, name: show(f"kernel {done} of {total} of the step"))

    def _executors(self, programs: Sequence[Program], wanted: Sequence[int], failures: dict[int, str]) -> dict[int, Executor]:
        """An executor a program, over the same weights and caches; those that cannot run are added to `failures`. Raises DeviceError for the first."""
        made: dict[int, Executor] = {}
        shared: Memory | None = None
        for i in wanted:
            manifest = _manifest(programs[i])
            (bucket,) = manifest.buckets
            tokens = bucket.sequences * manifest.cache.blocks_per_sequence * manifest.cache.block
            constants = make_constants(manifest, self.device)
            memory = reserve(manifest, self._weights, constants, self.device, cache_tokens=tokens if shared is None else 1, poisoned=False)
            if shared is None:
                shared = memory
                fill_caches((*memory.caches, *memory.scales))
            memory = replace(memory, caches=shared.caches, scales=shared.scales)
            try:
                executor = CudaExecutor(memory, programs[i].kernels)
                executor.prepare()
            except Exception as error:  # Triton and its assembler raise many classes
                if i == 0:
                    raise DeviceError("today's step does not run", got=in_a_line(error)) from error
                failures[i] = in_a_line(error)
                continue
            made[i] = executor
        return made

    def _rounds(self, executors: Mapping[int, Executor], context: int) -> dict[int, list[float]]:
        """Microseconds of a step in each round, by number of the program."""
        times: dict[int, list[float]] = {i: [] for i in executors}
        launches = 1
        for number in range(-1, ROUNDS):
            for i, executor in executors.items():
                (bucket,) = executor.manifest.buckets
                reset(executor, bucket, context)
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                # The first launch keeps the device busy while the host queues the rest.
                executor.launch(bucket)
                begin.record()
                for _ in range(launches):
                    executor.launch(bucket)
                end.record()
                end.synchronize()
                us = begin.elapsed_time(end) * 1e3 / launches
                if number >= 0:
                    times[i].append(us)
                elif i == next(iter(executors)):
                    # A step that advances itself has room for so many.
                    room = executor.manifest.max_context - context - 1 if bucket.advance else ROUND_US
                    launches = max(1, min(round(ROUND_US / max(us, 1.0)), room))
        return times


def recipe(manifest: Manifest) -> str:
    """How the weights of a program are made, as text."""
    return json.dumps(manifest.to_json()["weights"], sort_keys=True)


def context_of(bucket: Bucket, manifest: Manifest) -> int:
    """Tokens of each sequence when a step is measured: half of the longest context for decode, else its own."""
    return max(1, manifest.max_context // 2) if bucket.advance else bucket.tokens // bucket.sequences


def reset(executor: Executor, bucket: Bucket, context: int) -> None:
    """Writes a step's inputs anew: one that advances changes its own."""
    values = step_inputs(executor.manifest, bucket, context)
    for name, tensor in executor.inputs(bucket).items():
        tensor.copy_(values[name].to(tensor.device, tensor.dtype))


def differing(executors: Mapping[int, Executor], context: int) -> dict[int, str]:
    """The programs whose logits are not those of the first, which all others are compared with."""
    found: dict[int, str] = {}
    expected: torch.Tensor | None = None
    for i, executor in executors.items():
        (bucket,) = executor.manifest.buckets
        reset(executor, bucket, context)
        executor.launch(bucket)
        logits = executor.output(bucket, "logits").float().clone()
        expected = logits if expected is None else expected
        error = float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-6))
        if not error <= STEP_TOLERANCE.get(executor.manifest.dtype, 0.1):
            found[i] = f"its logits are not those of today's step: {error:.2g} of them apart"
    return found


def _manifest(program: Program) -> Manifest:
    assert program.manifest is not None
    return program.manifest

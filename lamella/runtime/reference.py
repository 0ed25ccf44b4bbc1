# pyright: basic
"""The `reference` executor: the planned level-4 program, launch by launch, on torch; buffers that are dead hold NaN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from lamella.runtime.evaluate import Run, compile_body
from lamella.runtime.executor import MemoryExecutor, Progress
from lamella.runtime.manifest import Bucket, Launch
from lamella.runtime.memory import Memory

THREAD_BYTES = 8 << 20
"""Bytes multiplied with one row of activations that keep a thread busy for some 0.4 ms: less work is not shared among threads.

The threads of a parallel operation wait for each other. On a machine that does something else too, one that has to wait for a core costs
milliseconds, so short operations are faster, and never slower by much, on one thread."""


@dataclass(frozen=True)
class Step:
    """One launch with its arguments bound: the region's body, its operands, where its results go, and what dies after it."""

    run: Run
    ins: tuple[torch.Tensor, ...]
    outs: tuple[torch.Tensor, ...]
    dead: tuple[torch.Tensor, ...]
    """Ranges of the arena, as `_signed` gives them."""
    threads: int
    """The most threads that pay."""


class ReferenceExecutor(MemoryExecutor):
    """Executes what the plan says and nothing else: operands are views of the arena, results are copied to where the plan puts them.

    A region computes all its values before the first is stored, so races between the CTAs of one launch are not seen here
    (the interpreter sees them); a value that was overwritten, never written, or freed too early is, as NaN.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._runs = {name: compile_body(kernel.body) for name, kernel in memory.manifest.kernels.items()}
        self._steps: dict[tuple, tuple[Step, ...]] = {}

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: Progress | None = None, *, steps: int = 1) -> None:
        for bucket in self.manifest.buckets if buckets is None else buckets:
            if bucket.key not in self._steps:
                self._steps[bucket.key] = tuple(self._bind(bucket, launch) for launch in bucket.launches)

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        if bucket.key not in self._steps:
            self.prepare([bucket])
        self.repeat(bucket, steps, partial(self._run, bucket))

    def _run(self, bucket: Bucket) -> None:
        with torch.inference_mode(), threads() as available:
            self._signed(0, bucket.arena_bytes).fill_(-1)
            for step in self._steps[bucket.key]:
                torch.set_num_threads(min(step.threads, available))
                values = step.run(*step.ins)
                if len(values) > 1:
                    values = self._detached(values)
                for out, value in zip(step.outs, values, strict=True):
                    if out is not value:
                        out.copy_(value)
                for memory in step.dead:
                    memory.fill_(-1)

    def _bind(self, bucket: Bucket, launch: Launch) -> Step:
        # One tensor object a ref, so that a result that already lies in its place (a cache) is recognized by identity.
        views = {ref: self.memory.view(bucket, ref) for ref in launch.args}
        args = [views[ref] for ref in launch.args]
        inputs = self.manifest.kernels[launch.kernel].inputs
        dead = tuple(self._signed(offset, size) for offset, size in launch.dead)
        threads = max(1, self._work(bucket, launch) // THREAD_BYTES)
        return Step(self._runs[launch.kernel], tuple(args[:inputs]), tuple(args[inputs:]), dead, threads)

    def _work(self, bucket: Bucket, launch: Launch) -> int:
        """Bytes multiplied with rows of activations: those of weights, or of the longest context, times rows. Nothing else takes long."""
        names = {op[0] for op in self.manifest.kernels[launch.kernel].body["ops"]}
        if "tile.contract" in names:
            return bucket.tokens * sum(self.memory.weights[ref.name].nbytes for ref in launch.args if ref.pool == "weight")
        if names & {"tile.attend", "tile.attend_partial"}:
            cache = self.manifest.cache
            return bucket.tokens * cache.blocks_per_sequence * cache.block_bytes // cache.layers
        return 0

    def _signed(self, offset: int, size: int) -> torch.Tensor:
        """Bytes of the arena as signed integers, in which -1 is POISON repeated; in words where they fit, which fill faster."""
        memory = self.memory.range(offset, size)
        return memory.view(torch.int8 if offset % 8 or size % 8 else torch.int64)

    def _detached(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of those values that lie in the arena (an operand passed through), lest storing one result changes another."""
        start = self.memory.arena.data_ptr()
        end = start + self.memory.arena.numel()
        return [v.clone() if start <= v.data_ptr() < end else v for v in values]


@contextmanager
def threads() -> Iterator[int]:
    """How many threads torch has been given, which it has again afterwards."""
    given = torch.get_num_threads()
    try:
        yield given
    finally:
        torch.set_num_threads(given)

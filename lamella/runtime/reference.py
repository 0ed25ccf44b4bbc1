# pyright: basic
"""The `reference` executor: the planned level-4 program, launch by launch, on torch; buffers that are dead hold NaN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lamella.runtime.evaluate import Run, compile_body
from lamella.runtime.executor import MemoryExecutor
from lamella.runtime.manifest import Bucket, Launch
from lamella.runtime.memory import Memory

THREAD_BYTES = 8 << 20
"""Bytes of weights times tokens that keep a thread busy long enough for a launch to be worth sharing, some 0.4 ms.

The threads of a parallel region wait for each other. On a machine that does something else too, one that has to wait for a core costs
milliseconds, so short launches are faster, and never slower by much, on one thread."""


@dataclass(frozen=True)
class Step:
    """One launch with its arguments bound: the region's body, its operands, where its results go, and what dies after it."""

    run: Run
    ins: tuple[torch.Tensor, ...]
    outs: tuple[torch.Tensor, ...]
    dead: tuple[torch.Tensor, ...]
    """Ranges of the arena, as `_signed` gives them."""


@dataclass(frozen=True)
class Program:
    """A bucket ready to run: its launches, the arena they use as `_signed` gives it, and the most threads that pay."""

    steps: tuple[Step, ...]
    arena: torch.Tensor
    threads: int


class ReferenceExecutor(MemoryExecutor):
    """Executes what the plan says and nothing else: operands are views of the arena, results are copied to where the plan puts them.

    A region computes all its values before the first is stored, so races between the CTAs of one launch are not seen here
    (the interpreter sees them); a value that was overwritten, never written, or freed too early is, as NaN.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._runs = {name: compile_body(kernel.body) for name, kernel in memory.manifest.kernels.items()}
        self._programs: dict[tuple, Program] = {}

    def prepare(self, buckets: Iterable[Bucket] | None = None) -> None:
        for bucket in self.manifest.buckets if buckets is None else buckets:
            if bucket.key not in self._programs:
                steps = tuple(self._bind(bucket, launch) for launch in bucket.launches)
                self._programs[bucket.key] = Program(steps, self._signed(0, bucket.arena_bytes), self._threads(bucket))

    def launch(self, bucket: Bucket) -> None:
        if bucket.key not in self._programs:
            self.prepare([bucket])
        program = self._programs[bucket.key]
        with torch.inference_mode(), threads(program.threads):
            program.arena.fill_(-1)
            for step in program.steps:
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
        return Step(self._runs[launch.kernel], tuple(args[:inputs]), tuple(args[inputs:]), dead)

    def _threads(self, bucket: Bucket) -> int:
        """How many threads the launches of a bucket are worth, on average."""
        weights = [self.memory.weights[ref.name] for launch in bucket.launches for ref in launch.args if ref.pool == "weight"]
        work = sum(weight.nbytes for weight in weights) * bucket.tokens
        return max(1, work // (THREAD_BYTES * max(1, len(bucket.launches))))

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
def threads(limit: int) -> Iterator[None]:
    """Run torch's operations on at most `limit` of the threads it has been given."""
    given = torch.get_num_threads()
    torch.set_num_threads(min(limit, given))
    try:
        yield
    finally:
        torch.set_num_threads(given)

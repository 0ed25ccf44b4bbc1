# pyright: basic
"""The `interpret` executor: the printed kernels themselves, run by Triton's interpreter on CPU tensors, programs in shuffled order."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy
import torch

from lamella.errors import DeviceError
from lamella.runtime.descriptors import described
from lamella.runtime.executor import Kernels, MemoryExecutor, Progress
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.library import library_matmul
from lamella.runtime.manifest import Bucket, Launch
from lamella.runtime.memory import POISON, Memory


def enter_interpreter() -> None:
    """Make `@triton.jit` interpret, in this process and for good. Raises DeviceError when Triton was imported as a compiler before.

    Triton reads TRITON_INTERPRET once, when its own library of device functions is defined.
    """
    loaded = "triton.language" in sys.modules
    if loaded and not interpreting():
        raise DeviceError(
            "the interpret executor came too late: triton was imported as a compiler in this process",
            remedy="set TRITON_INTERPRET=1 before the first import of triton",
        )
    os.environ["TRITON_INTERPRET"] = "1"


def interpreting() -> bool:
    """Whether Triton, which is imported if it is not yet, interprets."""
    import triton.language as tl

    return type(tl.sum).__name__ == "InterpretedFunction"


@contextmanager
def shuffled_programs(order: Random) -> Iterator[None]:
    """Within it, each interpreted launch runs the programs of its grid in an order drawn from `order`.

    The interpreter calls `set_grid_idx` before each program, x outermost; here the call is answered with another program's index.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    original = builder.set_grid_idx
    programs: list[int] = []

    def set_grid_idx(x: int, y: int, z: int) -> None:
        _, columns, planes = builder.grid_dim
        number = (x * columns + y) * planes + z
        if number == 0:
            programs[:] = range(builder.grid_dim[0] * columns * planes)
            order.shuffle(programs)
        program = programs[number]
        original(program // (columns * planes), program // planes % columns, program % planes)

    builder.set_grid_idx = set_grid_idx  # an instance attribute that hides the method
    try:
        yield
    finally:
        del builder.set_grid_idx


@contextmanager
def nearest_bfloat16() -> Iterator[None]:
    """Within it, interpreted casts to bfloat16 are those of a GPU: from float32 to the nearest, even of two; and whole numbers become their values.

    The interpreter itself truncates the former, and takes the latter for the bits of a bfloat16.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle
    from triton.runtime.interpreter import interpreter_builder as builder

    original = builder.create_fp_trunc

    def create_fp_trunc(src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar != tl.float32 or dst_type.scalar != tl.bfloat16:
            return original(src, dst_type)
        rounded = torch.from_numpy(numpy.ascontiguousarray(src.data)).bfloat16().view(torch.int16)
        return TensorHandle(rounded.numpy().view(numpy.uint16).reshape(src.data.shape), dst_type.scalar)

    def from_integer(method: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar != tl.bfloat16:
            return method(src, dst_type)
        return create_fp_trunc(TensorHandle(src.data.astype(numpy.float32), tl.float32), dst_type)

    patches = {
        "create_fp_trunc": create_fp_trunc,
        "create_si_to_fp": partial(from_integer, builder.create_si_to_fp),
        "create_ui_to_fp": partial(from_integer, builder.create_ui_to_fp),
    }
    vars(builder).update(patches)  # instance attributes that hide the methods
    try:
        yield
    finally:
        for name in patches:
            delattr(builder, name)


@dataclass(frozen=True)
class Step:
    """One launch with its arguments bound, and the arena ranges that die after it."""

    run: Callable[[], Any]
    dead: tuple[torch.Tensor, ...]


class InterpretExecutor(MemoryExecutor):
    """Runs the shipped kernel files, and calls of a library on torch. Grid programs run in shuffled order, so races show; dead buffers hold NaN, so bad plans show."""

    def __init__(self, memory: Memory, kernels: Kernels, *, shuffle_seed: int | None = 0, poisoned: bool = True) -> None:
        """`shuffle_seed` None keeps the interpreter's own order; `poisoned` fills dead ranges with NaN. Raises DeviceError, ManifestError."""
        super().__init__(memory)
        enter_interpreter()
        self._files = KernelFiles(memory.manifest, kernels)
        self._functions = self._files.functions()
        self._order = None if shuffle_seed is None else Random(shuffle_seed)
        self._poisoned = poisoned
        self._steps: dict[tuple, tuple[tuple[Step, ...], ...]] = {}

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: Progress | None = None, *, steps: int = 1) -> None:
        for bucket in self.manifest.buckets if buckets is None else buckets:
            count = steps if bucket.advance else 1
            if (bucket.key, count) not in self._steps:
                each = self.bound(bucket, count)
                self._steps[bucket.key, count] = tuple(tuple(self._bind(*launch) for launch in step) for step in each)

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        if (bucket.key, steps) not in self._steps:
            self.prepare([bucket], steps=steps)
        with nearest_bfloat16(), nullcontext() if self._order is None else shuffled_programs(self._order):
            for step in self._steps[bucket.key, steps]:
                self._run(bucket, step)

    def _run(self, bucket: Bucket, launches: tuple[Step, ...]) -> None:
        if self._poisoned:
            self.memory.range(0, bucket.arena_bytes).fill_(POISON)
        # Padding rows and masked lanes hold NaN and infinities by design; numpy would warn about each (of a row of NaN, as a warning).
        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
            for launch in launches:
                launch.run()
                for memory in launch.dead if self._poisoned else ():
                    memory.fill_(POISON)

    def _bind(self, launch: Launch, args: list[torch.Tensor]) -> Step:
        dead = tuple(self.memory.range(offset, size) for offset, size in launch.dead)
        kernel = self.manifest.kernels[launch.kernel]
        if kernel.library:
            return Step(library_matmul(kernel, args), dead)
        function = self._functions[launch.kernel]
        return Step(partial(function[launch.grid], *described(kernel, launch.args, args), **_switches(function)), dead)


def _switches(function: Any) -> dict[str, Any]:
    """Constexpr parameters as the interpreter needs them: it multiplies the raw bits of bf16 dot operands, so those are widened; it knows no assembly."""
    import triton.language as tl

    return {name: value for name, value in (("DOT", tl.float32), ("ASM", False)) if name in function.arg_names}

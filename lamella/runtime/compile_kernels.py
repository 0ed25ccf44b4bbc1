# pyright: basic
"""Kernels enter; they leave compiled, in Triton's disk cache: each distinct one once, in parallel processes.

Nothing here knows how Triton makes the key of its cache. A launch is asked what it would compile (`recorded`), and a worker process compiles
exactly that, so that the launch finds it. Processes rather than threads: half of the time goes to Python code of Triton.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import IO, Any

from lamella.errors import KernelError, ManifestError
from lamella.runtime.compile_worker import source_of
from lamella.runtime.descriptors import blank
from lamella.runtime.executor import Progress
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.manifest import Kernel, Manifest

WORKER = Path(__file__).with_name("compile_worker.py")
MAX_WORKERS = 16
FEW = 2
"""Kernels that are not worth the start of a process, which takes as long as one of them."""


@dataclass(frozen=True)
class Request:
    """What one launch would compile. Equal requests name equal text, types, alignment, switches and target."""

    name: str
    source_key: str
    """Triton's hash of the printed source."""
    data: str
    """Triton's `specialization_data`."""
    target: tuple[str, int | str, int]
    function: Any = field(compare=False)

    @property
    def file(self) -> str:
        """Where the source lies."""
        return self.function.fn.__code__.co_filename

    def line(self) -> str:
        """The request as a worker reads it."""
        return json.dumps({"name": self.name, "file": self.file, "data": self.data, "target": self.target}) + "\n"


def launch_options(function: Any, kernel: Kernel, dependent_launch: bool) -> dict[str, Any]:
    """The options of a launch: warps, stages and the most registers, and the PDL switch of a kernel that has one where the device can."""
    options: dict[str, Any] = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    if kernel.max_registers:
        options["maxnreg"] = kernel.max_registers
    if dependent_launch and "PDL" in function.arg_names:
        options |= {"PDL": True, "launch_pdl": True}
    return options


def recorded(launches: Iterable[Callable[[], object]]) -> list[Request]:
    """What these launches (`function.warmup` with its arguments bound) would compile now; nothing is compiled."""
    from triton import knobs
    from triton.runtime import driver

    found: dict[Request, None] = {}
    active: Any = driver.active
    target = active.get_current_target()

    def record(*, fn: Any, compile: Any, **_: Any) -> bool:
        function = fn.jit_function
        # The key of the launch is no part of what is compiled.
        data = {name: value for name, value in json.loads(compile["specialization_data"]).items() if name not in ("key", "target")}
        made = Request(fn.name, function.cache_key, json.dumps(data), (target.backend, target.arch, target.warp_size), function)
        found.setdefault(made)
        return True

    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = record
        for launch in launches:
            launch()
    return list(found)


@dataclass(frozen=True)
class AbsentDevice:
    """What Triton asks of a driver before it compiles, answered for a GPU of this compute capability (90) that need not be there."""

    capability: int

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def absent_device(capability: int) -> Generator[None]:
    """Within it, Triton compiles for a GPU of this compute capability, whatever there is."""
    from triton.runtime import driver

    before = driver.__dict__.get("_active")
    stand_in: Any = AbsentDevice(capability)
    driver.set_active(stand_in)
    try:
        yield
    finally:
        driver.__dict__["_active"] = before


def requests(manifest: Manifest, files: KernelFiles, *, dependent_launch: bool = True, capability: int | None = None) -> list[Request]:
    """What launching every kernel of a program would compile, without its tensors: they begin at multiples of 16 bytes, as all of the
    runtime's do. The kernel files say their types. `capability` (90) stands for a GPU that need not be there, None for the one that is.
    Raises ManifestError for a file without a SIGNATURE.
    """
    import torch

    types = {"*fp32": torch.float32, "*fp16": torch.float16, "*bf16": torch.bfloat16, "*i32": torch.int32, "*i8": torch.int8}
    types |= {"*u8": torch.uint8, "*i16": torch.int16, "*i64": torch.int64, "*i1": torch.bool, "*fp8e4nv": torch.float8_e4m3fn}

    def launch(function: Any, kernel: Kernel) -> None:
        signature = function.__globals__.get("SIGNATURE")
        if signature is None:
            raise ManifestError("the kernel file has no SIGNATURE", where=kernel.file)
        function.warmup(
            *(blank(kind) or types[kind] for kind in signature.values()), grid=(1,), **launch_options(function, kernel, dependent_launch)
        )

    functions = files.functions()
    with nullcontext() if capability is None else absent_device(capability):
        return recorded([partial(launch, function, manifest.kernels[name]) for name, function in functions.items()])


def compile_kernels(wanted: Sequence[Request], workers: int | None = None, progress: Progress | None = None) -> int:
    """Puts what is not yet in Triton's cache there, and returns how many that were. Raises KernelError for the first that does not compile.

    `workers` processes (None: one a core, at most MAX_WORKERS) share the work; with one, or with FEW kernels, this process does it.
    """
    missing = [request for request in dict.fromkeys(wanted) if not cached(request)]
    # The largest first: none of them should start last.
    missing.sort(key=lambda request: -len(request.function.src))
    count = min(workers or os.cpu_count() or 1, MAX_WORKERS, len(missing))
    queue: SimpleQueue[Request] = SimpleQueue()
    for request in missing:
        queue.put(request)
    done: list[str] = []
    one_at_a_time = Lock()

    def finished(request: Request, error: str | None) -> None:
        if error is not None:
            raise KernelError(f"kernel {request.name!r} does not compile for {request.target[1]}", where=request.file, got=error)
        with one_at_a_time:
            done.append(request.name)
            if progress is not None:
                progress(len(done), len(missing), request.name)

    if count > 1 and len(missing) > FEW and sys.executable:
        with ThreadPoolExecutor(count) as threads:
            for future in [threads.submit(_serve, queue, finished) for _ in range(count)]:
                future.result()
    else:
        for request in missing:
            finished(request, _compile_here(request))
    return len(missing)


def cached(request: Request) -> bool:
    """Whether Triton's cache holds what a request asks for. Always false where Triton is told to compile in any case."""
    from triton import knobs
    from triton.compiler import make_backend
    from triton.runtime.cache import get_cache_manager

    if knobs.compilation.always_compile:
        return False
    source, target, options = source_of({"data": request.data, "target": request.target}, request.function)
    name = f"{source.name[:150]}.json"
    return name in (get_cache_manager(_hash(source, make_backend(target), options)).get_group(name) or {})


def _hash(source: Any, backend: Any, options: dict[str, Any]) -> str:
    """The name of the folder of a kernel in Triton's cache."""
    import hashlib

    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler import get_cache_key

    key = get_cache_key(source, backend, backend.parse_options(options), get_cache_invalidating_env_vars())
    return hashlib.sha256(key.encode("utf-8")).hexdigest()


def _compile_here(request: Request) -> str | None:
    """Compiles in this process; returns what went wrong."""
    import triton

    source, target, options = source_of({"data": request.data, "target": request.target}, request.function)
    try:
        triton.compile(source, target=target, options=options)
    except Exception as error:  # Triton raises many classes
        return " ".join(f"{type(error).__name__}: {error}".split())[-400:]
    return None


def _serve(queue: SimpleQueue[Request], finished: Callable[[Request, str | None], None]) -> None:
    """Feeds one worker process until the queue is empty. What goes wrong empties it, so that the other workers stop too."""
    with tempfile.TemporaryFile() as errors:
        worker = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            _write(worker.stdin, _settings())
            while True:
                request = queue.get_nowait()
                _write(worker.stdin, request.line())
                answer = worker.stdout.readline()
                if not answer:
                    worker.wait()
                    errors.seek(0)
                    lines = errors.read().decode(errors="replace").strip().splitlines()
                    raise KernelError(
                        "a compiler process stopped", where=request.name, got=(lines or [f"exit code {worker.returncode}"])[-1]
                    )
                finished(request, json.loads(answer).get("error"))
        except Empty:
            pass
        except BaseException:
            _drain(queue)
            worker.kill()
            raise
        finally:
            worker.communicate()


def _settings() -> str:
    from triton import knobs

    return json.dumps({"path": sys.path, "cache": knobs.cache.dir, "always": knobs.compilation.always_compile}) + "\n"


def _write(pipe: IO[str], line: str) -> None:
    """A worker that stopped is noticed when its answer is read."""
    try:
        pipe.write(line)
        pipe.flush()
    except BrokenPipeError:
        pass


def _drain(queue: SimpleQueue[Request]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass

"""Compiles printed kernel files for a GPU that need not be there; out come registers, spills, shared memory and instructions of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lamella.errors import DeviceError, PassError

WORKER = Path(__file__).with_name("cross_compile_worker.py")


@dataclass(frozen=True)
class KernelResources:
    """What one program of a kernel takes: registers a thread, spilled bytes a thread, bytes of static and dynamic shared memory; and its instructions,
    those that load from global memory, and those of them that load 16 bytes a thread."""

    name: str
    registers: int
    spills: int
    shared_memory: int
    num_warps: int
    num_stages: int
    cubin_bytes: int
    instructions: int
    loads: int
    wide_loads: int


def cross_compile(
    sources: Sequence[Path | str] | Mapping[str, str], arch: str = "sm_90", *, pdl: bool = False, workers: int | None = None
) -> list[KernelResources]:
    """Compiles printed kernels, given as paths or as name → text, each in full, in worker processes without TRITON_INTERPRET.

    Pointers are 16-byte aligned, as the runtime's buffers are. `pdl` switches programmatic dependent launch on.
    Raises DeviceError for an `arch` that is not `sm_NN`, PassError for a kernel that does not compile.
    """
    capability = arch.removeprefix("sm_")
    if not capability.isdigit():
        raise DeviceError("unknown architecture", expected="sm_90 or another sm_NN", got=arch)
    with tempfile.TemporaryDirectory() as folder:
        paths = _paths(sources, Path(folder))
        count = max(1, min(workers or os.cpu_count() or 1, len(paths)))
        running = [_start(paths[first::count], int(capability), pdl) for first in range(count)]
        results = [_finish(worker) for worker in running]
    by_path = {path: resources for found in results for path, resources in found.items()}
    return [_resources(path, by_path[str(path)], arch) for path in paths]


def table(resources: Sequence[KernelResources]) -> str:
    """The figures as aligned text, one kernel a line."""
    width = max((len(r.name) for r in resources), default=6)
    lines = [f"{'kernel':{width}}  warps  stages  registers  spills  shared"]
    lines += [f"{r.name:{width}}  {r.num_warps:5}  {r.num_stages:6}  {r.registers:9}  {r.spills:6}  {r.shared_memory:6}" for r in resources]
    return "\n".join(lines)


def _paths(sources: Sequence[Path | str] | Mapping[str, str], folder: Path) -> list[Path]:
    """The files to compile: Triton reads source text from disk."""
    if not isinstance(sources, Mapping):
        return [Path(source) for source in sources]
    paths = [folder / f"{name}.py" for name in sources]
    for path, text in zip(paths, sources.values(), strict=True):
        path.write_text(text)
    return paths


def _start(paths: Sequence[Path], capability: int, pdl: bool) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    request = json.dumps({"paths": [str(path) for path in paths], "capability": capability, "pdl": pdl})
    command = [sys.executable, "-P", str(WORKER), request]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _finish(worker: subprocess.Popen[str]) -> dict[str, dict[str, int | str]]:
    output, errors = worker.communicate()
    if worker.returncode != 0:
        raise PassError("the kernel compiler stopped", got=(errors.strip().splitlines() or ["no message"])[-1])
    return json.loads(output.splitlines()[-1])


def _resources(path: Path, found: dict[str, int | str], arch: str) -> KernelResources:
    if "error" in found:
        raise PassError(f"the kernel does not compile for {arch}", where=path.name, got=str(found["error"]))
    figures = {key: int(value) for key, value in found.items() if key != "name"}
    return KernelResources(name=str(found["name"]), **figures)

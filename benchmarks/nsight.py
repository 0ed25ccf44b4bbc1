# pyright: basic
"""A command enters; what Nsight Compute counted of each kernel that it launched while the profiler was on leaves."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lamella.errors import DeviceError, LamellaError

READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
FOLDERS = ("usr/local/cuda*/bin/ncu", "opt/nvidia/nsight-compute/*/ncu")
"""Where installers put it, below the root."""
PERMISSION = "ERR_NVGPUCTRPERM"
UNITS: Mapping[str, float] = {
    **{"": 1, "byte": 1, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12},
    **{"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9},
}
"""To bytes and nanoseconds. `--print-units base` asks for those, but versions spell them differently."""


@dataclass(frozen=True)
class Counted:
    """One launch: bytes that its kernel read from memory and wrote to it, and nanoseconds."""

    kernel: str
    read: float
    written: float
    nanoseconds: float


def find_ncu(given: Path | None = None, root: Path = Path("/")) -> Path:
    """The `ncu` command: the one `given`, or on the PATH, or the latest in FOLDERS. Raises DeviceError."""
    if given is not None:
        if not given.is_file():
            raise DeviceError("no such command", where=str(given), expected="the path of ncu")
        return given
    found = shutil.which("ncu")
    if found is not None:
        return Path(found)
    installed = [path for pattern in FOLDERS for path in sorted(root.glob(pattern)) if os.access(path, os.X_OK)]
    if not installed:
        expected = f"ncu on the PATH or in {' or '.join(str(root / f) for f in FOLDERS)}"
        raise DeviceError("Nsight Compute is not installed here", expected=expected, remedy="install it, or give --ncu")
    return installed[-1]


def profiled(ncu: Path, command: Sequence[str], folder: Path) -> list[Counted]:
    """Runs a command in `folder`, and counts what it launches between `cudaProfilerStart` and `cudaProfilerStop`, in order.

    Caches are emptied before each launch (`--cache-control all`), so that whatever it reads comes from memory.
    Raises DeviceError where counters may not be read, LamellaError for a command that failed or launched nothing.
    """
    with TemporaryDirectory(prefix="lamella-ncu-") as scratch:
        log = Path(scratch) / "ncu.csv"
        options = ["--target-processes", "application-only", "--profile-from-start", "off", "--cache-control", "all"]
        options += ["--clock-control", "none", "--metrics", ",".join((READ, WRITTEN, TIME))]
        options += ["--csv", "--print-units", "base", "--log-file", str(log)]
        # Numbers are printed as the locale has them.
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            [str(ncu), *options, *command], cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    said = "\n".join((done.stderr, done.stdout, text))
    if PERMISSION in said:
        remedy = "run as root, in a container with CAP_SYS_ADMIN, or let the driver: NVreg_RestrictProfilingToAdminUsers=0"
        raise DeviceError("Nsight Compute may not read the counters of this GPU", got=PERMISSION, remedy=remedy)
    if done.returncode:
        raise LamellaError("the profiled step failed", got=complaint(said) or f"exit code {done.returncode}")
    found = parse(text.splitlines())
    if not found:
        raise LamellaError("Nsight Compute counted no launch", got=complaint(said) or None)
    return found


def parse(lines: Iterable[str]) -> list[Counted]:
    """The launches in what `ncu --csv` prints, in order, whatever the profiler and the command print beside. Raises LamellaError.

    There is one row a metric of a launch; columns are found by their names.
    """
    quoted = (line for line in lines if line.startswith('"'))
    header = next((line for line in quoted if line.startswith('"ID",')), None)
    if header is None:
        return []
    names: dict[str, str] = {}
    metrics: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(quoted, next(csv.reader([header]))):
        try:
            number, metric, kernel = row["ID"], row["Metric Name"], row["Kernel Name"]
            names[number] = kernel.partition("(")[0].strip()
            metrics.setdefault(number, {})[metric] = _base(row["Metric Value"], row["Metric Unit"])
        except (KeyError, AttributeError, TypeError) as error:
            raise LamellaError("Nsight Compute printed a table that is not known here", got=str(list(row.values()))) from error
    for number, own in metrics.items():
        missing = [name for name in (READ, WRITTEN, TIME) if name not in own]
        if missing:
            raise LamellaError(f"Nsight Compute counted no {', '.join(missing)}", where=names[number])
    return [Counted(names[number], own[READ], own[WRITTEN], own[TIME]) for number, own in metrics.items()]


def complaint(text: str) -> str:
    """The line of an output that says what went wrong: the profiler's, the command's, or the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(('"', "==PROF=="))]
    for start in ("error:", "==ERROR==", "==WARNING=="):
        found = next((line for line in lines if line.startswith(start)), None)
        if found:
            return found.removeprefix(start).strip()
    return lines[-1] if lines else ""


def _base(value: str, unit: str) -> float:
    """In bytes or nanoseconds. Raises LamellaError for what is no number, as of counters that a GPU does not have."""
    try:
        return float(value.replace(",", "")) * UNITS[unit.strip().lower()]
    except (ValueError, KeyError) as error:
        raise LamellaError("Nsight Compute counted no bytes or times", got=f"{value} {unit}".strip()) from error

"""The kernels of tiny models under compute-sanitizer: no access beside a tensor, no race in shared memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.models.sanitized import CASES, on_cpu, run

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = "compute-sanitizer"
ERROR = 9
OPTIONS = ("--target-processes", "application-only", "--report-api-errors", "no", "--error-exitcode", str(ERROR), "--print-limit", "20")
TOOLS = {"memcheck": ("--padding", "512"), "racecheck": ()}
"""Each tool with its own options. A padding behind every allocation keeps an overrun from reaching the next one."""


def process(arguments: Sequence[str], cache: Path, tool: str = "") -> subprocess.CompletedProcess[str]:
    """`tests.models.sanitized` in a process of its own, with Triton's cache in a folder."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = kept | {"TRITON_CACHE_DIR": str(cache), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    watched = [SANITIZER, "--tool", tool, *TOOLS[tool], *OPTIONS] if tool else []
    command = [*watched, sys.executable, "-m", "tests.models.sanitized", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def require_sanitizer() -> None:
    """Skips where there is none."""
    if shutil.which(SANITIZER) is None:
        pytest.skip(f"{SANITIZER} is not on the PATH")


@pytest.mark.parametrize("case", CASES)
def test_the_watched_steps_run(case: str) -> None:
    """What the tool is to watch, where there is no GPU: the same launches by the reference executor."""
    found = run(CASES[case], "cpu", on_cpu)
    assert found["launches"] >= len(found["kernels"]) > 20
    assert (found["in_runs"] > 0) == case.endswith("in runs")
    assert any("attend" in name for name in found["kernels"]) and any("sample" in name for name in found["kernels"])


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tool", TOOLS)
def test_kernels_are_clean(tool: str, case: str, tmp_path: Path) -> None:
    require_sanitizer()
    # Compiling under the tool takes minutes: the first process fills Triton's cache.
    plain = process([case], tmp_path)
    assert plain.returncode == 0, plain.stderr[-2000:]
    watched = process([case], tmp_path, tool)
    text = watched.stdout + watched.stderr
    assert watched.returncode == 0, text[-4000:]
    (printed,) = (line for line in watched.stdout.splitlines() if line.startswith("{"))
    assert json.loads(printed) == json.loads(plain.stdout.splitlines()[-1])
    assert re.search(r"\b0 errors", text), text[-2000:]


@pytest.mark.gpu
def test_an_overrun_is_noticed(tmp_path: Path) -> None:
    require_sanitizer()
    plain = process(["planted"], tmp_path)
    assert plain.returncode == 0, plain.stderr[-2000:]
    watched = process(["planted"], tmp_path, "memcheck")
    assert watched.returncode != 0 and "Invalid __global__ write" in watched.stdout + watched.stderr

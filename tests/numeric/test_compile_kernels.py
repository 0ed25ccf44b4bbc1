"""Kernels compiled in parallel processes: each once, found again by what a launch asks Triton for, and equal to those compiled one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.configurations import configuration
from lamella.frontends import open_model
from lamella.program import Shape, compile_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    with configuration("tiny", 1) as path:
        config = open_model(path, random_weights=0).config
    compile_model(config, [Shape.decode()], dtype="bf16", max_context=64).save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    # Threads of one kernel are limited to fewer registers than it takes of itself: an option of the launch as well.
    manifest["kernels"]["t1_gemv_0"]["max_registers"] = 32
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def process(package: Path, cache: Path, workers: int, copies: int = 1) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.numeric.compile_in_process", str(package), str(cache), str(workers), str(copies)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def broken(package: Path, folder: Path, name: str, old: str, new: str) -> Path:
    """A copy of a package with a change in one kernel."""
    (folder / "kernels").mkdir(parents=True)
    (folder / "manifest.json").write_text((package / "manifest.json").read_text())
    for file in (package / "kernels").glob("*.py"):
        text = file.read_text()
        (folder / "kernels" / file.name).write_text(text.replace(old, new) if file.stem == name else text)
    return folder


def test_workers_fill_the_cache_that_launches_read(package: Path, tmp_path: Path) -> None:
    names = sorted(file.stem for file in (package / "kernels").glob("*.py"))
    cold = process(package, tmp_path / "parallel", workers=2, copies=2)
    assert cold["compiled"] == len(names) == len(cold["progress"])
    assert [(done, total) for done, total, _ in cold["progress"]] == [(i + 1, len(names)) for i in range(len(names))]
    assert sorted(name for *_, name in cold["progress"]) == names
    # A launch asks for exactly what the workers compiled: type, alignment, switches and options agree.
    assert cold["hits"] == [True] * len(names)
    warm = process(package, tmp_path / "parallel", workers=2)
    assert warm["compiled"] == 0 and warm["progress"] == [] and warm["hits"] == [True] * len(names)
    serial = process(package, tmp_path / "serial", workers=1)
    assert serial["compiled"] == len(names) and serial["hits"] == [True] * len(names)
    assert cold["cubins"] == warm["cubins"] == serial["cubins"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_kernel_that_does_not_compile_is_named(package: Path, tmp_path: Path, workers: int) -> None:
    name = min(file.stem for file in (package / "kernels").glob("*.py"))
    found = process(broken(package, tmp_path / "package", name, "tl.load(", "tl.loads("), tmp_path / "cache", workers)
    assert f"kernel '{name}' does not compile for 90" in found["error"] and f"{name}.py" in found["error"] and "loads" in found["error"]


def test_a_worker_that_stops_is_reported(package: Path, tmp_path: Path) -> None:
    name = min(file.stem for file in (package / "kernels").glob("*.py"))
    # The parent loads the file as well; only the worker is a program called compile_worker.
    stop = 'import sys\n\nif sys.argv[0].endswith("compile_worker.py"):\n    sys.exit("out of disk")\n\nimport triton\n'
    found = process(broken(package, tmp_path / "package", name, "import triton\n", stop), tmp_path / "cache", 2)
    assert "a compiler process stopped" in found["error"] and name in found["error"] and "out of disk" in found["error"]

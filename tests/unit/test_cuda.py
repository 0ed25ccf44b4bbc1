"""The cuda executor on hand-written kernel files: graphs and single launches agree, and capturing changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lamella.runtime.cuda import CudaExecutor
from lamella.runtime.executor import make_executor
from lamella.runtime.manifest import Manifest
from tests.unit import tiny_program

ROWS = 8
HEADER = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
LINE = "    i = tl.program_id(0)\n    tl.store(out + i, tl.load(x + i) {})\n"
SOURCES = {
    "double": HEADER + "def double(x, out):\n" + LINE.format("* 2"),
    "advance": HEADER + "def advance(x, out):\n" + LINE.format("+ 1"),
}


def executor(graphs: bool) -> CudaExecutor:
    """One bucket: x is doubled into the arena, then x itself advances."""
    body = {"args": 1, "ops": [["tile.cast", [0], {"dtype": "f32"}, [1]]], "yields": [1]}
    data: dict[str, Any] = tiny_program.manifest([(1, 1, 1, 1, True), (8, 1, 8, 1, False)])
    data["kernels"] = {name: {"file": f"kernels/{name}.py", "inputs": 1, "body": body} for name in SOURCES}
    x, out = tiny_program.given("x"), {"pool": "arena", "offset": 0, "dtype": "f32", "shape": [ROWS]}
    for bucket in data["buckets"]:
        bucket |= {
            "arena_bytes": 4 * ROWS,
            "inputs": [{"name": "x", "dtype": "f32", "shape": [ROWS]}],
            "outputs": [{"name": "out", "ref": out}],
            "launches": [
                {"kernel": "double", "grid": [ROWS, 1, 1], "args": [x, out]},
                {"kernel": "advance", "grid": [ROWS, 1, 1], "args": [x, x]},
            ],
        }
    made = make_executor(Manifest.from_json(data), {}, executor="cuda", kernels=SOURCES, graphs=graphs, cache_tokens=8)
    assert isinstance(made, CudaExecutor)
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_steps_feed_each_other_and_capture_leaves_inputs_alone(graphs: bool, early: bool) -> None:
    made = executor(graphs)
    if early:
        made.prepare()
    for bucket in made.manifest.buckets:
        x = made.inputs(bucket)["x"]
        x.copy_(torch.arange(ROWS))
        for step in range(3):
            made.launch(bucket)
            assert made.output(bucket, "out").tolist() == [2.0 * (i + step) for i in range(ROWS)]
        assert x.tolist() == [float(i + 3) for i in range(ROWS)]
    assert not any(cache.isnan().any() for cache in made.caches)


START = """
import json, sys
from pathlib import Path
from triton import knobs
import lamella
from lamella.program import Shape
from lamella.runtime import compile_kernels

events, compiled = [], []
if sys.argv[2] == "serial":
    compile_kernels.MAX_WORKERS = 1
else:
    # What this process compiles itself, rather than finds, was not what a worker had compiled.
    knobs.compilation.listener = lambda *, cache_hit, **_: events.append(cache_hit)
model = lamella.load(
    Path(sys.argv[1]), random_weights=0, device="cuda", dtype="float32", max_context=64, buckets=[Shape.decode(), Shape.prefill(20)],
    kernel_progress=lambda done, total, name: compiled.append(name),
)
ids = model.generate(list(range(3, 15)), max_new_tokens=20, ignore_eos=True).output_ids
print(json.dumps({"compiled": sorted(compiled), "kernels": sorted(model.program.kernels), "missed": events.count(False), "ids": ids}))
"""


def start(cache: Path, mode: str) -> dict[str, Any]:
    """A process that loads a tiny model and generates, with Triton's cache in a folder."""
    root = Path(__file__).resolve().parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", START, str(root / "benchmarks/models/tiny.json"), mode]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gpu
def test_kernels_compile_in_workers_and_a_second_start_compiles_none(tmp_path: Path) -> None:
    cold = start(tmp_path / "parallel", "parallel")
    assert cold["compiled"] == cold["kernels"] and cold["missed"] == 0
    warm = start(tmp_path / "parallel", "parallel")
    assert warm["compiled"] == [] and warm["missed"] == 0
    serial = start(tmp_path / "serial", "serial")
    assert serial["compiled"] == serial["kernels"]
    assert cold["ids"] == warm["ids"] == serial["ids"] and len(cold["ids"]) == 20

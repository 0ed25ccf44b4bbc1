"""The cuda executor on hand-written kernel files: graphs and single launches agree, and capturing changes nothing."""

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

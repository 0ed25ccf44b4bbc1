"""The cuda executor on hand-written kernel files: graphs and single launches agree, and capturing changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lamella.runtime.executor import Executor, make_executor
from lamella.runtime.manifest import Manifest
from lamella.runtime.sampling_parameters import SamplingParameters
from tests.unit import tiny_program

ROWS = 8
COUNTED = ("tokens", "positions")
SAMPLING = SamplingParameters(temperature=1.0, top_k=50, top_p=0.9, min_p=0.02, seed=4)
HEADER = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
LINE = "    i = tl.program_id(0)\n    tl.store(out + i, tl.load(x + i) {})\n"
SOURCES = {
    "double": HEADER + "def double(x, out):\n" + LINE.format("* 2"),
    "advance": HEADER + "def advance(x, out):\n" + LINE.format("+ 1"),
}


def doubling() -> Manifest:
    """Two buckets of the same launches: x is doubled into the arena, then x itself advances."""
    data: dict[str, Any] = tiny_program.manifest([(1, 1, 1, 1, True), (8, 1, 8, 1, False)])
    data["kernels"] = {name: kernel(name, 1) for name in SOURCES}
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
    return Manifest.from_json(data)


COUNTING_SOURCES = {
    "add": HEADER + "def add(token, position, out):\n    tl.store(out, tl.load(token) + tl.load(position))\n",
    "advance": HEADER + "def advance(x, out):\n    tl.store(out, tl.load(x) + 1)\n",
}


def counting() -> Manifest:
    """A bucket that advances: its position is added to the token, then advances itself."""
    data: dict[str, Any] = tiny_program.manifest([(1, 1, 1, 1, True)])
    data["kernels"] = {"add": kernel("add", 2), "advance": kernel("advance", 1)}
    token, position = (tiny_program.given(name) for name in COUNTED)
    data["buckets"][0] |= {
        "inputs": [{"name": name, "dtype": "i32", "shape": [1]} for name in COUNTED],
        "outputs": [{"name": "next", "ref": token}],
        "launches": [
            {"kernel": "add", "grid": [1, 1, 1], "args": [token, position, token]},
            {"kernel": "advance", "grid": [1, 1, 1], "args": [position, position]},
        ],
    }
    return Manifest.from_json(data)


def kernel(name: str, inputs: int) -> dict[str, Any]:
    """A kernel of one result. Executors that run texts never look at its body."""
    return {"file": f"kernels/{name}.py", "inputs": inputs, "body": {"args": inputs, "ops": [], "yields": [0]}}


def made_of(manifest: Manifest, sources: dict[str, str], executor: str, graphs: bool = True) -> Executor:
    """An executor without weights."""
    return make_executor(manifest, {}, executor=executor, kernels=sources, graphs=graphs, cache_tokens=8)


def check_doubling(made: Executor) -> None:
    """Each step finds x as the one before left it."""
    for bucket in made.manifest.buckets:
        x = made.inputs(bucket)["x"]
        x.copy_(torch.arange(ROWS))
        for step in range(3):
            made.launch(bucket)
            assert made.output(bucket, "out").tolist() == [2.0 * (i + step) for i in range(ROWS)]
        assert x.tolist() == [float(i + 3) for i in range(ROWS)]


def check_counting(made: Executor) -> None:
    """Groups of steps leave what the steps one by one do, and keep every token."""
    (bucket,) = made.manifest.buckets
    inputs = made.inputs(bucket)
    inputs["positions"].fill_(3)
    made.prepare(steps=4)
    assert [inputs[name].tolist() for name in COUNTED] == [[0], [3]]
    expected = [3, 7, 12, 18, 25, 33, 42, 52, 63, 75]
    # 4 and 1 were made ready by `prepare`, 3 and 2 are at their first launch, in the middle of a run.
    for steps in (4, 3, 1, 2):
        made.launch(bucket, steps)
        assert made.sampled(bucket, steps)[:, 0].tolist() == expected[:steps]
        expected = expected[steps:]
    assert [inputs[name].tolist() for name in COUNTED] == [[75], [13]]


def test_the_hand_written_programs_run_in_the_interpreter() -> None:
    """So that what they say is known to be right where there is no GPU."""
    check_doubling(made_of(doubling(), SOURCES, "interpret"))
    check_counting(made_of(counting(), COUNTING_SOURCES, "interpret"))


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_steps_feed_each_other_and_capture_leaves_inputs_alone(graphs: bool, early: bool) -> None:
    made = made_of(doubling(), SOURCES, "cuda", graphs)
    if early:
        made.prepare()
    check_doubling(made)
    assert not any(cache.isnan().any() for cache in made.caches)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_several_steps_in_one_graph(graphs: bool) -> None:
    made = made_of(counting(), COUNTING_SOURCES, "cuda", graphs)
    check_counting(made)
    assert (made.graph_bytes > 0) <= graphs


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_2000_tokens_with_graphs_without_and_several_steps_a_replay(dtype: str) -> None:
    import lamella
    from lamella.program import Shape

    model = Path(__file__).resolve().parents[2] / "benchmarks/models/tiny.json"
    made: list[list[tuple[int, ...]]] = []
    for graphs, groups in ((True, (1, 8, 7)), (False, (1, 8))):
        loaded = lamella.load(
            model,
            random_weights=0,
            device="cuda",
            dtype=dtype,
            max_context=2020,
            buckets=[Shape.decode(), Shape.prefill(20)],
            graphs=graphs,
        )
        assert loaded.steps_per_replay == 8
        assert (loaded.executor.graph_bytes > 0) <= graphs
        for steps in groups:
            asked = {"max_new_tokens": 2000, "ignore_eos": True, "steps_per_replay": steps}
            greedy = loaded.generate(list(range(3, 15)), **asked).output_ids
            sampled = loaded.generate(list(range(3, 15)), temperature=1.0, top_k=50, top_p=0.9, min_p=0.02, seed=4, **asked).output_ids
            assert len(greedy) == len(sampled) == 2000
            made.append([greedy, sampled])
    assert all(each == made[0] for each in made[1:])
    # A stop at each place of a group: what was queued behind it is dropped, and the next generation finds everything as it should be.
    whole = made[0][1]
    for place in range(20, 30):
        stop = whole[place]
        stream = loaded.session.stream(list(range(3, 15)), 64, SAMPLING, stop_ids=[stop], steps_per_replay=8)
        assert tuple(stream) == whole[: whole.index(stop)]


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

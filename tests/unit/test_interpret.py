"""The interpret executor on hand-written kernel files: shuffled programs, poisoned buffers, bf16 dots, and its one precondition."""

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from lamella.errors import DeviceError, ManifestError
from lamella.runtime.executor import make_executor
from lamella.runtime.interpret import InterpretExecutor, interpreting
from lamella.runtime.manifest import Manifest
from tests.unit import tiny_program

ROWS = 8
HEADER = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
SOURCES = {
    # Each program writes its own element: correct in any order.
    "double": HEADER + "def double(x, out):\n    i = tl.program_id(0) * 4 + tl.program_id(1)\n    tl.store(out + i, 2 * tl.load(x + i))\n",
    # Each program reads its left neighbour's element, which that neighbour overwrites: correct only from right to left.
    "shift": HEADER + "def shift(x, out):\n    i = tl.program_id(0)\n    tl.store(out + i, tl.load(x + tl.maximum(i, 1) - 1))\n",
    "dot": HEADER
    + "def dot(x, w, out, DOT: tl.constexpr = tl.bfloat16):\n"
    + "    i = tl.arange(0, 16)\n    places = i[:, None] * 16 + i[None, :]\n"
    + "    a, b = tl.load(x + places).to(DOT), tl.load(w + places).to(DOT)\n"
    + "    tl.store(out + places, tl.dot(a, tl.trans(b), input_precision='ieee'))\n",
}
BODIES = {
    "double": {"args": 1, "ops": [["tile.map", [0, 0], {"kind": "add"}, [1]]], "yields": [1]},
    "shift": {"args": 1, "ops": [["tile.cast", [0], {"dtype": "f32"}, [1]]], "yields": [1]},
    "dot": {"args": 2, "ops": [["tile.contract", [0, 1], {}, [2]]], "yields": [2]},
}


def executor(
    launches: list[dict[str, Any]],
    inputs: dict[str, tuple[str, list[int]]],
    out: dict[str, Any],
    arena: int,
    kernels: Any = SOURCES,
    **options: Any,
) -> InterpretExecutor:
    """An interpret executor over one bucket of the given launches."""
    data = tiny_program.manifest([(1, 1, 1, 1, False)])
    data["kernels"] = {name: {"file": f"kernels/{name}.py", "inputs": body["args"], "body": body} for name, body in BODIES.items()}
    data["buckets"][0] |= {
        "arena_bytes": arena,
        "inputs": [{"name": name, "dtype": dtype, "shape": shape} for name, (dtype, shape) in inputs.items()],
        "outputs": [{"name": "out", "ref": out}],
        "launches": launches,
    }
    made = make_executor(Manifest.from_json(data), {}, executor="interpret", device="cpu", kernels=kernels, **options)
    assert isinstance(made, InterpretExecutor)
    return made


def arena(offset: int) -> dict[str, Any]:
    return {"pool": "arena", "offset": offset, "dtype": "f32", "shape": [ROWS]}


X = tiny_program.given("x")


def run(launches: list[dict[str, Any]], **options: Any) -> torch.Tensor:
    """The output, at offset 32, for x = 0 … 7."""
    made = executor(launches, {"x": ("f32", [ROWS])}, arena(32), 64, **options)
    bucket = made.manifest.buckets[0]
    made.inputs(bucket)["x"].copy_(torch.arange(ROWS))
    made.launch(bucket)
    return made.output(bucket, "out").clone()


DOUBLE = {"kernel": "double", "grid": [2, 4, 1], "args": [X, arena(0)]}


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_independent_programs_give_the_same_in_any_order(seed: int | None) -> None:
    launches = [DOUBLE, {"kernel": "double", "grid": [2, 4, 1], "args": [arena(0), arena(32)], "dead": [[0, 32]]}]
    assert run(launches, shuffle_seed=seed).tolist() == [4.0 * i for i in range(ROWS)]


def test_a_race_across_programs_shows_in_shuffled_order() -> None:
    launches = [
        {"kernel": "double", "grid": [2, 4, 1], "args": [X, arena(32)]},
        {"kernel": "shift", "grid": [ROWS, 1, 1], "args": [arena(32), arena(32)]},
    ]
    results = {tuple(run(launches, shuffle_seed=seed).tolist()) for seed in range(4)}
    assert len(results) > 1


def test_every_program_runs_once() -> None:
    made = executor([DOUBLE], {"x": ("f32", [ROWS])}, arena(0), 32)
    bucket = made.manifest.buckets[0]
    for seed in range(3):
        made._order = Random(seed)  # pyright: ignore[reportPrivateUsage]
        made.inputs(bucket)["x"].copy_(torch.arange(ROWS) + seed)
        made.launch(bucket)
        assert made.output(bucket, "out").tolist() == [2.0 * (i + seed) for i in range(ROWS)]


def test_a_value_that_is_dead_reads_as_nan() -> None:
    launches = [{**DOUBLE, "dead": [[0, 16]]}, {"kernel": "double", "grid": [2, 4, 1], "args": [arena(0), arena(32)]}]
    out = run(launches)
    assert out[:4].isnan().all()
    assert out[4:].tolist() == [16.0, 20.0, 24.0, 28.0]


def test_kernels_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / "kernels" / f"{name}.py").write_text(text)
    launches = [{"kernel": "double", "grid": [2, 4, 1], "args": [X, arena(32)]}]
    assert run(launches, kernels=tmp_path).tolist() == [2.0 * i for i in range(ROWS)]


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ({"double": SOURCES["double"]}, "kernel 'shift' has no source text"),
        ({**SOURCES, "dot": SOURCES["double"]}, "defines no kernel 'dot'"),
        ("/nowhere", "kernel 'double' has no file"),
    ],
)
def test_missing_kernels(kernels: Any, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        run([DOUBLE], kernels=kernels)


def test_bf16_dots_are_widened() -> None:
    out = {"pool": "arena", "offset": 0, "dtype": "f32", "shape": [16, 16]}
    shapes = {"x": ("bf16", [16, 16]), "w": ("bf16", [16, 16])}
    made = executor([{"kernel": "dot", "grid": [1, 1, 1], "args": [X, tiny_program.given("w"), out]}], shapes, out, 1024)
    bucket = made.manifest.buckets[0]
    x, w = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    made.inputs(bucket)["x"].copy_(x)
    made.inputs(bucket)["w"].copy_(w)
    made.launch(bucket)
    torch.testing.assert_close(made.output(bucket, "out"), x.float() @ w.float().T, rtol=1e-5, atol=1e-5)


def test_a_process_that_compiles_cannot_interpret() -> None:
    assert interpreting()
    code = (
        "import os; os.environ.pop('TRITON_INTERPRET', None); import triton.language\n"
        "from lamella.errors import DeviceError\n"
        "from lamella.runtime.interpret import enter_interpreter\n"
        "try: enter_interpreter()\n"
        "except DeviceError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set TRITON_INTERPRET=1 before the first import of triton" in result.stdout


def test_a_process_decides_by_itself_when_triton_is_not_imported() -> None:
    code = (
        "import os; os.environ.pop('TRITON_INTERPRET', None)\n"
        "from lamella.runtime.interpret import enter_interpreter, interpreting\n"
        "enter_interpreter(); print(interpreting())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_cuda_executor_without_a_gpu() -> None:
    with pytest.raises(DeviceError, match="there is no CUDA GPU here"):
        make_executor(Manifest.from_json(tiny_program.manifest()), {}, executor="cuda", kernels=SOURCES)

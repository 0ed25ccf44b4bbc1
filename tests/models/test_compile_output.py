"""What `lamella compile` leaves on disk: numbered IR that lamella-opt prints unchanged, kernels that stand alone, figures of each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lamella.pipeline import stage_names
from lamella.runtime.manifest import load
from lamella.tools import cli, opt
from tests.models.model_files import write_config

LLAMA_1B = Path(__file__).parents[2] / "benchmarks" / "models" / "llama-3.2-1b.json"

IMPORT_ALL = """
import importlib.util, json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    spec = importlib.util.spec_from_file_location(f"alone_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(path.stem, hasattr(module, path.stem), len(module.SIGNATURE), module.NUM_WARPS)
print("lamella" in sys.modules)
"""


@dataclass(frozen=True)
class Output:
    """A folder that `lamella compile` wrote, and what it printed."""

    folder: Path
    text: str

    @property
    def kernels(self) -> list[Path]:
        return sorted((self.folder / "kernels").glob("*.py"))

    @property
    def ir(self) -> list[Path]:
        return sorted(self.folder.glob("*.mlir"))


def compile_(config: Path, folder: Path, *options: str) -> Output:
    """Run the command in a process of its own, as a user does, without Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "lamella.tools.cli", "compile", str(config), "--random-weights", "0", "-o", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return Output(folder, done.stdout)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Output:
    """A tiny model, compiled for decode and for 16 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    return compile_(write_config(folder, num_hidden_layers=4), folder / "out", "--tokens", "1,16", "--time-passes")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Output:
    """Llama-3.2-1B's decode step, cross-compiled. One layer has the kernels of all sixteen."""
    folder = tmp_path_factory.mktemp("llama")
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(LLAMA_1B.read_text()), "num_hidden_layers": 1}))
    return compile_(config, folder / "out", "--tokens", "1", "--arch", "sm_90")


def test_files_of_every_stage(tiny: Output) -> None:
    first, *others = stage_names()
    expected = [f"01-{first}.mlir", *(f"{n:02}-{name}.{bucket}.mlir" for n, name in enumerate(others, 2) for bucket in ("t1", "t16"))]
    assert [path.name for path in tiny.ir] == expected
    assert sorted(p.name for p in tiny.folder.iterdir() if p.suffix != ".mlir") == ["kernels", "ledger.json", "manifest.json"]
    manifest = load(tiny.folder)
    assert {kernel.file for kernel in manifest.kernels.values()} == {f"kernels/{path.name}" for path in tiny.kernels}
    assert [(b.tokens, b.advance) for b in manifest.buckets] == [(1, True), (16, False)]
    launched = {launch.kernel for bucket in manifest.buckets for launch in bucket.launches}
    assert launched == set(manifest.kernels)


@pytest.mark.parametrize("which", ["tiny", "llama"])
def test_lamella_opt_prints_every_stage_unchanged(which: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    output: Output = request.getfixturevalue(which)
    for path in output.ir:
        stage = re.sub(r"^\d+-|\.t\d+$", "", path.stem)
        assert opt.main([str(path), "--legal", stage]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out == path.read_text(), path.name


@pytest.mark.parametrize("which", ["tiny", "llama"])
def test_kernels_import_alone(which: str, request: pytest.FixtureRequest) -> None:
    output: Output = request.getfixturevalue(which)
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "PYTHONPATH")}
    command = [sys.executable, "-I", "-c", IMPORT_ALL, str(output.folder / "kernels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    *kernels, loaded = done.stdout.splitlines()
    assert loaded == "False", "a kernel file imported the compiler"
    manifest = load(output.folder)
    assert len(kernels) == len(manifest.kernels)
    for line in kernels:
        name, found, arguments, warps = line.split()
        assert found == "True"
        assert int(arguments) >= manifest.kernels[name].inputs + 1
        assert int(warps) == manifest.kernels[name].num_warps


def test_the_decode_step_of_llama_spills_nothing(llama: Output) -> None:
    header, *rows = [line for line in llama.text.splitlines() if line.startswith("  ")]
    assert header.split() == ["kernel", "launches", "warps", "registers", "spills", "shared", "memory", "made", "of"]
    figures = {}
    for row in rows:
        name, _, warps, registers, spills, unit, shared, shared_unit, _ = row.split(maxsplit=8)
        assert (unit, shared_unit in ("B", "KiB")) == ("B", True)
        figures[name] = (int(warps), int(registers), int(spills), float(shared))
    assert set(figures) == {path.stem for path in llama.kernels}
    assert {name: spills for name, (_, _, spills, _) in figures.items() if spills} == {}
    # A program's registers must fit the 65,536 of a multiprocessor.
    assert all(0 < registers * warps * 32 <= 65536 for warps, registers, _, _ in figures.values())
    assert any(shared for *_, shared in figures.values())


def test_a_decode_layer_is_at_most_six_launches(llama: Output) -> None:
    (bucket,) = load(llama.folder).buckets
    in_layer = [launch for launch in bucket.launches if launch.loc.startswith("layers.0")]
    assert 1 <= len(in_layer) <= 6
    assert bucket.max_live_bytes <= bucket.arena_bytes <= bucket.buffer_bytes


def test_inner_layers_share_kernels(tiny: Output) -> None:
    for bucket in load(tiny.folder).buckets:
        first, second = ([x.kernel for x in bucket.launches if x.loc.startswith(f"layers.{layer}")] for layer in (1, 2))
        assert first == second != []


def test_times_of_passes_are_printed(tiny: Output) -> None:
    rows = dict(re.findall(r"^  ([a-z-]+) +(\d+\.\d{3})$", tiny.text, re.MULTILINE))
    assert {"fuse-regions", "plan-memory", "tile-to-kernel", "all"} <= set(rows)
    seconds = [float(value) for name, value in rows.items() if name != "all"]
    assert seconds == sorted(seconds, reverse=True)
    assert abs(sum(seconds) - float(rows["all"])) < 0.001 * len(seconds)


def test_the_ledger_tells_of_every_launch(tiny: Output) -> None:
    ledger = json.loads((tiny.folder / "ledger.json").read_text())
    for bucket, name in zip(load(tiny.folder).buckets, ("t1", "t16"), strict=True):
        regions = [r for r in ledger if r["verdict"] == "region" and r["bucket"] == name]
        assert [r["kernel"] for r in regions] == [launch.kernel for launch in bucket.launches]
        chosen = [r["region"] for r in ledger if r["verdict"] == "chosen" and r["bucket"] == name]
        assert chosen == [r["region"] for r in regions]


def test_the_same_input_gives_the_same_files(tiny: Output, tmp_path: Path) -> None:
    again = compile_(write_config(tmp_path, num_hidden_layers=4), tmp_path / "out", "--tokens", "1,16")
    for path in (*tiny.ir, *tiny.kernels, tiny.folder / "manifest.json", tiny.folder / "ledger.json"):
        assert (again.folder / path.relative_to(tiny.folder)).read_text() == path.read_text(), path.name


def test_until_stops_early_and_replaces_an_earlier_output(tiny: Output, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compile", str(write_config(tmp_path)), "--random-weights", "0", "--tokens", "1", "-o", str(tmp_path / "out")]
    assert cli.main(args) == 0
    assert (tmp_path / "out" / "kernels").is_dir()
    assert cli.main([*args, "--until", "tiles"]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["01-model.mlir", "02-specialized.mlir", "03-tiles.mlir", "ledger.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "out"]
    assert "IR of 3 stages, 0 kernels" in capsys.readouterr().out

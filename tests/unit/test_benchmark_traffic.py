"""Bytes that kernels read, counted by Nsight Compute: its table is read as it is printed, a step is compared kernel by kernel, mistakes are one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import nsight
from benchmarks.__main__ import app
from benchmarks.configurations import configuration
from benchmarks.dram import Shapes, add_kind, compared
from benchmarks.nsight import Counted, find_ncu, parse, profiled
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.traffic import launch_reads, launch_traffic
from lamella.errors import DeviceError, LamellaError
from lamella.frontends import open_model
from lamella.program import Shape, compile_model
from lamella.runtime.manifest import DTYPE_BYTES

CPU = torch.device("cpu")
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name",'
    '"Metric Name","Metric Unit","Metric Value"'
)
PREAMBLE = """==PROF== Connected to process 4711 (/usr/bin/python3.11)
==PROF== Profiling "t1_gemv_0": 0%....50%....100% - 2 passes
t1_gemv_0: text of the application, 12 of 30
==PROF== Disconnected from process 4711
"""
RESTRICTED = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0. For"
    " instructions on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
PROFILER = '''#!{python}
"""Does what ncu does with its arguments: runs the command, and writes a table of launches that read a hundredth more than they should."""
import json, subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
assert sys.argv[sys.argv.index("--profile-from-start") + 1] == "off" and "--csv" in sys.argv
command = sys.argv[sys.argv.index({python!r}):]
code = subprocess.run(command).returncode
if code:
    print(f"==ERROR== The application returned an error code ({{code}}).")
    sys.exit(code)
lines = ["==PROF== Connected to process 1 (python)", {header!r}]
for i, one in enumerate(json.load(open(command[command.index("--output") + 1]))["launches"]):
    read = one["read"] * 101
    for name, unit, value in (("dram__bytes_read.sum", "byte", f"{{read // 100:,}}"), ("dram__bytes_write.sum", "byte", "0"),
                              ("gpu__time_duration.sum", "nsecond", "2,048")):
        where = ["1", "python3.11", "127.0.0.1", one["kernel"], "1", "7", "(128, 1, 1)", "(64, 1, 1)", "0", "9.0", "Command line profiler metrics"]
        lines.append(",".join(f'"{{x}}"' for x in [i, *where, name, unit, value]))
open(log, "w").write("\\n".join(lines))
'''


def row(number: int, kernel: str, metric: str, unit: str, value: str) -> str:
    return (
        f'"{number}","4711","python3.11","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(2048, 1, 1)","0","9.0","Command line profiler metrics",'
        f'"{metric}","{unit}","{value}"'
    )


def rows(number: int, kernel: str, read: str, written: str = "0", time: str = "2,048", unit: str = "byte") -> list[str]:
    metrics = (("dram__bytes_read.sum", unit, read), ("dram__bytes_write.sum", unit, written), ("gpu__time_duration.sum", "nsecond", time))
    return [row(number, kernel, *metric) for metric in metrics]


def script(folder: Path, text: str) -> Path:
    file = folder / "ncu"
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_the_table_is_read_between_what_else_is_printed() -> None:
    """Thousands with commas or without, names with and without parameters, units as several versions print them, launches in order."""
    text = [*PREAMBLE.splitlines(), HEADER]
    text += [*rows(0, "t1_gemv_0", "33,558,528", "1,024"), "==WARNING== nothing that matters"]
    text += rows(1, "t1_row_0(const float *, float *)", "4096") + rows(10, "t1_gemv_0", "33.5", "0", unit="Mbyte")
    assert parse(text) == [
        Counted("t1_gemv_0", 33_558_528, 1024, 2048),
        Counted("t1_row_0", 4096, 0, 2048),
        Counted("t1_gemv_0", 33.5e6, 0, 2048),
    ]
    assert parse(PREAMBLE.splitlines()) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([row(0, "k", "dram__bytes_read.sum", "", "n/a")], "counted no bytes or times, got n/a"),
        ([row(0, "k", "dram__bytes_read.sum", "furlong", "1")], "counted no bytes or times, got 1 furlong"),
        (rows(3, "k", "1")[:2], r"k: Nsight Compute counted no gpu__time_duration.sum"),
        (['"3","k"'], "table that is not known"),
    ],
)
def test_a_table_without_the_counters_is_one_line(lines: list[str], message: str) -> None:
    with pytest.raises(LamellaError, match=message):
        parse([HEADER, *lines])


def test_ncu_is_found_where_installers_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DeviceError, match=r"Nsight Compute is not installed here, expected ncu on the PATH or in .*usr/local/cuda\*/bin/ncu"
    ):
        find_ncu(root=tmp_path)
    with pytest.raises(DeviceError, match="no such command"):
        find_ncu(tmp_path / "nowhere")
    for version in ("2025.1.0", "2025.3.1"):
        (tmp_path / "opt/nvidia/nsight-compute" / version).mkdir(parents=True)
        latest = script(tmp_path / "opt/nvidia/nsight-compute" / version, "#!/bin/sh\n")
    assert find_ncu(root=tmp_path) == latest
    (tmp_path / "usr/local/cuda-13.0/bin").mkdir(parents=True)
    assert find_ncu(script(tmp_path / "usr/local/cuda-13.0/bin", "#!/bin/sh\n")).parent.name == "bin"
    on_the_path = script(tmp_path, "#!/bin/sh\n")
    assert find_ncu(root=tmp_path) == on_the_path


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (f"echo '{RESTRICTED}'; exit 1", DeviceError, "may not read the counters of this GPU, got ERR_NVGPUCTRPERM .*root"),
        ("echo '==PROF== Connected'; echo '==WARNING== No kernels were profiled.'", LamellaError, "counted no launch, got No kernels were"),
        (
            "echo 'error: there is no CUDA GPU here' >&2; echo '==ERROR== The application returned 2'; exit 2",
            LamellaError,
            "got there is no",
        ),
        ("exit 9", LamellaError, "the profiled step failed, got exit code 9"),
    ],
)
def test_what_the_profiler_dies_of_is_one_line(tmp_path: Path, text: str, kind: type[LamellaError], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        profiled(script(tmp_path, f"#!/bin/sh\n{text}\n"), ["true"], tmp_path)
    assert "\n" not in str(raised.value)


def test_without_a_gpu_or_a_kind_the_command_says_so(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["traffic", "--config", "tiny", "--device", "cpu", "-o", str(tmp_path / "new.json")])
    assert said.exit_code == 2 and said.output == "error: bytes are counted by a GPU, got cpu (use --device cuda)\n"
    assert not (tmp_path / "new.json").exists()
    assert CliRunner().invoke(app, ["traffic", "--config", "tiny", "--device", "cpu", "--quantize", ","]).exit_code == 2


def launch(kernel: str, read: int, weights: int = 0) -> dict[str, Any]:
    return {"kernel": kernel, "read": read, "weights": weights, "written": 512, "made_of": "contract"}


def test_kernels_are_compared_by_the_median_of_their_launches() -> None:
    report = Report("traffic", CPU, {"config": "tiny"})
    large = 4_000_000
    expected = [launch("a", large, large - 4096), launch("b", 2048), launch("a", large, large - 4096), launch("c", 10), launch("a", large)]
    counted = [Counted("a", x * large, 0, 1000) for x in (1.02, 3, 1.01)] + [Counted("b", 8192, 256, 2000), Counted("memset", 1, 1, 1)]
    add_kind(report, "int8", expected, counted)
    a, b, c, whole = report.rows
    assert (a["name"], a["launches"], a["expected_kb"], a["weights_kb"]) == ("int8 a", 3, 4000, 3995.904)
    assert a["ratio"] == pytest.approx(1.02) and a["gb_s"] == pytest.approx(4080) and a["us"] == 1
    assert b["ratio"] == 4 and b["written_kb"] == 0.256 and b["expected_written_kb"] == 0.512
    assert c["error"] == "1 launches, of which 0 were counted"
    # The small kernel is four times off, and is not what counts; what was not counted is not in the sum.
    assert whole["worst"] == pytest.approx(1.02) and whole["other_kernels"] == ["memset"]
    assert whole["expected_kb"] == pytest.approx(12_002.048) and whole["ratio"] == pytest.approx((5.03 * large + 8192) / (3 * large + 2048))


def test_what_a_launch_reads_is_its_traffic_without_what_it_stores() -> None:
    """By pools: of the projection that reads the norm's input, its own weights, and nothing but weights and x."""
    with configuration("tiny", 1) as path:
        config = open_model(path, random_weights=0).config
    manifest = compile_model(config, [Shape.decode()], dtype="bf16", max_context=64).manifest
    assert manifest is not None
    bucket = manifest.buckets[0]
    for one in bucket.launches:
        read, moved = launch_reads(manifest, bucket, one, 30), launch_traffic(manifest, bucket, one, 30)
        assert 0 < read.bytes < moved
    ffn = next(x for x in bucket.launches if any(r.name.startswith("layers.0.ffn.gate_proj") for r in x.args))
    read = launch_reads(manifest, bucket, ffn, 30)
    assert read.weights == 2 * 200 * 96 * DTYPE_BYTES["bf16"] and read.bytes == read.weights + 96 * DTYPE_BYTES["bf16"]


def test_a_step_of_each_kind_runs_under_the_profiler(tmp_path: Path) -> None:
    """Under a program that takes ncu's arguments: the step runs in a process of its own, and packed weights are fewer bytes."""
    ncu = script(tmp_path, PROFILER.format(python=sys.executable, header=HEADER))
    output = tmp_path / "result.json"
    with configuration("tiny", 1) as path:
        settings = Settings("tiny", path, CPU, "bfloat16", output=output)
        compared(settings, Shapes(1, 20, 64), ["none", "int8", "int3"], ncu)
        found = json.loads(output.read_text())
        whole = {r["name"]: r for r in found["rows"] if r["name"] in ("none", "int8", "int3")}
        assert whole["none"]["ratio"] == pytest.approx(1.01, abs=2e-3) and whole["none"]["worst"] is None
        assert whole["int8"]["weights_kb"] < 0.7 * whole["none"]["weights_kb"]
        assert whole["int3"]["error"].startswith(
            "the profiled step failed, got unsupported quantization, expected none, int8, int4, fp8, keep, got int3"
        )
        assert found["dtype"] == "bf16" and found["shape"] == {"batch": 1, "context": 20, "max_context": 64} and found["config"] == "tiny"
        kernels = [r for r in found["rows"] if r["name"].startswith("int8 ")]
        assert sum(r["launches"] for r in kernels) == whole["int8"]["launches"] and not any("error" in r for r in kernels)
        assert any("dequantize contract" in r["made_of"] for r in kernels)
        with pytest.raises(LamellaError, match="the profiled step failed"):
            compared(settings, Shapes(1, 60, 20), ["none"], ncu)


def test_metrics_are_those_the_command_asks_for(tmp_path: Path) -> None:
    ncu = script(tmp_path, '#!/bin/sh\necho "$@" > asked\nexit 1\n')
    with pytest.raises(LamellaError):
        profiled(ncu, ["python", "-m", "x"], tmp_path)
    asked = (tmp_path / "asked").read_text()
    assert (
        "--clock-control none --metrics dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum --csv --print-units base" in asked
    )
    assert asked.endswith("python -m x\n") and nsight.PERMISSION not in asked

"""The report: floors and bounds by hand, occupancy as CUDA counts it, tables, JSON, and pictures in which nothing overlaps."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lamella import api
from lamella.errors import ManifestError
from lamella.passes.device import Device, device
from lamella.program import Program, Shape
from lamella.runtime.manifest import Bucket, Launch, Manifest, Ref
from lamella.tools.cli import main
from lamella.tools.costs import Cost, step_cost
from lamella.tools.layer_picture import layer_picture, operations
from lamella.tools.measured import layer, read_measured, work_of
from lamella.tools.pictures import Buffer, arena_picture, buffers, columns, parameter_names
from lamella.tools.report_files import ModelReport, short_name
from lamella.tools.roofline import (
    StepWork,
    Time,
    access_lines,
    layer_of,
    microseconds,
    occupancy,
    place_of,
    places,
    step_work,
    time_of,
    triage,
)
from lamella.tools.svg import NAMESPACE, fitting, text_width

CONFIG = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "tiny.json"
H200 = device("sm_90")
ROUND = Device("sm_00", 100, 1e12, 2e12, 1.0, 227 * 1024, 1 << 20, {"bf16": 1e15, "f32": 1e13})
"""A megabyte takes a microsecond, and half of one from the cache."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Seven layers, so that the pictures leave some out; decode, prefill, and decode of several sequences."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(json.loads(CONFIG.read_text()) | {"num_hidden_layers": 7}))
    shapes = (Shape.decode(), Shape.prefill(32), Shape.decode(3))
    return api.compile(path, random_weights=0, dtype="bfloat16", buckets=shapes, max_context=64)


@pytest.fixture(scope="module")
def manifest(program: Program) -> Manifest:
    assert program.manifest is not None
    return program.manifest


# Floors and bounds


def test_a_launch_is_as_slow_as_the_slower_of_moving_and_computing() -> None:
    moving = time_of(Cost(weights=5_000_000, flops={"f32": 10_000_000}), ROUND, 0)
    assert (moving.bandwidth, moving.arithmetic, moving.launches) == pytest.approx((5.0, 1.0, 1.0))
    assert (moving.floor, moving.bound) == (moving.bandwidth, "bandwidth")
    computing = time_of(Cost(weights=1_000_000, flops={"bf16": 7_000_000_000}), ROUND, 0)
    assert (computing.floor, computing.bound) == (pytest.approx(7.0), "arithmetic")
    assert time_of(Cost(inputs=4), ROUND, 0).bound == "launches"


def test_activations_come_from_the_cache_where_the_arena_fits() -> None:
    cost = Cost(weights=1_000_000, activations=4_000_000)
    assert time_of(cost, ROUND, 1 << 20).bandwidth == pytest.approx(2.5)
    assert time_of(cost, ROUND, (1 << 20) + 1).bandwidth == pytest.approx(5.0)
    assert time_of(replace(cost, activations=0), ROUND, 0).bandwidth == pytest.approx(1.0)


def test_a_step_adds_up(manifest: Manifest) -> None:
    for bucket in manifest.buckets:
        work = step_work(manifest, bucket, H200, 40)
        assert work.context == (40 if bucket.longest_query == 1 else 32)
        assert sum(k.launches for k in work.kernels) == len(bucket.launches)
        assert work.cost == step_cost(manifest, bucket, work.context)
        assert work.floor >= max(work.time.bandwidth, work.time.arithmetic) * (1 - 1e-9)
        assert work.time.bound == "launches"


def test_triage_names_the_largest() -> None:
    bucket = Bucket(1, 1, 1, 1, 0, (), (), ())

    def sentence(*time: float) -> str:
        return triage(StepWork(bucket, 1, (), Cost(), Time(*time), Time(*time).floor))

    text = sentence(500.0, 20.0, 97.2)
    assert text == "bound by bandwidth, 500 us for 0 launches, beside launches 97.2 us and arithmetic 20 us; no step is faster than 500 us"
    assert sentence(5.0, 20.0, 9.0).startswith("bound by arithmetic, 20 us")
    assert sentence(5.0, 2.0, 9.0).startswith("bound by launches, 9 us")


def test_microseconds() -> None:
    texts = [microseconds(v) for v in (0.001, 0.0123, 1.5, 99.96, 1402.3, 12345.0)]
    assert texts == ["<0.01 us", "0.0123 us", "1.5 us", "100 us", "1402 us", "12.3 ms"]


def test_places_merge_layers() -> None:
    assert places(["embed", "layers.0.ffn", "layers.1.ffn", "layers.3.ffn", "", "layers.0.attn"]) == (
        "embed",
        "layers.0-1,3.ffn",
        "layers.0.attn",
    )


def test_a_launch_across_layers_counts_to_the_one_whose_weights_it_takes() -> None:
    weight, other = Ref("weight", "layers.4.ffn.down_proj"), Ref("weight", "layers.5.attn_norm")
    across = Launch("k", (1,), (Ref("arena"), weight, other), loc="layers")
    assert (layer_of(across), place_of(across)) == (4, "layers.4")
    assert (layer_of(replace(across, loc="layers.5.attn")), place_of(replace(across, loc="layers.5.attn"))) == (5, "layers.5.attn")
    assert layer_of(Launch("k", (1,), (Ref("cache", layer=2),))) == 2
    alone = Launch("k", (1,), (Ref("weight", "embed"),), loc="embed")
    assert (layer_of(alone), place_of(alone)) == (None, "embed")


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs", "limit"),
    [
        (32, 0, 8, 8, "registers"),
        (16, 0, 8, 8, "threads"),
        (40, 0, 8, 6, "registers"),
        (128, 0, 8, 2, "registers"),
        (255, 0, 8, 1, "registers"),
        (255, 0, 16, 0, "registers"),
        (32, 227 * 1024, 4, 1, "shared memory"),
        (32, 113 * 1024, 4, 2, "shared memory"),
        (24, 0, 1, 32, "slots"),
    ],
)
def test_occupancy_is_what_the_cuda_calculator_says(registers: int, shared: int, warps: int, programs: int, limit: str) -> None:
    found = occupancy(H200, registers, shared, warps)
    assert (found.programs, found.limit) == (programs, limit)
    assert found.share == programs * warps * 32 / 2048


# Text and JSON


def test_the_text_shows_every_kernel_and_bucket(program: Program, manifest: Manifest) -> None:
    text = ModelReport(manifest, program.kernels, 40, program.accesses).text()
    assert all(len(re.findall(rf"^  {name} ", text, flags=re.MULTILINE)) == 2 for name in manifest.kernels)
    for title in ("Predicted memory with a cache of 120 tokens", "1 token (decode), 40 tokens in the cache", "32 tokens, 32 tokens in"):
        assert title in text
    assert "layers.0-6.attn" in text
    assert len(re.findall(r": bound by launches, ", text)) == 3


def test_json_adds_up(program: Program, manifest: Manifest) -> None:
    found = json.loads(json.dumps(ModelReport(manifest, program.kernels, 40, program.accesses).json()))
    assert found["memory"]["total"] == sum(size for name, size in found["memory"].items() if name != "total")
    for bucket in found["buckets"]:
        assert bucket["bytes"]["total"] == sum(k["bytes"]["total"] for k in bucket["kernels"])
        assert bucket["launches"] == sum(k["launches"] for k in bucket["kernels"])
    assert list(found["kernels"]) == list(manifest.kernels)
    assert all(kernel["accesses"] for kernel in found["kernels"].values())
    assert "registers" not in next(iter(found["kernels"].values()))


def test_accesses_are_lines_of_the_text(program: Program) -> None:
    assert program.accesses.keys() == program.kernels.keys()
    for name, text in program.kernels.items():
        lines = text.splitlines()
        found = access_lines(text)
        assert len(found) == len(program.accesses[name])
        for number, access in zip(found, program.accesses[name], strict=True):
            assert f"tl.{access['op']}({access['pointer']} + " in lines[number - 1]


def test_the_command_writes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    args = ["report", str(CONFIG), "--random-weights", "0", "--tokens", "1", "--max-context", "64", "--context", "20", "-o", str(out)]
    for _ in range(2):
        assert main([*args, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert sorted(p.name for p in out.iterdir()) == ["arena-t1.svg", "layer-t1.svg", "report.json"]
    assert json.loads((out / "report.json").read_text()) == printed
    assert (printed["context"], printed["buckets"][0]["context"]) == (20, 20)
    assert main([*args, "--context", "65"]) == 2
    assert capsys.readouterr().err == "lamella: error: --context: bad context, expected 1 to 64, the longest one, got 65\n"
    (out / "mine").write_text("")
    assert main(args) == 2
    assert "holds other files ('mine')" in capsys.readouterr().err


# Pictures


def texts(root: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """Each text with the box it takes: left, top, right, bottom."""
    out: list[tuple[str, float, float, float, float]] = []
    for element in root.iter(f"{{{NAMESPACE}}}text"):
        x, y, size = (float(element.attrib[name]) for name in ("x", "y", "font-size"))
        text = element.text or ""
        width = text_width(text, size)
        shift = {"start": 0.0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        if "transform" in element.attrib:
            out.append((text, x - size * 0.75, y - width + shift, x + size * 0.2, y + shift))
        else:
            out.append((text, x - shift, y - size * 0.75, x - shift + width, y + size * 0.2))
    return out


def rectangles(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """The outlined rectangles: left, top, right, bottom."""
    found = [e.attrib for e in root.iter(f"{{{NAMESPACE}}}rect") if e.attrib["stroke"] != "none"]
    sizes = [tuple(float(a[name]) for name in ("x", "y", "width", "height")) for a in found]
    return [(x, y, x + width, y + height) for x, y, width, height in sizes]


def meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def check_picture(text: str) -> ElementTree.Element:
    """No text leaves the page or meets another, and no outlined rectangle meets another."""
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    labels = texts(root)
    assert [label for label in labels if label[1] < 0 or label[2] < 0 or label[3] > width or label[4] > height] == []
    assert [(a[0], b[0]) for a, b in combinations(labels, 2) if meet(a[1:], b[1:])] == []
    assert [(a, b) for a, b in combinations(rectangles(root), 2) if meet(a, b)] == []
    return root


def test_the_arena_picture(program: Program, manifest: Manifest) -> None:
    for bucket in manifest.buckets:
        root = check_picture(arena_picture(manifest, bucket, program.kernels))
        labels = [label[0] for label in texts(root)]
        assert [label for label in labels if label.startswith("layer ")] == ["layer 0", "layer 1", "layer 6"]
        assert "2-5 alike" in labels
        assert f"{max(b.offset + b.size for b in buffers(bucket, {})):,}" in labels


def test_the_layer_picture(program: Program, manifest: Manifest) -> None:
    for bucket in manifest.buckets:
        root = check_picture(layer_picture(manifest, bucket, program.kernels))
        labels = [label[0] for label in texts(root)]
        own = [launch.kernel for launch in bucket.launches if layer_of(launch) == 1]
        assert [label.split(",")[0] for label in labels if ", grid " in label] == own
        for start in ("attn.q: contract", "attn.rope_k: rotate", "ffn.activation: silu", "write cache 1", "read cache 1"):
            assert any(label.startswith(start) for label in labels), start
        assert len([label for label in labels if re.fullmatch(r"(attn|ffn)\.\w+_proj[.\w]* [\d.]+ \w*B", label)]) == 7


def test_pictures_without_printed_kernels(manifest: Manifest) -> None:
    root = check_picture(layer_picture(manifest, manifest.buckets[0], {}))
    assert any(re.match(r"buffer \d ", label[0]) for label in texts(root))
    check_picture(arena_picture(manifest, manifest.buckets[0], {}))


def test_pictures_are_deterministic(program: Program, manifest: Manifest) -> None:
    bucket = manifest.buckets[0]
    for draw in (arena_picture, layer_picture):
        assert draw(manifest, bucket, program.kernels) == draw(manifest, bucket, dict(reversed(program.kernels.items())))


def test_buffers_live_from_their_first_use_to_their_death(program: Program, manifest: Manifest) -> None:
    for bucket in manifest.buckets:
        found = buffers(bucket, {name: parameter_names(text) for name, text in program.kernels.items()})
        for a, b in combinations(found, 2):
            overlap = a.offset < b.offset + b.size and b.offset < a.offset + a.size
            assert not (overlap and a.first <= b.last and b.first <= a.last), (a, b)
        live = [sum(b.size for b in found if b.first <= at <= b.last) for at in range(len(bucket.launches) + 1)]
        assert max(live) <= bucket.max_live_bytes <= bucket.arena_bytes
        assert {"x", "logits"} <= {b.name for b in found}
        assert next(b for b in found if b.name == "logits").last == len(bucket.launches)


def test_a_place_used_twice_is_two_buffers() -> None:
    def launch(offset: int, *, dead: bool) -> Launch:
        return Launch("k", (1,), (Ref("arena", offset=offset, dtype="f32", shape=(4,)),), dead=((offset, 16),) if dead else ())

    bucket = Bucket(1, 1, 1, 1, 32, (), (), (launch(0, dead=False), launch(16, dead=True), launch(0, dead=True), launch(0, dead=False)))
    expected = [("a", 0, 0, 2), ("a", 16, 1, 1), ("a", 0, 3, 4)]
    assert [(b.name, b.offset, b.first, b.last) for b in buffers(bucket, {"k": ["a"]})] == expected
    assert isinstance(buffers(bucket, {})[0], Buffer)


def test_layers_that_differ_are_all_shown(manifest: Manifest) -> None:
    bucket = manifest.buckets[0]
    assert len(columns(bucket).hidden) == 4 * sum(layer_of(launch) == 3 for launch in bucket.launches)
    changed = [replace(x, kernel="other") if layer_of(x) == 3 else x for x in bucket.launches]
    assert len(columns(replace(bucket, launches=tuple(changed))).hidden) == 0


def test_the_lines_of_a_kernel() -> None:
    lines = [
        "    w = tl.load(w_ptr)  # ffn.gate: contract",
        "    x = tl.load(x_ptr)  # load",
        "    s = x * x  # ffn_norm: square",
        "    r = tl.sum(s)  # ffn_norm: sum",
        "    y = tl.sum(w * x)  # ffn.gate: contract",
        "    z = y.to(tl.bfloat16)  # ffn.gate: cast",
        "    a = tl.load(t_ptr)  # gather",
        "    t = tl.load(a_ptr)  # embed: gather",
    ]
    assert operations("\n".join(lines)) == ["ffn_norm: square, sum", "ffn.gate: contract", "gather", "embed: gather"]
    halves = ["    if first:", *lines[2:6], "    else:", *lines[2:4]]
    assert operations("\n".join(halves)) == ["ffn_norm: square, sum", "ffn.gate: contract"]


def test_names_of_parameters() -> None:
    text = 'NUM_WARPS = 4\nSIGNATURE = {"x_ptr": "*bf16", "x_out_ptr": "*bf16", "ffn_norm_ptr": "*f32", "x_out_1_ptr": "*bf16"}\n'
    assert parameter_names(text) == ["x", "x", "ffn_norm", "x"]
    assert parameter_names("") == []


def test_files_are_called_after_their_bucket(manifest: Manifest) -> None:
    assert [short_name(bucket, i) for i, bucket in enumerate(manifest.buckets)] == ["t1", "t32", "t3s3"]
    assert short_name(replace(manifest.buckets[0], launches=()), 4) == "bucket4"


def test_texts_are_cut_to_fit() -> None:
    assert fitting("logits", 100, 10) == "logits"
    assert fitting("logits", 4 * 6.1, 10) == "log…"
    assert fitting("logits", 6.1, 10) == ""
    assert text_width(fitting("a rather long text", 50, 11), 11) <= 50


# What kernels took


def result(manifest: Manifest, number: int = 0, **changes: object) -> dict[str, object]:
    """A result of `python -m benchmarks kernels` of a bucket: kernel i took i + 2 us."""
    bucket = manifest.buckets[number]
    counts = Counter(launch.kernel for launch in bucket.launches)
    rows = [
        {"name": name, "launches_a_step": count, "made_of": " ".join(manifest.kernels[name].sources), "us": i + 2.0}
        for i, (name, count) in enumerate(counts.items())
    ]
    shape = {"batch": bucket.sequences, "context": 20} if bucket.advance else {"tokens": bucket.tokens}
    model = {name: getattr(manifest.model, name) for name in ("layers", "hidden", "ffn", "vocabulary")}
    whole = {
        "benchmark": "kernels",
        "device": "a GPU",
        "dtype": manifest.dtype,
        "model": model,
        "shape": shape,
        "rows": rows,
        "step": {"ms": 0.5},
    }
    return whole | changes


def test_what_kernels_took_stands_beside_their_floors(program: Program, manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"benchmark": "all", "sections": [result(manifest), result(manifest, 1), {"benchmark": "decode"}]}))
    found = read_measured(path, manifest)
    decode, prefill, _ = manifest.buckets
    assert list(found) == [decode, prefill] and found[decode].context == 20 and found[prefill].context is None
    names = list(dict.fromkeys(launch.kernel for launch in decode.launches))
    assert found[decode].us == {name: i + 2.0 for i, name in enumerate(names)} and found[decode].step_us == 500.0
    middle = layer(work_of(manifest, decode, found[decode], H200, 64), found[decode], 3)
    own = [launch.kernel for launch in decode.launches if layer_of(launch) == 3]
    assert (middle.launches, middle.us) == (len(own), sum(found[decode].us[name] for name in own)) and 0 < middle.floor_us < middle.us
    report = ModelReport(manifest, program.kernels, 64, measured=found)
    assert "Measured on a GPU: 1 token (decode), 20 tokens in the cache of each sequence" in report.text()
    (step,) = [line.split() for line in report.text().splitlines() if line.startswith("  the step") and "500 us" in line][:1]
    assert step[:5] == ["the", "step", str(len(decode.launches)), "500", "us"]
    entries = report.json()["buckets"]
    assert (
        entries[0]["measured"]["us"] == found[decode].us
        and entries[0]["measured"]["layer"]["us"] == middle.us
        and "measured" not in entries[2]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "f32"}, "was measured with another model, expected dtype bf16, got f32"),
        ({"rows": []}, "was measured with another t1_row_0"),
        ({"shape": {"tokens": 31}}, "has no kernels of this program"),
        ({"benchmark": "decode"}, "has no kernels of this program"),
        ({"step": {}}, "cannot be read as a result of the benchmarks"),
    ],
)
def test_results_of_other_programs_are_refused(manifest: Manifest, tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(result(manifest, **change)))
    with pytest.raises(ManifestError, match=re.escape(message)):
        read_measured(path, manifest)


def test_a_result_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["report", str(CONFIG), "--random-weights", "0", "--tokens", "1", "--max-context", "64", "--measured", str(tmp_path / "no.json")]
    assert main(args) == 2
    assert "cannot be read as a result of the benchmarks" in capsys.readouterr().err

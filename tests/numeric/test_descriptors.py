"""Tiles through tensor descriptors: what they compute equals what the ops mean, on sizes that no tile divides, and only what can be is read so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.ir import SSAValue

from lamella.dialects.attributes import element_type_of
from lamella.dialects.tile import YieldOp
from lamella.errors import ManifestError
from lamella.passes.candidates import candidates
from lamella.passes.device import device
from lamella.passes.schedules import mma_schedule, stages_in_flight
from lamella.passes.tuning import why_not
from lamella.program import Shape, compile_model
from lamella.runtime.descriptors import described
from lamella.runtime.manifest import Descriptor, Kernel, Manifest, Ref
from tests.models.tiny_llama import BASE, BIASED
from tests.numeric.harness import NARROW, Compiled, Graph, agree, compile_function
from tests.numeric.tiny_prefill import SHORT, Options, Prompt

PROMPT = Prompt(97, 100)
ON: Options = {"choose-implementation": {"descriptors": "on", "library": "off", "descriptor-tokens": 1}}
OFF: Options = {"choose-implementation": {"descriptors": "off", "library": "off"}}
ROOT = Path(__file__).resolve().parents[2]


def compiled(graph: Graph, *values: SSAValue, m: int = 128, n: int = 64, options: Options = ON, **schedule: int) -> Compiled:
    """A function whose tiles have `m` tokens and `n` columns, loaded through descriptors if `options` let them."""
    return compile_function(graph.returns(*values), schedules={"mma": {"m": m, "n": n, **schedule}}, pass_options=options)


def blocks(made: Compiled) -> list[dict[int, tuple[int, int]]]:
    """The blocks of each kernel that has descriptors, by argument."""
    return [{d.argument: d.block for d in kernel.descriptors} for kernel in made.manifest.kernels.values() if kernel.descriptors]


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("tokens", "columns", "k", "m"), [(65, 48, 8, 128), (129, 96, 72, 128), (200, 40, 200, 64), (513, 130, 64, 128), (128, 256, 136, 64)]
)
def test_a_product_of_odd_sizes(element: str, tokens: int, columns: int, k: int, m: int) -> None:
    """Tokens, columns and K that no tile divides: what lies outside reads as 0 and is not stored."""
    graph = Graph(x=f"{tokens}x{k}x{element}", w=f"{columns}x{k}x{element}")
    made = compiled(graph, graph.cast(graph.contract(graph["x"], graph["w"]), element_type_of(graph["x"])), m=m)
    piece = 16 if k <= 16 else 64
    assert blocks(made) == [{0: (m, piece), 1: (64, piece)}]
    agree(made, graph.inputs(), 2 * NARROW[element])


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_few_tokens_are_read_through_pointers(tokens: int) -> None:
    graph = Graph(x=f"{tokens}x72xbf16", w="48x72xbf16")
    value = graph.cast(graph.contract(graph["x"], graph["w"]), element_type_of(graph["x"]))
    made = compile_function(graph.returns(value), pass_options=ON)
    assert not blocks(made) and made.skeletons == ["mma" if tokens > 1 else "gemv"]
    agree(made, graph.inputs(), 2 * NARROW["bf16"])


@pytest.mark.parametrize("columns", [256, 130])
def test_norm_gate_and_residual(columns: int) -> None:
    """A norm becomes a region that leaves a number a row; two weights lie side by side, and the residual is added as it comes."""
    graph = Graph(x="200x96xbf16", wg=f"{columns}x96xbf16", wu=f"{columns}x96xbf16", wd=f"96x{columns}xbf16")
    narrow = element_type_of(graph["x"])
    normed = graph.cast(graph.norm(graph.float32(graph["x"])), narrow)
    gate, up = (graph.float32(graph.cast(graph.contract(normed, graph[name]), narrow)) for name in ("wg", "wu"))
    gated = graph.cast(graph.map("mul", graph.map("silu", gate), up), narrow)
    down = graph.float32(graph.cast(graph.contract(gated, graph["wd"]), narrow))
    made = compiled(graph, graph.cast(graph.map("add", down, graph.float32(graph["x"])), narrow))
    assert made.skeletons == ["row", "mma", "mma"]
    # Rows of 130 numbers do not begin at multiples of 16 bytes: the second product stays with pointers.
    assert [len(found) for found in blocks(made)] == ([3, 2] if columns % 8 == 0 else [3])
    norm = next(r for r in made.regions if r.schedule is not None and r.schedule.skeleton.data == "row")
    assert [str(v.type) for v in norm.results] == ["tensor<200x1xf32>"]
    agree(made, graph.inputs(), 3 * NARROW["bf16"])


def test_an_x_that_the_epilogue_reads_too_is_read_through_pointers() -> None:
    graph = Graph(x="130x64xbf16", w="64x64xbf16")
    narrow = element_type_of(graph["x"])
    product = graph.float32(graph.cast(graph.contract(graph["x"], graph["w"]), narrow))
    made = compiled(graph, graph.cast(graph.map("mul", product, graph.float32(graph["x"])), narrow))
    assert made.skeletons == ["mma"] and not blocks(made)
    agree(made, graph.inputs(), 2 * NARROW["bf16"])


@pytest.mark.parametrize("config", [SHORT, replace(BIASED, layers=2)], ids=["base", "biased"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_model_is_as_exact_as_through_pointers(config: object, dtype: str) -> None:
    """Reference and interpreted executor agree, and stay as close to float32 as pointers are, by the rule of 1.5."""
    exact = PROMPT.exact(config)
    plain, made = PROMPT.program(OFF, config, dtype), PROMPT.program(ON, config, dtype)
    assert plain.manifest is not None and made.manifest is not None
    assert not any(kernel.descriptors for kernel in plain.manifest.kernels.values())
    decode, prefill = made.manifest.buckets
    read = [launch for launch in prefill.launches if made.manifest.kernels[launch.kernel].descriptors]
    assert len(read) >= 3 and not any(made.manifest.kernels[launch.kernel].descriptors for launch in decode.launches)
    error = (PROMPT.logits(plain, "reference", config) - exact).abs().max()
    found = {level: PROMPT.logits(made, level, config) for level in ("reference", "interpret")}
    for each in found.values():
        assert (each - exact).abs().max() <= 1.5 * error
    assert (found["reference"] - found["interpret"]).abs().max() <= error
    assert Manifest.from_json(made.manifest.to_json()) == made.manifest


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """The prompt's, through descriptors."""
    made = PROMPT.program(ON).manifest
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("descriptors", "message"),
    [
        ([{"argument": 9, "block": [128, 64]}], "a descriptor of no input"),
        ([{"argument": 0, "block": [128, 64]}, {"argument": 0, "block": [64, 64]}], "a descriptor of no input"),
        ([{"argument": 0, "block": [100, 64]}], "a descriptor of odd blocks"),
        ([{"argument": 0}], "field 'block' is missing"),
    ],
    ids=["no such input", "twice", "odd", "incomplete"],
)
def test_a_manifest_with_a_bad_descriptor_is_refused(descriptors: list[dict[str, object]], message: str, manifest: Manifest) -> None:
    data = manifest.to_json()
    name = next(name for name, kernel in data["kernels"].items() if kernel["descriptors"])
    data["kernels"][name]["descriptors"] = descriptors
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(data)


def test_a_descriptor_of_a_vector_or_of_uneven_rows_is_refused(manifest: Manifest) -> None:
    data = manifest.to_json()
    name = next(name for name, kernel in data["kernels"].items() if kernel["descriptors"])
    launch = next(launch for bucket in data["buckets"] for launch in bucket["launches"] if launch["kernel"] == name)
    x = data["kernels"][name]["descriptors"][0]["argument"]
    for change in ({"shape": [96]}, {"shape": [8, 97]}, {"dtype": "f32", "shape": [8, 8]}):
        launch["args"][x] = {"pool": "arena", "offset": 0, "dtype": "bf16", **change}
        with pytest.raises(ManifestError, match="no descriptor can be made"):
            Manifest.from_json(data)


PTX = """
import json, sys
from pathlib import Path
from lamella.runtime.compile_kernels import compile_kernels, requests
from lamella.runtime.compile_worker import source_of
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.manifest import load
from lamella.tools.cross_compile_worker import resource_usage
from triton import compile, knobs

folder = Path(sys.argv[1])
knobs.cache.dir = sys.argv[2]
manifest = load(folder)
wanted = requests(manifest, KernelFiles(manifest, folder), capability=90)
first, again = compile_kernels(wanted, 1), compile_kernels(wanted, 1)
found = {}
for request in wanted:
    source, target, options = source_of({"data": request.data, "target": request.target}, request.function)
    made = compile(source, target=target, options=options)
    asked = made.asm["ptx"].count("cp.async.bulk.tensor")
    found[request.name] = {"asked": asked, "shared": made.metadata.shared, **resource_usage(made.asm["cubin"])}
print(json.dumps([first, again, found]))
"""


def test_kernels_of_a_large_model_compile_without_spills_and_ask_for_whole_tiles(tmp_path: Path) -> None:
    """At 2048 tokens: tiles of 128 by 256, rotations among them, three in flight, which is what shared memory holds."""
    config = replace(BASE, layers=1, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=4096, vocabulary=256, max_positions=2048)
    made = compile_model(config, [Shape.prefill(2048)], dtype="bf16", max_context=2048)
    assert made.manifest is not None
    wide = {name: text for name, text in made.kernels.items() if made.manifest.kernels[name].descriptors}
    assert len(wide) == 4
    assert {d.block for name in wide for d in made.manifest.kernels[name].descriptors} == {(128, 64), (256, 64)}
    made.save(tmp_path)
    command = [sys.executable, "-W", "ignore", "-c", PTX, str(tmp_path), str(tmp_path / "cache")]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    first, again, found = json.loads(done.stdout.splitlines()[-1])
    assert first == len(made.kernels) and again == 0
    assert {name for name, of in found.items() if of["asked"]} == set(wide)
    for name in wide:
        assert found[name]["spills"] == 0 and found[name]["registers"] <= 240 and 140_000 < found[name]["shared"] <= 232_448


def test_candidates_are_loaded_either_way_and_fit_the_hardware() -> None:
    graph = Graph(x="2048x512xbf16", w="512x512xbf16")
    made = compile_function(graph.returns(graph.cast(graph.contract(graph["x"], graph["w"]), element_type_of(graph["x"]))), pass_options=ON)
    (region,) = made.regions
    ops = [op for op in region.body.block.ops if not isinstance(op, YieldOp)]
    target = device("sm_90")
    model = mma_schedule(ops, target)
    found = candidates(ops, model, 2048, target)
    assert found[0] == model and {schedule.get("descriptors") for schedule in found} == {0, 1}
    assert all(schedule.get("k") <= 64 for schedule in found if schedule.get("descriptors"))
    options = {name: model.get(name) for name in model.options.data}
    assert why_not("mma", options, ops, 2048, target, model) is None
    wide = why_not("mma", {**options, "m": 64, "n": 64, "k": 128}, ops, 2048, target, model)
    assert wide == "k = 128 is more than a descriptor fetches at once"
    swapped = why_not("mma", {**options, "m": 64, "swap": 1}, ops, 2048, target, model)
    assert swapped is not None and "neither swapped nor split" in swapped


def test_tiles_are_as_wide_as_fills_the_device() -> None:
    """Whole waves count: 2048 tokens take 256 columns, few tokens or few weight rows narrower tiles."""
    target = device("sm_90")
    assert [target.tile(2048, columns) for columns in (4096, 6144, 28672, 2048)] == [(128, 256)] * 4
    assert target.tile(512, 4096) == (128, 128) and target.tile(128, 1024) == (128, 32)
    # 96 tiles of 256 columns leave a quarter of the device idle, and 384 small ones next to nothing; one tile of tokens is not halved.
    assert target.tile(512, 6144) == (64, 128) and target.tile(128, 6144)[0] == 128
    # Two products of 64 weight rows each fill the device better and still take longer: their operands pass through shared memory more often.
    assert target.tile(512, 28672) == (128, 128) and target.tile(512, 28672, products=2) == (128, 256)
    described, pointers = (target.tiles_us(2048, 4096, 4096, "bf16", described=way) for way in (True, False))
    assert described is not None and pointers is not None and described < pointers
    assert device("sm_80").tiles_us(2048, 4096, 4096, "bf16", described=True) is None


@pytest.mark.parametrize(
    ("tile", "programs", "stages"), [((128, 256), 96, 4), ((128, 128), 128, 4), ((128, 128), 512, 3), ((64, 128), 384, 3)]
)
def test_loads_run_ahead_as_far_as_shared_memory_lasts(tile: tuple[int, int], programs: int, stages: int) -> None:
    assert stages_in_flight(64 * sum(tile) * 2, programs, device("sm_90")) == stages


def test_a_weight_that_begins_anywhere_is_copied() -> None:
    kernel = Kernel("", 2, {"args": 2, "ops": [], "yields": []}, descriptors=(Descriptor(1, (16, 16)),))
    x, storage = torch.zeros(16, 16), torch.arange(16 * 16 + 1).bfloat16()
    weight = storage[1:].view(16, 16)
    assert weight.data_ptr() % 16
    refs = [Ref("arena"), Ref("weight", "w")]
    kept, made = described(kernel, refs, [x, weight])
    assert kept is x and made.base.data_ptr() % 16 == 0 and torch.equal(made.base, weight)
    assert described(kernel, refs, [x, storage[:-1].view(16, 16)])[1].base.data_ptr() == storage.data_ptr()
    # What a step writes is no weight: a copy would never be written again.
    with pytest.raises(ManifestError, match="argument 1: no descriptor can be made"):
        described(kernel, refs[:1] * 2, [x, weight])

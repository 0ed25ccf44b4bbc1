"""One token times packed weights whose rows are cut into runs: interpreted, against the reference, for every kind of weight that is, and what is not."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import bf16, f16, f32

from lamella.dialects.packing import PackingAttr
from lamella.dialects.tile import DequantizeOp
from lamella.semantics import IMPLEMENTATIONS
from lamella.semantics.quantize import group_by_group
from lamella.tools.cross_compile import cross_compile
from tests.numeric.harness import NARROW, agree, compile_function
from tests.numeric.test_quantized import Packed

KINDS = {
    "int8 rows": ("int8", 0, False),
    "int8 rows, mins": ("int8", 0, True),
    "int8 groups": ("int8", 64, False),
    "int8 groups of 128, mins": ("int8", 128, True),
    "int4 rows": ("int4", 0, False),
    "int4 rows, mins": ("int4", 0, True),
    "int4 groups": ("int4", 128, False),
    "int4 groups of 256, mins": ("int4", 256, True),
    "fp8 rows": ("fp8", 0, False),
}


def columns(kind: str, pieces: int) -> int:
    """K of so many pieces of eight runs."""
    return pieces * (1024 if kind == "int4" else 512)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_rows_that_no_program_divides(name: str, element: str) -> None:
    """21 rows and a sum after: the last program has rows that are not there."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 2)
    spec = (21, k, kind, group, affine)
    g = Packed(x=f"1x{k}x{element}", r="1x21xf32", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.map("add", g.contract(g["x"], g.weight("w", kind, group, k)), g["r"])))
    assert compiled.skeletons == ["gemv"]
    schedule = compiled.regions[0].schedule
    assert schedule is not None
    assert (schedule.get("runs"), schedule.get("warps")) == (8, 1)
    agree(compiled, g.packed_inputs(w=spec), 1e-4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("pieces", [1, 2])
def test_trips_over_columns(name: str, pieces: int) -> None:
    """Six pieces of K in trips of one, or of two; two weights side by side that meet in an epilogue."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 6)
    specs = {n: (10, k, kind, group, affine) for n in ("up", "gate")}
    g = Packed(x=f"1x{k}xbf16", **{a: v for n, spec in specs.items() for a, v in Packed.arguments_for(n, *spec).items()})
    up, gate = (g.contract(g["x"], g.weight(n, kind, group, k)) for n in specs)
    chosen = {"rows": 4, "k": columns(kind, pieces), "warps": 1, "runs": 8}
    compiled = compile_function(g.returns(g.map("mul", g.map("silu", gate), up)), schedules={"gemv": chosen})
    assert compiled.skeletons == ["gemv"]
    agree(compiled, g.packed_inputs(**specs), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_runs_on_a_gpu(name: str, element: str, pieces: int) -> None:
    """The same, compiled, in trips of one piece and of three: what the assembly of `kernel.widen` and the order of a product's columns really are."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 6)
    specs = {n: (21, k, kind, group, affine) for n in ("up", "gate")}
    g = Packed(x=f"1x{k}x{element}", **{a: v for n, spec in specs.items() for a, v in Packed.arguments_for(n, *spec).items()})
    up, gate = (g.contract(g["x"], g.weight(n, kind, group, k)) for n in specs)
    chosen = {"rows": 4, "k": columns(kind, pieces), "warps": 1, "runs": 8}
    compiled = compile_function(g.returns(g.map("mul", gate, up)), schedules={"gemv": chosen})
    given = g.packed_inputs(**specs)
    (expected,) = compiled.expected(given)
    for _ in range(2):
        (found,) = compiled.run(given, "cuda")
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_with_least_values_stay_raised(name: str, element: str) -> None:
    """The sum of x takes off what their bits add, where that is little: halves of bytes in bf16."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 1)
    g = Packed(x=f"1x{k}x{element}", **Packed.arguments_for("w", 8, k, kind, group, affine))
    (text,) = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, group, k)))).sources.values()
    assert ("raised_" in text) == (affine and (kind, element) == ("int4", "bf16"))


@pytest.mark.parametrize("name", ["int4 groups of 256, mins", "int8 groups of 128, mins", "int4 groups", "int8 rows"])
@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("level", ["interpret", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_large_number_among_ones(name: str, element: str, level: str) -> None:
    """What raised numbers add to a product and what is taken off again is many times the result: float32 holds the difference."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 2)
    spec = (21, k, kind, group, affine)
    g = Packed(x=f"1x{k}x{element}", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, group, k))))
    given = g.packed_inputs(w=spec)
    given["x"][0, 77] = 25000.0
    (expected,) = compiled.expected(given)
    (found,) = compiled.run(given, level)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["int8 rows", "int4 groups", "fp8 rows"])
def test_a_norm_inside(name: str) -> None:
    """By hand: the reduction over whole rows, and x computed where products take it."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 2)
    spec = (12, k, kind, group, affine)
    g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", *spec))
    normed = g.cast(g.norm(g.cast(g["x"], f32)), bf16)
    y = g.contract(normed, g.weight("w", kind, group, k))
    forced = '[{"action": "force", "producer": "*", "consumer": "*"}]'
    compiled = compile_function(g.returns(y), pass_options={"fuse-regions": {"policy": forced}})
    assert compiled.skeletons == ["gemv"]
    agree(compiled, g.packed_inputs(w=spec), NARROW["bf16"])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("kind_of_sum", ["squares", "largest"])
@pytest.mark.parametrize("level", ["interpret", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_reductions_beside_products(name: str, pieces: int, kind_of_sum: str, level: str) -> None:
    """A row scale behind two products, of a row that is read for them once: squares by products of x with itself, others number by number; in trips of one piece, and whole rows."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 3)
    specs = {n: (21, k, kind, group, affine) for n in ("up", "gate")}
    g = Packed(x=f"1x{k}xbf16", **{a: v for n, spec in specs.items() for a, v in Packed.arguments_for(n, *spec).items()})
    x = g.cast(g["x"], f32)
    row = g.mean(g.map("square", x)) if kind_of_sum == "squares" else g.reduce("max", g.map("magnitude", x))
    up, gate = (g.map("mul", g.contract(g["x"], g.weight(n, kind, group, k)), g.map("rsqrt", g.map("add", row, 1e-5))) for n in specs)
    chosen = {"rows": 2, "k": columns(kind, pieces), "warps": 1, "runs": 8}
    forced = {"fuse-regions": {"policy": '[{"action": "force", "producer": "*", "consumer": "*"}]'}}
    compiled = compile_function(g.returns(g.map("mul", g.map("silu", gate), up)), schedules={"gemv": chosen}, pass_options=forced)
    assert compiled.skeletons == ["gemv"]
    (source,) = compiled.sources.values()
    assert ("squares = tl.dot" in source) == (kind_of_sum == "squares")
    assert "partial" not in source
    given = g.packed_inputs(**specs)
    (expected,) = compiled.expected(given)
    (found,) = compiled.run(given, level)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("together", [1, 2, 8])
@pytest.mark.parametrize(("kind", "group"), [("int4", 128), ("int4", 256), ("int8", 64), ("int8", 128)])
def test_scales_that_lie_group_by_group(kind: str, group: int, together: int, affine: bool) -> None:
    """As `lay-scales` leaves them, in a loop over K."""
    k = columns(kind, 2)
    spec = (21, k, kind, group, affine)
    arguments = Packed.arguments_for("w", *spec)
    parts = {name: f"{k // group // together}x{21 * together}xf32" for name in arguments if name != "w"}
    g = Packed(x=f"1x{k}xf16", **(arguments | parts))
    w = g.add(DequantizeOp(g["w"], g["w_scale"], g["w_min"] if affine else None, PackingAttr.of(kind, group), by_group=together))
    chosen = {"rows": 2, "k": columns(kind, 1), "warps": 1, "runs": 8}
    compiled = compile_function(g.returns(g.contract(g["x"], w)), schedules={"gemv": chosen})
    assert compiled.skeletons == ["gemv"]
    drawn = Packed(x=f"1x{k}xf16", **arguments).packed_inputs(w=spec)
    agree(compiled, {name: group_by_group(value, together=together) if name in parts else value for name, value in drawn.items()}, 1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_every_number_meets_its_column(name: str) -> None:
    """Each column alone, of a few thousands: what a program reorders it reorders alike in x and in the weight."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 1)
    spec = (2, k, kind, group, affine)
    g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, group, k))))
    given = g.packed_inputs(w=spec)
    parts = [given[n] for n in ("w", "w_scale", "w_min") if n in given]
    w = IMPLEMENTATIONS["tile.dequantize"](*parts, packing={"kind": kind, "group": group or k})
    for column in (0, 1, 7, 8, 15, 16, 63, 64, 127, k // 2 + 5, k - 1):
        given["x"] = torch.zeros(1, k, dtype=torch.bfloat16)
        given["x"][0, column] = 3.0
        found = compiled.run(given)[0]
        assert torch.allclose(found[0], 3.0 * w[:, column], rtol=1e-5, atol=1e-5), column


@pytest.mark.parametrize(
    ("kind", "group", "k", "element"),
    [
        ("int8", 0, 512, "f32"),  # x would be rounded
        ("int8", 0, 576, "bf16"),  # no whole pieces
        ("int8", 32, 512, "bf16"),  # two scales in a run
        ("int4", 64, 1024, "bf16"),
        ("int4", 0, 9216, "bf16"),  # programs share such rows
    ],
)
def test_what_is_not_cut_into_runs(kind: str, group: int, k: int, element: str) -> None:
    spec = (16, k, kind, group, False)
    g = Packed(x=f"1x{k}x{element}", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, group, k))))
    schedule = compiled.regions[0].schedule
    assert schedule is not None and "runs" not in schedule.options.data
    agree(compiled, g.packed_inputs(w=spec), 1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_asked_for_before_the_launch_before_ends(name: str) -> None:
    """x is left by another launch: all weights of a first trip, their scales too, are loaded before the wait, and x after it."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 2)
    spec = (12, k, kind, group, affine)
    g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", *spec))
    made = g.cast(g.map("silu", g.cast(g["x"], f32)), bf16)
    apart = '[{"action": "forbid", "producer": "tile.cast", "consumer": "tile.contract"}]'
    compiled = compile_function(
        g.returns(g.contract(made, g.weight("w", kind, group, k))), pass_options={"fuse-regions": {"policy": apart}}
    )
    assert compiled.skeletons == ["row", "gemv"]
    before, _, after = next(text for kernel, text in compiled.sources.items() if "gemv" in kernel).partition("gdc_wait")
    assert before.count("evict_first") == 2 and "evict_first" not in after
    assert "tl.load(arg_ptr" not in before and after.count("tl.load(arg_ptr") == (8 if kind == "int4" else 4)
    if group or affine:
        assert "tl.load(w_scale_ptr" in before and "tl.load(w_scale_ptr" not in after


@pytest.mark.parametrize(("name", "most"), [("int8 rows", 0), ("fp8 rows", 0), ("int4 groups", 512), ("int4 groups of 256, mins", 512)])
def test_no_weight_passes_through_shared_memory(name: str, most: int) -> None:
    """For sm_90: what threads load is what they multiply, as long as Triton keeps finding that out. Scales of groups, 2 bytes a row, do pass."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 4)
    spec = (64, k, kind, group, affine)
    g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, group, k))))
    (figure,) = cross_compile(compiled.sources, "sm_90", pdl=True)
    assert figure.spills == 0
    assert figure.shared_memory <= most, figure


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4", "bf16"])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_offsets_beyond_31_bits(kind: str, tokens: int) -> None:
    """A head of 600,000 rows of 8192 columns is compiled, not run: its bytes, or numbers, need offsets of 64 bits."""
    arguments = {"w": "600000x8192xbf16"} if kind == "bf16" else Packed.arguments_for("w", 600_000, 8192, kind, 0, False)
    g = Packed(x=f"{tokens}x8192xbf16", **arguments)
    w = g["w"] if kind == "bf16" else g.weight("w", kind, 0, 8192)
    compiled = compile_function(g.returns(g.contract(g["x"], w)))
    assert all("tl.int64" in text for text in compiled.sources.values())


def test_weights_of_other_bits_beside_each_other() -> None:
    """A piece of the one would be two of the other: they are multiplied as before."""
    specs = {"a": (16, 1024, "int4", 128, False), "b": (16, 1024, "int8", 0, False)}
    g = Packed(x="1x1024xf16", **{n: v for a, spec in specs.items() for n, v in Packed.arguments_for(a, *spec).items()})
    y = g.map("mul", *(g.contract(g["x"], g.weight(n, spec[2], spec[3], 1024)) for n, spec in specs.items()))
    compiled = compile_function(g.returns(g.cast(y, f16)))
    schedule = compiled.regions[0].schedule
    assert schedule is not None and "runs" not in schedule.options.data
    agree(compiled, g.packed_inputs(**specs), NARROW["f16"])


@pytest.mark.parametrize("name", KINDS)
def test_products_add_up_where_they_are_made(name: str) -> None:
    """Three pieces of K, unrolled and in trips: the tensor cores add a product to the sums so far, unless a scale comes between."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 3)
    halves = 2 if kind == "int4" else 1
    for pieces in (1, 3):
        g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", 8, k, kind, group, affine))
        chosen = {"rows": 2, "k": columns(kind, pieces), "warps": 1, "runs": 8}
        graph = g.returns(g.contract(g["x"], g.weight("w", kind, group, k)))
        (text,) = compile_function(graph, schedules={"gemv": chosen}).sources.values()
        products = [line for line in text.splitlines() if "tl.dot(" in line and "ones" not in line]
        written = 2 if pieces == 1 else 3
        assert len(products) == written * halves
        assert sum(line.partition("tl.dot(")[2].count(",") == 1 for line in products) == (written if group or affine else 1)


@pytest.mark.parametrize(("rows", "expected"), [(2048, 2), (2112, 4), (4096, 4)])
def test_rows_of_several_trips_are_fewer_where_programs_are(rows: int, expected: int) -> None:
    """Four a program of one warp, unless there is not one for each of the four schedulers of 132 multiprocessors."""
    g = Packed(x="1x8192xbf16", **Packed.arguments_for("w", rows, 8192, "int4", 128, True))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "int4", 128, 8192))))
    schedule = compiled.regions[0].schedule
    assert schedule is not None
    assert (schedule.get("rows"), schedule.get("k"), schedule.get("runs")) == (expected, 4096, 8)


def test_pairs_of_floats_lie_as_products_take_them() -> None:
    """For sm_90, eight bits: x comes in registers side by side, which no instruction has to put there."""
    g = Packed(x="1x4096xbf16", **Packed.arguments_for("w", 64, 4096, "fp8", 0, False))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "fp8", 0, 4096))))
    (figure,) = cross_compile(compiled.sources, "sm_90", pdl=True)
    schedule = compiled.regions[0].schedule
    assert schedule is not None
    numbers = schedule.get("rows") * schedule.get("k") // 32
    # Two instructions a number widen it and one, for eight, multiplies; 2.7 a number in all where pairs lay otherwise.
    assert figure.instructions < 2.65 * numbers, figure

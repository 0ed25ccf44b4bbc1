"""An x of packed words that the launch before stores with its pairs swapped: interpreted, against the reference, from every kind of launch that does."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import torch
from xdsl.dialects import func
from xdsl.dialects.builtin import bf16, f16, f32

from lamella.semantics import IMPLEMENTATIONS
from lamella.tools.cross_compile import KernelResources, cross_compile
from tests.numeric.harness import NARROW, Compiled, agree, compile_function
from tests.numeric.test_quantized import Packed
from tests.numeric.test_runs import KINDS, columns

ELEMENTS = {"bf16": bf16, "f16": f16}
APART = {"fuse-regions": {"policy": '[{"action": "forbid", "producer": "tile.cast", "consumer": "tile.contract"}]'}}


LEVELS = ["interpret", pytest.param("cuda", marks=pytest.mark.gpu)]


def compare(compiled: Compiled, given: Mapping[str, torch.Tensor], tolerance: float, level: str) -> None:
    """The results of a level are those of the ops, but for so much of the largest number."""
    if level == "interpret":
        agree(compiled, given, tolerance)
        return
    for found, expected in zip(compiled.run(given, level), compiled.expected(given), strict=True):
        torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=0, atol=tolerance * float(expected.abs().max()))


def swaps(compiled: Compiled) -> int:
    """Swaps in all regions of a program: two for each value that is stored so, of one reader."""
    return sum(op.name == "tile.swap_pairs" for region in compiled.regions for op in region.body.block.ops)


def test_twice_changes_nothing() -> None:
    swap = IMPLEMENTATIONS["tile.swap_pairs"]
    x = torch.arange(48).reshape(3, 16)
    assert swap(x)[0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    assert torch.equal(swap(swap(x)), x)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("level", LEVELS)
def test_from_rows(name: str, element: str, level: str) -> None:
    """Eight-bit floats are multiplied as they were loaded: their x stays as it is."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 2)
    specs = {n: (rows, k, kind, group, affine) for n, rows in (("v", 21), ("w", 12))}
    g = Packed(x=f"1x{k}x{element}", **{a: v for n, spec in specs.items() for a, v in Packed.arguments_for(n, *spec).items()})
    made = g.cast(g.map("silu", g.cast(g["x"], f32)), ELEMENTS[element])
    compiled = compile_function(g.returns(*(g.contract(made, g.weight(n, kind, group, k)) for n in specs)), pass_options=APART)
    assert compiled.skeletons == ["row", "gemv"]
    assert swaps(compiled) == (0 if kind == "fp8" else 2)
    compare(compiled, g.packed_inputs(**specs), 1e-3, level)


@pytest.mark.parametrize("k", [8192, 9216, 10240])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_from_longer_rows_than_a_program_holds(k: int, norm: bool, level: str) -> None:
    """Rows of more than 8192 columns are divided between programs, or, where all of them are added up first, taken in a loop."""
    spec = (8, k, "int8", 0, False)
    g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", *spec))
    wide = g.cast(g["x"], f32)
    made = g.map("add", wide, g.reduce("max", g.map("exp", wide))) if norm else g.map("silu", wide)
    compiled = compile_function(g.returns(g.contract(g.cast(made, bf16), g.weight("w", "int8", 0, k))), pass_options=APART)
    assert compiled.skeletons[-1] == "gemv"
    assert swaps(compiled) == 2
    compare(compiled, g.packed_inputs(w=spec), 1e-3, level)


@pytest.mark.parametrize(("kind", "group"), [("int4", 128), ("int8", 0), ("fp8", 0), ("bf16", 0)])
@pytest.mark.parametrize("rows", [0, 2, 4, 8])
@pytest.mark.parametrize("level", LEVELS)
def test_from_products(kind: str, group: int, rows: int, level: str) -> None:
    """Programs of as many rows as are chosen (0), or of two, of four, and of all eight whose middle pairs change places."""
    k, width = 1024, 1024
    specs = {"w": (width, k, kind, group, False)} if kind != "bf16" else {}
    after = {"v": (12, width, "int8", 0, False)}
    named = {n: v for a, spec in (specs | after).items() for n, v in Packed.arguments_for(a, *spec).items()}
    g = Packed(x=f"1x{k}xbf16", **({} if specs else {"w": f"{width}x{k}xbf16"}), **named)
    first = g.contract(g["x"], g.weight("w", kind, group, k) if specs else g["w"])
    made = g.cast(g.map("silu", first), bf16)
    graph = g.returns(g.contract(made, g.weight("v", "int8", 0, width)))
    schedule = {"rows": rows, "k": 512 if kind != "int4" else 1024, "warps": 1, **({"runs": 8} if specs else {})}
    compiled = compile_function(graph, schedules={"gemv": schedule} if rows else None)
    assert compiled.skeletons == ["gemv", "gemv"]
    assert swaps(compiled) == 2
    compare(compiled, g.packed_inputs(**specs, **after), NARROW["bf16"], level)


def test_what_others_read_too_stays_as_it_is() -> None:
    """A residual is added to x later, so x is stored in order."""
    spec = (1024, 1024, "int8", 0, False)
    g = Packed(x="1x1024xbf16", **Packed.arguments_for("w", *spec))
    made = g.cast(g.map("silu", g.cast(g["x"], f32)), bf16)
    total = g.map("add", g.contract(made, g.weight("w", "int8", 0, 1024)), g.cast(made, f32))
    compiled = compile_function(g.returns(g.cast(total, bf16)), pass_options=APART)
    assert swaps(compiled) == 0
    agree(compiled, g.packed_inputs(w=spec), NARROW["bf16"])


def test_what_comes_from_outside_stays_as_it_is() -> None:
    spec = (16, 1024, "int8", 0, False)
    g = Packed(x="1x1024xbf16", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "int8", 0, 1024))))
    assert swaps(compiled) == 0


@pytest.mark.parametrize("name", ["int8 rows", "int4 groups", "int4 groups of 256, mins", "fp8 rows"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_a_norm_with_weights_behind_the_product(name: str, apart: bool, level: str) -> None:
    """`columns=true`: the product before leaves the row, and beside it the row times the norm's weight, with swapped pairs; its squares are added up beside the next product."""
    kind, group, affine = KINDS[name]
    k = columns(kind, 2)
    specs = {"v": (k, 512, "int8", 0, False), "w": (12, k, kind, group, affine)}
    named = {a: v for n, spec in specs.items() for a, v in Packed.arguments_for(n, *spec).items()}
    g = Packed(x="1x512xbf16", gamma=f"{k}xbf16", **named)
    row = g.cast(g.contract(g["x"], g.weight("v", "int8", 0, 512)), bf16)
    wide = g.cast(row, f32)
    scale = g.map("rsqrt", g.map("add", g.mean(g.map("square", wide)), 1e-5))
    normed = g.cast(g.cast(g.map("mul", wide, scale), bf16), f32)
    made = g.cast(g.map("mul", normed, g.cast(g["gamma"], f32)), bf16)
    rule = {"action": "forbid" if apart else "force", "producer": "tile.reduce", "consumer": "tile.contract"}
    options: dict[str, dict[str, str | bool]] = {"commute-row-scale": {"columns": True}, "fuse-regions": {"policy": json.dumps([rule])}}
    compiled = compile_function(g.returns(g.contract(made, g.weight("w", kind, group, k)), row), pass_options=options)
    assert compiled.skeletons == ["gemv", *(["row"] if apart else []), "gemv"]
    assert any("squares = tl.dot" in source for source in compiled.sources.values()) is not apart
    assert swaps(compiled) == (0 if kind == "fp8" else 2)
    compare(compiled, g.packed_inputs(**specs), NARROW["bf16"], level)


def product(graph: func.FuncOp) -> KernelResources:
    """What the product of a program takes on an H200."""
    found = cross_compile(compile_function(graph, pass_options=APART).sources, "sm_90", pdl=True)
    return next(figure for figure in found if "gemv" in figure.name)


@pytest.mark.parametrize("name", ["int8 rows", "int4 groups", "int4 groups of 256, mins"])
def test_no_pair_of_x_is_moved(name: str) -> None:
    """For sm_90: two instructions less for each product but those that a register takes anyway, of an x that lies as products take it."""
    kind, group, affine = KINDS[name]
    k = 4096
    graphs: list[func.FuncOp] = []
    for stored in (False, True):
        g = Packed(x=f"1x{k}xbf16", **Packed.arguments_for("w", 64, k, kind, group, affine))
        made = g.cast(g.map("silu", g.cast(g["x"], f32)), bf16)
        graphs.append(g.returns(g.contract(made if stored else g["x"], g.weight("w", kind, group, k))))
    in_order, swapped = map(product, graphs)
    assert swapped.instructions < 0.95 * in_order.instructions
    assert swapped.spills == 0

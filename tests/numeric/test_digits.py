"""Few tokens times weights of bytes and half bytes, digit by digit: interpreted, against the reference, for every form the kernels have."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import f16, f32

from lamella.dialects.packing import PackingAttr
from lamella.dialects.tile import DequantizeOp
from lamella.passes import packed_columns
from lamella.semantics import IMPLEMENTATIONS
from lamella.semantics.quantize import group_by_group
from tests.numeric.harness import agree, compile_function, numbers
from tests.numeric.test_quantized import Packed

KINDS = {
    "int8 rows": ("int8", 0, False),
    "int8 groups": ("int8", 64, False),
    "int8 rows, mins": ("int8", 0, True),
    "int4 rows": ("int4", 0, False),
    "int4 groups": ("int4", 128, False),
    "int4 groups of 64, mins": ("int4", 64, True),
}
SCHEDULE = {"m": 1, "n": 16, "k": 128, "warps": 1, "stages": 3, "swap": 1, "splits": 1, "digits": 3}


@pytest.fixture(autouse=True)
def every_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits for weights of any size: those of tests are too small for it to pay."""
    if not request.node.name.startswith("test_a_small_weight"):
        monkeypatch.setattr(packed_columns, "SMALL", 0)


@pytest.mark.parametrize(("tokens", "kind", "skeleton"), [(1, "int4", "gemv"), (1, "int8", "mma"), (3, "int4", "mma")])
def test_a_small_weight_of_half_bytes_is_taken_apart(tokens: int, kind: str, skeleton: str) -> None:
    spec = (21, 384, kind, 128, True)
    g = Packed(x=f"{tokens}x384xf32", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, 128, 384))))
    assert compiled.skeletons == [skeleton]
    agree(compiled, g.packed_inputs(w=spec), 1e-4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_a_norm_before_and_a_sum_after(name: str, tokens: int, element: str) -> None:
    """384 columns, 21 rows that no tile divides."""
    kind, group, affine = KINDS[name]
    spec = (21, 384, kind, group, affine)
    g = Packed(x=f"{tokens}x384x{element}", r=f"{tokens}x21xf32", **Packed.arguments_for("w", *spec))
    normed = g.cast(g.norm(g.cast(g["x"], f32)), f16) if element == "f16" else g.norm(g["x"])
    y = g.map("add", g.contract(normed, g.weight("w", kind, group, 384)), g["r"])
    compiled = compile_function(g.returns(y))
    # A norm in front of many small steps over K is a launch of its own.
    assert compiled.skeletons == (["row", "mma"] if group == 64 and kind == "int4" else ["mma"])
    schedule = compiled.regions[-1].schedule
    assert schedule is not None
    assert schedule.get("digits") == 3 and schedule.get("m") in (tokens, 4)
    agree(compiled, g.packed_inputs(w=spec), 1e-4 if element == "f32" else 4e-3)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tokens", [1, 3])
def test_programs_that_share_columns(name: str, tokens: int) -> None:
    """1024 columns in four runs, added up by the last program; two weights side by side."""
    kind, group, affine = KINDS[name]
    specs = {n: (40, 1024, kind, group, affine) for n in ("up", "gate")}
    g = Packed(x=f"{tokens}x1024xf32", **{k: v for n, spec in specs.items() for k, v in Packed.arguments_for(n, *spec).items()})
    up, gate = (g.contract(g["x"], g.weight(n, kind, group, 1024)) for n in specs)
    schedule = SCHEDULE | {"m": 1 if tokens == 1 else 4, "splits": 4}
    compiled = compile_function(g.returns(g.map("mul", g.map("silu", gate), up)), schedules={"mma": schedule})
    assert [region.schedule.get("splits") for region in compiled.regions if region.schedule] == [4]
    given = g.packed_inputs(**specs)
    for _ in range(2):
        agree(compiled, given, 1e-4)


@pytest.mark.parametrize("name", ["int8 rows", "int4 groups"])
def test_large_numbers_do_not_drown_small_ones(name: str) -> None:
    """One number of 25,000 in each piece: the others, around 1, are rounded by 2^-20 of it, and no sum overflows."""
    kind, group, affine = KINDS[name]
    spec = (16, 512, kind, group, affine)
    g = Packed(x="1x512xf32", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, group, 512))))
    assert compiled.skeletons == ["mma"]
    given = g.packed_inputs(w=spec)
    given["x"] = given["x"].clone()
    given["x"][0, ::128] = 25000.0
    w = IMPLEMENTATIONS["tile.dequantize"](given["w"], given["w_scale"], packing={"kind": kind, "group": group or 512})
    exact = given["x"].double() @ w.double().T
    found = compiled.run(given)[0].double()
    assert (found - exact).abs().max() <= 25000.0 * 2.0**-20 * w.abs().sum(1).max() * 0.5


def test_zeros_and_the_smallest_numbers() -> None:
    """Pieces of zeros, of denormal numbers and of one number each have exponents too."""
    spec = (16, 256, "int8", 64, False)
    g = Packed(x="1x256xf32", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "int8", 64, 256))))
    given = g.packed_inputs(w=spec)
    x = torch.zeros(1, 256)
    x[0, 64:128], x[0, 130], x[0, 192:] = 1e-42, -3.0, numbers((64,), 5, torch.float32, 1e-20)
    given["x"] = x
    agree(compiled, given, 1e-6)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("tokens", [1, 3, 5, 70])
def test_scales_that_lie_group_by_group(kind: str, affine: bool, tokens: int, together: int) -> None:
    """As `lay-scales` leaves them: one token, digits of a few, tiles of several, and of many."""
    spec = (21, 384, kind, 64, affine)
    arguments = Packed.arguments_for("w", *spec)
    parts = {name: f"{6 // together}x{21 * together}xf32" for name in arguments if name != "w"}
    g = Packed(x=f"{tokens}x384xf32", **(arguments | parts))
    w = g.add(DequantizeOp(g["w"], g["w_scale"], g["w_min"] if affine else None, PackingAttr.of(kind, 64), by_group=together))
    compiled = compile_function(g.returns(g.contract(g.norm(g["x"]), w)))
    assert compiled.skeletons[-1] == "mma"
    drawn = Packed(x=f"{tokens}x384xf32", **arguments).packed_inputs(w=spec)
    agree(compiled, {name: group_by_group(value, together=together) if name in parts else value for name, value in drawn.items()}, 1e-4)


@pytest.mark.parametrize("together", [1, 2, 4])
def test_a_weight_by_group_that_no_contraction_takes_in(together: int) -> None:
    spec = (6, 256, "int4", 64, True)
    arguments = Packed.arguments_for("w", *spec)
    parts = {name: f"{4 // together}x{6 * together}xf32" for name in ("w_scale", "w_min")}
    g = Packed(x="1x256xf32", **(arguments | parts))
    w = g.add(DequantizeOp(g["w"], g["w_scale"], g["w_min"], PackingAttr.of("int4", 64), by_group=together))
    compiled = compile_function(g.returns(g.map("neg", w)))
    drawn = Packed(x="1x256xf32", **arguments).packed_inputs(w=spec)
    agree(compiled, {name: group_by_group(value, together=together) if name in parts else value for name, value in drawn.items()}, 0)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("tokens", [1, 2])
def test_what_is_no_number_stays_none(kind: str, odd: float, tokens: int) -> None:
    """An x that overflowed has digits too; no result may look like a number. The other token's results are untouched."""
    spec = (16, 256, kind, 0, False)
    g = Packed(x=f"{tokens}x256xf32", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", kind, 0, 256))))
    given = g.packed_inputs(w=spec)
    clean = compiled.run(given)[0].clone()
    given["x"] = given["x"].clone()
    given["x"][0, 100] = odd
    found = compiled.run(given)[0]
    assert not found[0].isfinite().any()
    assert torch.equal(found[1:], clean[1:])

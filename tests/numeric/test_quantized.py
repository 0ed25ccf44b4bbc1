"""Packed weights: what their ops mean, and contractions that decode them, interpreted, on sizes that no tile divides."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import bf16
from xdsl.ir import SSAValue

from lamella.checkpoints.packed import half, laid, unpacked
from lamella.dialects.attributes import element_name
from lamella.dialects.packing import PackingAttr
from lamella.dialects.tile import DequantizeOp, GatherColumnsOp
from lamella.runtime.manifest import WeightSpec
from lamella.semantics import IMPLEMENTATIONS, quantize
from lamella.semantics.quantize import pack, unpack
from lamella.tools.tune_timer import numbers_of
from tests.numeric.harness import Graph, agree, compile_function, numbers

KINDS = {
    "int8 rows": ("int8", 0, False),
    "int8 groups": ("int8", 32, False),
    "int8 rows, mins": ("int8", 0, True),
    "int4 rows": ("int4", 0, False),
    "int4 groups": ("int4", 32, False),
    "int4 groups, mins": ("int4", 32, True),
    "fp8 rows": ("fp8", 0, False),
}


@pytest.mark.parametrize("bits", [4, 8])
def test_words_hold_every_number(bits: int) -> None:
    given = torch.randint(0, 1 << bits, (5, 64), generator=torch.Generator().manual_seed(bits))
    for group in (64, 32, 16, 8):
        words = pack(given, bits, group)
        assert words.shape == (5, 64 * bits // 32)
        assert torch.equal(unpack(words, bits, group), given.float())


def test_bytes_hold_signed_numbers_half_a_group_apart() -> None:
    """The layout of docs/quantization.md, bit by bit: 9 stands for 1, 8 for 0, 7 for -1."""
    given = torch.tensor([[9, 10, 11, 12, 13, 14, 15, 7, 1, 2, 3, 4, 5, 6, 7, 8]])
    assert pack(given, 4, 16).view(torch.uint8).tolist() == [[0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7, 0x0F]]
    assert pack(given, 4, 8).view(torch.uint8).tolist() == [[0x51, 0x62, 0x73, 0xF4, 0xD9, 0xEA, 0xFB, 0x0C]]
    assert pack(torch.tensor([[129, 128, 127, 255]]), 8, 4).view(torch.int8).tolist() == [[1, 0, -1, 127]]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("kind", "group"), [("int4", 32), ("int8", 128)])
def test_rounding_is_to_the_nearest(kind: str, group: int, affine: bool, clip: bool) -> None:
    """No weight is further from its number than half a step, unless its range was cut; cutting lowers the squared error."""
    packing = {"kind": kind, "group": group}
    w = numbers((7, 128), 1, torch.float32, 1.0)
    w[2] = 0
    w[3] = 0.25
    made = _quantized(w, packing, affine=affine, clip=clip)
    step = made[1].repeat_interleave(group, 1)
    error = (IMPLEMENTATIONS["tile.dequantize"](*made, packing=packing) - w).abs()
    if clip:
        plain = IMPLEMENTATIONS["tile.dequantize"](*_quantized(w, packing, affine=affine), packing=packing) - w
        assert error.square().sum() <= plain.square().sum()
        assert kind == "int8" or error.square().sum() < 0.95 * plain.square().sum()
    else:
        assert (error <= step * 0.5001 + 1e-6).all()


def test_eight_bit_floats_keep_their_exponents() -> None:
    """Relative to itself no weight is further off than half of the last of four bits, down to where the smallest exponent ends."""
    packing = {"kind": "fp8", "group": 96}
    w = numbers((7, 96), 1, torch.float32, 1.0)
    w[2], w[3], w[4, :48] = 0, -0.25, w[4, 48:] * 2**-6
    words, scales = _quantized(w, packing, affine=False)
    assert words.dtype == torch.float8_e4m3fn
    made = IMPLEMENTATIONS["tile.dequantize"](words, scales, packing=packing)
    assert ((made - w).abs() <= w.abs() / 16 * 1.0001 + scales * 2.0**-10).all()
    assert torch.equal(made[2], w[2]) and torch.equal(made[3], w[3])


def test_no_eight_bit_float_overflows() -> None:
    """A scale that was rounded down leaves the largest weight beyond 448, the largest float there is: it becomes that, not NaN."""
    w = torch.full((1, 16), 448 * 1.001)
    packing = {"kind": "fp8", "group": 16}
    scales = IMPLEMENTATIONS["transformer.group_scales"](w, packing=packing, dtype="bf16")
    assert scales.item() == 1
    words = IMPLEMENTATIONS["transformer.pack_weight"](w, scales, packing=packing)
    assert torch.equal(words.float(), torch.full((1, 16), 448.0))


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_eight_bit_floats_in_every_tile(tokens: int, element: str) -> None:
    """Columns and rows that no tile divides, one token and several, whatever schedule is chosen; all 256 bytes but the two NaN."""
    g = Packed(x=f"{tokens}x300x{element}", **Packed.arguments_for("w", 37, 300, "fp8", 0, False, scales=element))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "fp8", 0, 300))))
    every = torch.arange(37 * 300).to(torch.uint8)
    every[(every & 0x7F) == 0x7F] = 0
    words = every.view(37, 300).view(torch.float8_e4m3fn)
    kind = torch.float32 if element == "f32" else torch.float16
    scales = numbers((37, 1), 3, kind, 0.001).abs()
    agree(compiled, g.inputs(w=words, w_scale=scales), 1e-4 if element == "f32" else 2e-3)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("columns", [{}, {"columns": 64}], ids=["a row at once", "in pieces"])
def test_rows_of_a_packed_table(name: str, tokens: int, columns: dict) -> None:
    """Rows are unpacked where they are gathered, the first and the last of 37 too: the numbers are those of the whole table, bit for bit."""
    kind, group, affine = KINDS[name]
    spec = (37, 288, kind, group, affine)
    g = Packed(rows=f"{tokens}xi32", **Packed.arguments_for("w", *spec))
    parts = [g.gather(value, g["rows"]) for part, value in g.arguments.items() if part != "rows"]
    unpacked = g.add(DequantizeOp(*parts[:2], parts[2] if affine else None, PackingAttr.of(kind, group or 288)))
    compiled = compile_function(g.returns(g.map("mul", unpacked, 3.0)), schedules={"row": columns} if columns else {})
    assert [region.schedule.skeleton.data for region in compiled.regions if region.schedule] == ["row"]
    rows = torch.tensor([36, 0, *range(5, 20)][:tokens], dtype=torch.int32)
    given = g.packed_inputs(w=spec) | {"rows": rows}
    found = agree(compiled, given, 0)[0]
    whole = [given[part] for part in ("w", "w_scale", "w_min") if part in given]
    table = IMPLEMENTATIONS["tile.dequantize"](*whole, packing={"kind": kind, "group": group or 288})
    assert torch.equal(found, table[rows.long()] * 3.0)


def _quantized(w: torch.Tensor, packing: dict, *, affine: bool, clip: bool = False) -> list[torch.Tensor]:
    scales = IMPLEMENTATIONS["transformer.group_scales"](w, packing=packing, dtype="f32", affine=affine, clip=clip)
    mins = [IMPLEMENTATIONS["transformer.group_mins"](w, scales, packing=packing)] if affine else []
    return [IMPLEMENTATIONS["transformer.pack_weight"](w, scales, *mins, packing=packing), scales, *mins]


class Packed(Graph):
    """A graph with packed weights: `packed` names an argument of words, its scales and mins."""

    @staticmethod
    def arguments_for(name: str, rows: int, columns: int, kind: str, group: int, affine: bool, scales: str = "f32") -> dict[str, str]:
        packing = PackingAttr.of(kind, group or columns)
        words, groups = packing.words_shape(rows, columns), packing.groups_shape(rows, columns)
        parts = {name: f"{words[0]}x{words[1]}x{element_name(packing.element)}", f"{name}_scale": f"{groups[0]}x{groups[1]}x{scales}"}
        return {**parts, f"{name}_min": f"{groups[0]}x{groups[1]}x{scales}"} if affine else parts

    def weight(self, name: str, kind: str, group: int, columns: int) -> SSAValue:
        """The floats that a packed argument stands for."""
        mins = self.arguments.get(f"{name}_min")
        return self.add(DequantizeOp(self[name], self[f"{name}_scale"], mins, PackingAttr.of(kind, group or columns)))

    def packed_inputs(self, **packings: tuple[int, int, str, int, bool]) -> dict[str, torch.Tensor]:
        """Weights drawn, quantized and packed; (rows, columns, kind, group, affine) by name."""
        given: dict[str, torch.Tensor] = {}
        for seed, (name, (rows, columns, kind, group, affine)) in enumerate(packings.items()):
            w = numbers((rows, columns), 50 + seed, torch.float32, columns**-0.5)
            made = _quantized(w, {"kind": kind, "group": group or columns}, affine=affine)
            given |= dict(zip((name, f"{name}_scale", f"{name}_min"), made, strict=False))
        return self.inputs(**given)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("k", [{"rows": 4, "k": 256}, {"rows": 2, "k": 64}, {"rows": 8, "k": 32}], ids=["whole", "pieces", "loop"])
def test_one_token(name: str, k: dict) -> None:
    """Whole rows, pieces that are written out, and a loop: 288 columns, 21 rows; a norm before and a sum after."""
    kind, group, affine = KINDS[name]
    spec = (21, 288, kind, group, affine)
    g = Packed(x="1x288xf32", r="1x21xf32", **Packed.arguments_for("w", *spec))
    y = g.map("add", g.contract(g.norm(g["x"]), g.weight("w", kind, group, 288)), g["r"])
    compiled = compile_function(g.returns(y), schedules={"gemv": k})
    assert compiled.skeletons == ["mma" if name in ("int8 rows", "int8 groups", "int8 rows, mins", "fp8 rows") else "gemv"]
    assert [e["reason"] for e in compiled.entries("joined") if e["kind"] == "decode"] == [
        "unpacked where it is read: its floats are never stored"
    ]
    agree(compiled, g.packed_inputs(w=spec), 1e-4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_groups_that_no_piece_ends_with_are_unpacked_before(tokens: int) -> None:
    """Groups of 96 columns: the ledger says why the weight is unpacked by a launch of its own, and the result is right."""
    spec = (21, 288, "int4", 96, True)
    g = Packed(x=f"{tokens}x288xf32", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "int4", 96, 288))))
    assert set(compiled.skeletons) == {"row", "gemv" if tokens == 1 else "mma"}
    assert any("groups of 96 columns" in e["reason"] for e in compiled.entries("refused"))
    agree(compiled, g.packed_inputs(w=spec), 1e-4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_several_tokens(name: str, element: str) -> None:
    """Tiles on the tensor cores: 5 tokens, 288 columns 32 at a time, 21 rows."""
    kind, group, affine = KINDS[name]
    spec = (21, 288, kind, group, affine)
    g = Packed(x=f"5x288x{element}", **Packed.arguments_for("w", *spec))
    compiled = compile_function(
        g.returns(g.contract(g["x"], g.weight("w", kind, group, 288))), schedules={"mma": {"m": 16, "n": 16, "k": 32}}
    )
    assert compiled.skeletons == ["mma"]
    agree(compiled, g.packed_inputs(w=spec), 1e-4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_formats_mix_in_one_launch(tokens: int) -> None:
    """A plain q, an int4 k, an int8 v, an fp8 o, and int4 gate and up that meet in one epilogue: one region, each weight in its own format."""
    specs = {
        "wk": (12, 128, "int4", 64, True),
        "wv": (20, 128, "int8", 0, False),
        "wg": (9, 128, "int4", 32, False),
        "wu": (9, 128, "int8", 32, True),
        "wo": (14, 128, "fp8", 0, False),
    }
    arguments = {k: v for name, spec in specs.items() for k, v in Packed.arguments_for(name, *spec).items()}
    g = Packed(x=f"{tokens}x128xf32", wq="33x128xf32", **arguments)
    products = {name: g.contract(g["x"], g.weight(name, *(spec[2], spec[3], spec[1]))) for name, spec in specs.items()}
    gated = g.map("mul", g.map("silu", products["wg"]), products["wu"])
    compiled = compile_function(g.returns(g.contract(g["x"], g["wq"]), products["wk"], products["wv"], products["wo"], gated))
    assert len(compiled.regions) == 1
    agree(compiled, g.packed_inputs(**specs), 1e-4)


def test_a_weight_that_no_contraction_takes_in_is_stored_as_floats() -> None:
    """What unpacks a weight is an elementwise op like any other: a region that stores it gives the floats themselves."""
    specs = (6, 96, "int4", 32, True)
    g = Packed(x="1x96xf32", **Packed.arguments_for("w", *specs))
    compiled = compile_function(g.returns(g.map("neg", g.weight("w", "int4", 32, 96))))
    assert compiled.skeletons == ["row"]
    agree(compiled, g.packed_inputs(w=specs), 0)


def test_eight_bit_floats_that_no_contraction_takes_in_are_stored_as_floats() -> None:
    specs = (6, 96, "fp8", 0, False)
    g = Packed(x="1x96xf32", **Packed.arguments_for("w", *specs))
    compiled = compile_function(g.returns(g.map("neg", g.weight("w", "fp8", 0, 96))))
    assert compiled.skeletons == ["row"]
    agree(compiled, g.packed_inputs(w=specs), 0)


def test_results_round_once() -> None:
    g = Packed(x="1x64xf32", **Packed.arguments_for("w", 5, 64, "int8", 0, False))
    compiled = compile_function(g.returns(g.cast(g.contract(g["x"], g.weight("w", "int8", 0, 64)), bf16)))
    agree(compiled, g.packed_inputs(w=(5, 64, "int8", 0, False)), 1.6e-2)


def order(columns: int, seed: int = 3) -> torch.Tensor:
    """Columns in any order."""
    return torch.randperm(columns, generator=torch.Generator().manual_seed(seed)).to(torch.int32)


@pytest.mark.parametrize("name", ["int4 groups, mins", "int8 rows"])
@pytest.mark.parametrize(
    ("tokens", "schedules"),
    [
        (1, {"gemv": {"rows": 4, "k": 256}}),
        (1, {"gemv": {"rows": 2, "k": 64}}),
        (1, {"gemv": {"rows": 8, "k": 32}}),
        (5, {"mma": {"m": 16, "n": 16, "k": 32}}),
    ],
    ids=["whole", "pieces", "loop", "tiles"],
)
def test_columns_in_the_order_of_their_groups(name: str, tokens: int, schedules: dict) -> None:
    """x is read through the permutation inside the kernel that normalizes and multiplies it; an epilogue follows."""
    kind, group, affine = KINDS[name]
    spec = (21, 288, kind, group, affine)
    arguments = Packed.arguments_for("w", *spec)
    g = Packed(x=f"{tokens}x288xf32", gamma="288xf32", columns="288xi32", r=f"{tokens}x21xf32", **arguments)
    ordered = g.add(GatherColumnsOp(g.map("mul", g.norm(g["x"]), g["gamma"]), g["columns"]))
    y = g.map("add", g.contract(ordered, g.weight("w", kind, group, 288)), g["r"])
    compiled = compile_function(g.returns(y), schedules=schedules)
    assert len(compiled.regions) == 1
    agree(compiled, g.packed_inputs(w=spec) | {"columns": order(288)}, 1e-4)


@pytest.mark.parametrize(("gate", "up"), [(("int4", 128), ("int8", 32)), (("int4", 128), ("int4", 32)), (("int4", 64), ("int8", 64))])
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_groups_of_two_sizes_beside_each_other(gate: tuple[str, int], up: tuple[str, int], tokens: int) -> None:
    """Halves of bytes 64 columns apart beside groups of 32: no step takes the columns of both."""
    specs = {"wg": (9, 256, *gate, False), "wu": (9, 256, *up, False)}
    g = Packed(x=f"{tokens}x256xf32", **{k: v for name, spec in specs.items() for k, v in Packed.arguments_for(name, *spec).items()})
    y = g.map("mul", *(g.contract(g["x"], g.weight(name, *kind, 256)) for name, kind in (("wg", gate), ("wu", up))))
    agree(compile_function(g.returns(y)), g.packed_inputs(**specs), 1e-4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_columns_behind_a_gated_product(tokens: int) -> None:
    """The epilogue of gate and up keeps its product; the gather goes to the next contraction."""
    gate, down = (96, 64, "int4", 32, True), (24, 96, "int4", 32, False)
    arguments = {k: v for n, s in {"wg": gate, "wu": gate, "wd": down}.items() for k, v in Packed.arguments_for(n, *s).items()}
    g = Packed(x=f"{tokens}x64xf32", columns="96xi32", **arguments)
    products = [g.contract(g["x"], g.weight(name, "int4", 32, 64)) for name in ("wg", "wu")]
    inner = g.map("mul", g.map("silu", products[0]), products[1])
    y = g.contract(g.add(GatherColumnsOp(inner, g["columns"])), g.weight("wd", "int4", 32, 96))
    compiled = compile_function(g.returns(y))
    assert compiled.skeletons == [("gemv", "mma")[tokens > 1]] * 2
    agree(compiled, g.packed_inputs(wg=gate, wu=gate, wd=down) | {"columns": order(96)}, 1e-4)


def test_measured_regions_read_columns_that_are_there() -> None:
    """`lamella tune` makes up the weights of a region: an order of columns is one, words may be any."""
    generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
    made = numbers_of(WeightSpec("i32", (40,)), generator, device)
    assert (made.dtype, sorted(made.tolist())) == (torch.int32, list(range(40)))
    assert numbers_of(WeightSpec("i32", (8, 40)), generator, device).unique().numel() > 8
    assert numbers_of(WeightSpec("f8", (8, 40)), generator, device).dtype == torch.float8_e4m3fn


def test_columns_that_no_contraction_reads() -> None:
    """A launch of its own: more columns than a program takes at once, some of them twice, none overwritten before it is read."""
    g = Packed(x="3x100xf32", columns="130xi32")
    compiled = compile_function(g.returns(g.add(GatherColumnsOp(g.map("exp", g["x"]), g["columns"]))), schedules={"row": {"columns": 64}})
    assert compiled.skeletons == ["row"]
    agree(compiled, g.inputs() | {"columns": torch.cat([order(100), order(100)[:30]])}, 1e-6)


@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 32), (4, 64), (4, 128), (8, 32)])
def test_checkpoints_lay_numbers_as_the_ops_do(bits: int, group: int) -> None:
    """Readers of checkpoints may not import what ops mean: both know the layout, and so does the attribute."""
    given = torch.randint(0, 1 << bits, (5, 256), generator=torch.Generator().manual_seed(group))
    words = laid(given, bits, group)
    assert torch.equal(words, pack(given, bits, group))
    assert torch.equal(unpacked(words, bits, group).float(), unpack(words, bits, group))
    assert half(group) == quantize.half(group) == PackingAttr.of(f"int{bits}", group).half

"""Packed weights of experts: contractions by choice that decode them, interpreted, against what the unpacked numbers give."""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.dialects.builtin import f16, f32
from xdsl.ir import SSAValue

from lamella.dialects.tile import AddRowsOp, ContractExpertsOp, SortChoicesOp
from lamella.tools.costs import launch_cost
from tests.numeric.harness import NARROW, Compiled, agree, compile_function
from tests.numeric.test_experts import choices
from tests.numeric.test_quantized import Packed

Spec = tuple[int, int, str, int, bool]
"""Rows, columns, kind, group (0: whole rows), and whether groups have least values."""

KINDS = {
    "int8 rows": ("int8", 0, False),
    "int8 groups": ("int8", 32, False),
    "int8 groups of 16": ("int8", 16, False),
    "int8 groups, mins": ("int8", 32, True),
    "int4 rows": ("int4", 0, False),
    "int4 groups of 32": ("int4", 32, False),
    "int4 groups of 64": ("int4", 64, False),
    "int4 groups, mins": ("int4", 32, True),
    "fp8 rows": ("fp8", 0, False),
}
EXPERTS, WIDTH, INNER = 5, 192, 64
"""Rows and columns of gate: 64 of 192 for each expert."""


def mixture(
    tokens: int, top_k: int, kinds: tuple[str, str, str], element: str = "f32", **schedule: int
) -> tuple[Packed, Compiled, dict[str, Spec]]:
    """Gate and up, their product, down, weights, the sum over choices, with weights of these kinds; "" is a plain weight."""
    kind = {"f32": f32, "f16": f16}[element]
    sizes = {"w_gate": (EXPERTS * INNER, WIDTH), "w_up": (EXPERTS * INNER, WIDTH), "w_down": (EXPERTS * WIDTH, INNER)}
    specs: dict[str, Spec] = {}
    arguments: dict[str, str] = {}
    for (name, (rows, columns)), of in zip(sizes.items(), kinds, strict=True):
        if of:
            specs[name] = (rows, columns, *KINDS[of])
            arguments |= Packed.arguments_for(name, *specs[name])
        else:
            arguments[name] = f"{rows}x{columns}x{element}"
    g = Packed(x=f"{tokens}x{WIDTH}x{element}", chosen=f"{tokens}x{top_k}xi32", scale=f"{tokens}x{top_k}xf32", **arguments)
    many = tokens > 16
    order = g.add(SortChoicesOp(g["chosen"])) if many else None

    def contract(x: SSAValue, name: str) -> SSAValue:
        spec = specs.get(name)
        weight = g[name] if spec is None else g.weight(name, spec[2], spec[3], spec[1])
        return g.float32(g.cast(g.add(ContractExpertsOp(x, weight, g["chosen"], order, experts=EXPERTS)), kind))

    gate, up = contract(g["x"], "w_gate"), contract(g["x"], "w_up")
    active = g.cast(g.map("mul", g.map("silu", gate), up), kind)
    weighted = g.cast(g.map("mul", contract(active, "w_down"), g.reshape(g["scale"], (tokens * top_k, 1))), kind)
    total = g.map("add", g.add(AddRowsOp(weighted, top_k)), g.float32(g["x"]))
    skeleton = "expert_tiles" if many else "experts"
    schedule = schedule if many else {"rows": 64, **schedule}
    return g, compile_function(g.returns(g.cast(total, kind)), schedules={skeleton: schedule}), specs


def inputs_of(g: Packed, specs: dict[str, Spec], chosen: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weights drawn and packed; those of experts that nobody chose are such that their scales would spoil all they touch."""
    given = g.packed_inputs(**specs) | {"chosen": chosen}
    unread = sorted(set(range(EXPERTS)) - set(chosen.flatten().tolist()))
    for name in specs:
        given[f"{name}_scale"].view(EXPERTS, -1, given[f"{name}_scale"].shape[1])[unread] = math.nan
    return given


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("tokens", "top_k", "schedule"),
    [(1, 2, {}), (3, 2, {"k": 128}), (2, 1, {"rows": 32, "k": 64})],
    ids=["whole rows", "pieces", "a loop"],
)
def test_a_row_a_choice(name: str, tokens: int, top_k: int, schedule: dict[str, int]) -> None:
    """Whole rows, pieces that are written out, and a loop: three launches, as with floats, and no float weight in memory."""
    g, compiled, specs = mixture(tokens, top_k, (name, name, name), **schedule)
    assert compiled.skeletons == ["experts", "experts", "row"]
    assert [e["reason"] for e in compiled.entries("joined") if e["kind"] == "decode"] == [
        "unpacked where it is read: its floats are never stored"
    ] * 3
    agree(compiled, inputs_of(g, specs, choices(tokens, top_k, EXPERTS - 1)), 1e-4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("tokens", "top_k", "element", "schedule"), [(17, 2, "f32", {}), (21, 3, "f16", {"m": 32, "n": 16})])
def test_sorted_tiles(name: str, tokens: int, top_k: int, element: str, schedule: dict[str, int]) -> None:
    """Tiles that name several experts, and rows that no tile divides."""
    g, compiled, specs = mixture(tokens, top_k, (name, name, name), element, **schedule)
    assert compiled.skeletons == ["sort", "expert_tiles", "expert_tiles", "row"]
    agree(compiled, inputs_of(g, specs, choices(tokens, top_k, EXPERTS - 1)), NARROW[element])


@pytest.mark.parametrize("tokens", [1, 19])
@pytest.mark.parametrize(
    "kinds",
    [
        ("int4 groups, mins", "int8 groups of 16", "int8 rows"),
        ("int4 groups of 64", "int8 groups", "fp8 rows"),
        ("fp8 rows", "", "int4 rows"),
        ("", "int8 groups of 16", ""),
    ],
)
def test_kinds_mix_within_a_layer(tokens: int, kinds: tuple[str, str, str]) -> None:
    """As GGUF files have them: each weight is stepped through in pieces of its own."""
    g, compiled, specs = mixture(tokens, 2, kinds)
    assert compiled.skeletons == (["sort", "expert_tiles", "expert_tiles", "row"] if tokens > 16 else ["experts", "experts", "row"])
    agree(compiled, inputs_of(g, specs, choices(tokens, 2, EXPERTS - 1)), 1e-4)


def test_a_step_reads_words_and_scales_of_the_chosen_experts() -> None:
    """Counted from the manifest: words, scales and least values of two of five experts."""
    _, compiled, _ = mixture(1, 2, ("int4 groups, mins", "int8 rows", "fp8 rows"))
    (bucket,) = compiled.manifest.buckets
    moved = [launch_cost(compiled.manifest, bucket, launch, 1) for launch in bucket.launches]
    groups = WIDTH // 32
    gate, up, down = INNER * (WIDTH // 2 + 2 * 4 * groups), INNER * (WIDTH + 4), WIDTH * (INNER + 4)
    assert moved[0].inputs == 2 * (gate + up) + 4 * (WIDTH + 2)
    assert moved[1].inputs == 2 * down + 2 * 2 * 4
    assert moved[0].flops == {"f32": 2 * 2 * 2 * INNER * WIDTH}


@pytest.mark.parametrize("name", ["int8 rows", "int4 groups, mins", "fp8 rows"])
@pytest.mark.parametrize("tokens", [1, 5, 18])
def test_rows_that_no_tile_divides(name: str, tokens: int) -> None:
    """21 rows an expert, 320 columns."""
    kind, group, affine = KINDS[name]
    spec = (4 * 21, 320, kind, group, affine)
    g = Packed(x=f"{tokens}x320xf32", chosen=f"{tokens}x2xi32", **Packed.arguments_for("w", *spec))
    order = g.add(SortChoicesOp(g["chosen"])) if tokens > 16 else None
    product = g.add(ContractExpertsOp(g["x"], g.weight("w", kind, group, 320), g["chosen"], order, experts=4))
    compiled = compile_function(g.returns(product), schedules={"experts": {"rows": 16, "k": 128}, "expert_tiles": {"n": 16}})
    assert "row" not in compiled.skeletons
    agree(compiled, g.packed_inputs(w=spec) | {"chosen": choices(tokens, 2, 3)}, 1e-4)

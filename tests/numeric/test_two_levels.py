"""Packed weights whose scales, and least values, are whole numbers that others multiply: every reader, interpreted, on sizes that no tile divides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import SSAValue

from lamella.dialects.packing import PackingAttr
from lamella.dialects.tile import ContractExpertsOp, DequantizeOp, SortChoicesOp
from lamella.passes import packed_columns
from lamella.semantics import IMPLEMENTATIONS
from lamella.semantics.quantize import pack
from lamella.tools.costs import launch_cost
from lamella.tools.cross_compile import cross_compile
from tests.numeric.harness import Graph, agree, compile_function
from tests.numeric.test_experts import choices


@dataclass(frozen=True)
class Spec:
    """A weight: the kind of its numbers, columns of a group and of several groups together, with least values or not, scales turned or not."""

    kind: str
    group: int
    together: int = 256
    mins: bool = False
    turned: bool = False
    rows: int = 21
    columns: int = 768

    @property
    def packing(self) -> PackingAttr:
        return PackingAttr.of(self.kind, self.group)

    def shapes(self, name: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and element type of each part, in the order of operands."""
        groups, over = (self.rows, self.columns // self.group), (self.rows, self.columns // self.together)
        if self.turned:
            groups, over = groups[::-1], over[::-1]
        parts = {name: (self.packing.words_shape(self.rows, self.columns), "i32"), f"{name}_scale": (groups, "i8")}
        parts |= {f"{name}_min": (groups, "i8")} if self.mins else {}
        parts |= {f"{name}_super_scale": (over, "f16")}
        return parts | ({f"{name}_super_min": (over, "f16")} if self.mins else {})

    def arguments(self, name: str) -> dict[str, str]:
        return {part: f"{shape[0]}x{shape[1]}x{element}" for part, (shape, element) in self.shapes(name).items()}

    def tensors(self, name: str, seed: int = 5) -> dict[str, torch.Tensor]:
        """Numbers, scales and least values over all they can be, such that products with x stay near 1."""
        draw = torch.Generator().manual_seed(seed)
        bits = self.packing.bits
        found = {name: pack(torch.randint(0, 1 << bits, (self.rows, self.columns), generator=draw), bits, self.group)}
        worth = self.columns**-0.5 / (1 << bits) / 64
        for part, (shape, element) in list(self.shapes(name).items())[1:]:
            if element == "i8":
                least = 0 if self.mins else -128
                found[part] = torch.randint(least, 64 if self.mins else 128, shape, generator=draw).to(torch.int8)
            else:
                size = -worth * (1 << (bits - 1)) if part.endswith("super_min") else worth
                found[part] = ((torch.rand(shape, generator=draw) + 0.5) * size).half()
        return found

    def floats(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """The weight, by definition: each number on its own, in float64 but for the product of both scales."""
        parts = [tensors[name] for name in tensors]
        return IMPLEMENTATIONS["tile.dequantize"](*parts, packing=self.packing.python_value(), by_group=int(self.turned))


KINDS = {
    "Q4_K": Spec("int4", 32, mins=True),
    "Q5_K": Spec("int8", 32, mins=True),
    "Q5_K turned": Spec("int8", 32, mins=True, turned=True),
    "Q6_K": Spec("int8", 16),
    "int4": Spec("int4", 32, 128),
    "int4 of 64 turned": Spec("int4", 64, 256, mins=True, turned=True),
    "int8 of 64 turned": Spec("int8", 64, 384, turned=True),
}


class Levels(Graph):
    """A graph with such weights: each part is an argument."""

    def weight(self, name: str, spec: Spec) -> SSAValue:
        parts = [self[part] for part in spec.shapes(name)]
        return self.add(DequantizeOp.of(parts, spec.packing, by_group=int(spec.turned)))


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits for weights of any size, as large ones have them."""
    monkeypatch.setattr(packed_columns, "SMALL", 0)


@pytest.mark.parametrize("name", KINDS)
def test_what_they_mean(name: str) -> None:
    """Number by number, from the definition: (scale · super_scale)·(q - zero), or ·q + min · super_min, each step in float32."""
    spec = KINDS[name]
    given = spec.tensors("w")
    made = spec.floats(given)
    q = IMPLEMENTATIONS["tile.dequantize"](
        given["w"], torch.ones(spec.rows, spec.columns // spec.group), packing=spec.packing.python_value()
    )
    factors = {part: tensor.T if spec.turned else tensor for part, tensor in given.items() if part != "w"}
    for row, column in ((0, 0), (3, 255), (7, 256), (20, 767), (11, 400)):
        group, block, number = column // spec.group, column // spec.together, q[row, column]
        scale = factors["w_scale"][row, group].float() * factors["w_super_scale"][row, block].float()
        if spec.mins:
            least = factors["w_min"][row, group].float() * factors["w_super_min"][row, block].float()
            assert made[row, column] == (number + spec.packing.zero) * scale + least
        else:
            assert made[row, column] == number * scale


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 4, 9, 70])
def test_products(name: str, tokens: int) -> None:
    """768 columns, 21 rows; a norm before and a sum after; whatever schedule is chosen."""
    spec = KINDS[name]
    g = Levels(x=f"{tokens}x768xf32", r=f"{tokens}x21xf32", **spec.arguments("w"))
    y = g.map("add", g.contract(g.norm(g["x"]), g.weight("w", spec)), g["r"])
    compiled = compile_function(g.returns(y))
    assert [e["kind"] for e in compiled.entries("joined") if e["kind"] == "decode"] == ["decode"]
    agree(compiled, g.inputs(**spec.tensors("w")), 1e-4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_products_in_f16(name: str, tokens: int) -> None:
    spec = KINDS[name]
    g = Levels(x=f"{tokens}x768xf16", **spec.arguments("w"))
    compiled = compile_function(g.returns(g.cast(g.contract(g["x"], g.weight("w", spec)), f16)))
    agree(compiled, g.inputs(**spec.tensors("w")), 4e-3)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "int4"])
@pytest.mark.parametrize("schedule", [{"rows": 4, "k": 1024}, {"rows": 2, "k": 512}, {"rows": 8, "k": 64}], ids=["whole", "pieces", "loop"])
def test_one_token_in_pieces(name: str, schedule: dict[str, int]) -> None:
    """Pieces of several blocks of 256 columns, and of less than one."""
    spec = KINDS[name]
    g = Levels(x="1x768xf32", **spec.arguments("w"))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", spec))), schedules={"gemv": schedule})
    assert compiled.skeletons == ["gemv"]
    agree(compiled, g.inputs(**spec.tensors("w")), 1e-4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_three_kinds_in_one_launch(tokens: int) -> None:
    """q, k and v as files of today mix them."""
    specs = {"wq": KINDS["Q4_K"], "wk": KINDS["Q5_K"], "wv": KINDS["Q6_K"]}
    g = Levels(x=f"{tokens}x768xf32", **{k: v for name, spec in specs.items() for k, v in spec.arguments(name).items()})
    compiled = compile_function(g.returns(*(g.contract(g["x"], g.weight(name, spec)) for name, spec in specs.items())))
    assert len(compiled.regions) == 1
    given = {k: v for n, (name, spec) in enumerate(specs.items()) for k, v in spec.tensors(name, n).items()}
    agree(compiled, g.inputs(**given), 1e-4)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("columns", [{}, {"columns": 128}], ids=["a row at once", "in pieces"])
def test_rows_of_a_table(name: str, columns: dict[str, int]) -> None:
    """Rows are unpacked where tokens gather them, bit for bit."""
    spec = KINDS[name]
    g = Levels(rows="3xi32", **spec.arguments("w"))
    parts = [g.gather(g[part], g["rows"]) for part in spec.shapes("w")]
    unpacked = g.add(DequantizeOp.of(parts, spec.packing))
    compiled = compile_function(g.returns(g.map("neg", unpacked)), schedules={"row": columns} if columns else {})
    assert compiled.skeletons == ["row"]
    given = spec.tensors("w")
    found = agree(compiled, g.inputs(**given) | {"rows": torch.tensor([20, 0, 7], dtype=torch.int32)}, 0)[0]
    assert torch.equal(found, -spec.floats(given)[[20, 0, 7]])


@pytest.mark.parametrize("name", KINDS)
def test_a_weight_that_no_contraction_takes_in(name: str) -> None:
    spec = KINDS[name]
    g = Levels(**spec.arguments("w"))
    compiled = compile_function(g.returns(g.map("neg", g.weight("w", spec))))
    given = spec.tensors("w")
    assert torch.equal(agree(compiled, g.inputs(**given), 0)[0], -spec.floats(given))


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize(("tokens", "element"), [(1, "f32"), (5, "f32"), (18, "f32"), (19, "f16")])
def test_experts(name: str, tokens: int, element: str) -> None:
    """21 rows an expert, 512 columns, four experts: a row a choice, and sorted tiles."""
    spec = Spec(KINDS[name].kind, KINDS[name].group, mins=KINDS[name].mins, rows=4 * 21, columns=512)
    g = Levels(x=f"{tokens}x512x{element}", chosen=f"{tokens}x2xi32", **spec.arguments("w"))
    order = g.add(SortChoicesOp(g["chosen"])) if tokens > 16 else None
    product = g.add(ContractExpertsOp(g["x"], g.weight("w", spec), g["chosen"], order, experts=4))
    compiled = compile_function(g.returns(product), schedules={"experts": {"rows": 16, "k": 256}, "expert_tiles": {"n": 16}})
    assert "row" not in compiled.skeletons
    given = g.inputs(**spec.tensors("w")) | {"chosen": choices(tokens, 2, 3)}
    agree(compiled, given, 1e-4 if element == "f32" else 4e-3)


def test_bytes_that_a_step_reads() -> None:
    """Of 768 columns: words, two bytes a group and two float16 each 256 columns: 4.625 bits a weight."""
    spec = KINDS["Q4_K"]
    g = Levels(x="1x768xf32", **spec.arguments("w"))
    compiled = compile_function(g.returns(g.cast(g.contract(g["x"], g.weight("w", spec)), f32)))
    (bucket,) = compiled.manifest.buckets
    (launch,) = bucket.launches
    assert launch_cost(compiled.manifest, bucket, launch, 1).inputs == 21 * 768 * 4.625 / 8 + 4 * 768


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_tiles_of_many_tokens_spill_next_to_nothing(name: str) -> None:
    """Scales of bytes lie in registers: half as many weight rows a program leave room for them."""
    spec = replace(KINDS[name], rows=4096, columns=4096, turned=True)
    g = Levels(x="2048x4096xbf16", **spec.arguments("w"))
    compiled = compile_function(g.returns(g.cast(g.contract(g["x"], g.weight("w", spec)), bf16)))
    (figure,) = cross_compile(compiled.sources, "sm_90", pdl=True)
    assert figure.spills <= 64, figure

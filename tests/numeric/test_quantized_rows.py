"""Activations in eight bits: what their ops mean, and products of bytes by bytes, interpreted, on sizes that no tile divides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import bf16, i32
from xdsl.ir import SSAValue

import lamella
from lamella.dialects.attributes import element_type_of
from lamella.dialects.transformer import QuantizeRowsOp
from lamella.errors import PassError
from lamella.lowering.transformer_to_tile.quantize import quantize_rows
from lamella.semantics import IMPLEMENTATIONS, SCALARS
from lamella.tools.cross_compile import cross_compile
from tests.numeric.harness import Compiled, agree, compile_function
from tests.numeric.test_quantized import Packed

KINDS = ("int8", "fp8")
CLOSE = {"int8": 1e-5, "fp8": 1e-4}
"""Whole numbers are the same in both, and so are their sums; of floats only the rounding of sums differs."""
ON = {"choose-implementation": {"descriptors": "on", "library": "off", "descriptor-tokens": 1}}


class Rows(Packed):
    """A graph with packed weights and quantized rows."""

    def quantize(self, x: SSAValue, kind: str) -> tuple[SSAValue, SSAValue]:
        """The numbers and scales of the rows of x."""
        op = QuantizeRowsOp(x, kind)
        values, scales = quantize_rows(op, [x], self)
        op.erase()
        return values, scales

    def product(self, rows: tuple[SSAValue, SSAValue], name: str, kind: str, columns: int) -> SSAValue:
        """Rows times a packed weight, scaled."""
        return self.map("mul", self.contract(rows[0], self.weight(name, kind, 0, columns)), rows[1])


def graph(tokens: int, kind: str, columns: int, *weights: tuple[str, int], element: str = "f32", **arguments: str) -> Rows:
    """x[tokens, columns] and packed weights of so many rows, one scale each."""
    packed = {part: text for name, rows in weights for part, text in Rows.arguments_for(name, rows, columns, kind, 0, False).items()}
    return Rows(x=f"{tokens}x{columns}x{element}", **packed, **arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_largest_number_and_round_to_the_nearest(kind: str) -> None:
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1e-20], [1.0], [3e4], [1e30], [0.0]])
    values, scales = IMPLEMENTATIONS["transformer.quantize_rows"](x, kind=kind)
    assert values.dtype == (torch.int8 if kind == "int8" else torch.float8_e4m3fn) and scales.shape == (5, 1)
    found = IMPLEMENTATIONS["transformer.dequantize_rows"](values, scales)
    step = scales if kind == "int8" else torch.maximum(x.abs() / 8, scales * 2.0**-8)
    assert ((found - x).abs() <= step * 0.5001).all()
    assert values[4].float().abs().max() == 0 and 0 < scales[4] < 1e-30
    assert torch.equal(values.float().abs().amax(1)[:4], torch.full((4,), 127.0 if kind == "int8" else 448.0))


def test_ties_go_to_even_numbers() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5]])
    values, scales = IMPLEMENTATIONS["transformer.quantize_rows"](x, kind="int8")
    assert scales.item() == 1 and values.tolist() == [[127, 0, 2, 2, 0, -2, -126]]


def test_a_magnitude_forgets_no_number() -> None:
    found = SCALARS["magnitude"](torch.tensor([-2.0, float("-inf"), float("nan"), -0.0]))
    assert found.tolist() == [2.0, float("inf"), float("inf"), 0.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 3, 17, 130])
def test_a_norm_and_its_rounding_are_one_launch(kind: str, tokens: int) -> None:
    """Norm and quantization are a row region, which leaves bytes and scales; the product of bytes, its bias and its rounding are another."""
    g = graph(tokens, kind, 300, ("w", 37), bias="37xf32", residual=f"{tokens}x37xf32")
    product = g.product(g.quantize(g.norm(g["x"]), kind), "w", kind, 300)
    compiled = compile_function(g.returns(g.map("add", g.map("add", product, g["bias"]), g["residual"])))
    assert compiled.skeletons == ["row", "mma"]
    assert sorted(str(v.type) for v in compiled.regions[0].results) == [
        f"tensor<{tokens}x1xf32>",
        f"tensor<{tokens}x300x{'i8' if kind == 'int8' else 'f8E4M3FN'}>",
    ]
    agree(compiled, g.packed_inputs(w=(37, 300, kind, 0, False)), CLOSE[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "schedule"), [(1, {"splits": 2, "k": 64}), (5, {"splits": 3, "k": 64}), (9, {}), (130, {"k": 64})])
def test_gate_and_up_share_rows(kind: str, tokens: int, schedule: dict[str, int]) -> None:
    """Two weights side by side, K split between programs, long rows piece by piece; what they make is quantized in turn."""
    g = graph(tokens, kind, 328, ("w", 72), ("u", 72))
    rows = g.quantize(g["x"], kind)
    gate, up = (g.product(rows, name, kind, 328) for name in ("w", "u"))
    values, scales = g.quantize(g.map("mul", g.map("silu", gate), up), kind)
    stands_for = g.map("mul", g.float32(values), scales)
    compiled = compile_function(g.returns(stands_for), schedules={"mma": schedule, "row": {"columns": 64}})
    assert compiled.skeletons.count("mma") == 1
    given = g.packed_inputs(w=(72, 328, kind, 0, False), u=(72, 328, kind, 0, False))
    # A number that lies between two of eight bits may become either.
    agree(compiled, given, 0.009 if kind == "int8" else 0.07)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "columns", "rows"), [(130, 80, 96), (200, 208, 40), (129, 72, 64)])
def test_bytes_through_descriptors(kind: str, tokens: int, columns: int, rows: int) -> None:
    """Tiles of bytes, of which the hardware is told where they lie: words of a weight as bytes. Rows of 72 do not begin at multiples of 16."""
    g = graph(tokens, kind, columns, ("w", rows), element="bf16")
    product = g.product(g.quantize(g.norm(g.float32(g["x"])), kind), "w", kind, columns)
    compiled = compile_function(g.returns(g.cast(product, bf16)), schedules={"mma": {"m": 128, "n": 64}}, pass_options=ON)
    (blocks,) = [[d.block for d in k.descriptors] for k in compiled.manifest.kernels.values() if "mma" in k.file]
    assert sorted(blocks) == ([] if columns % 16 else [(64, 128), (128, 128)])
    agree(compiled, g.packed_inputs(w=(rows, columns, kind, 0, False)), 1.6e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("stray", [float("inf"), float("-inf"), float("nan")])
def test_what_is_no_number_shows_in_the_whole_row(kind: str, tokens: int, stray: float) -> None:
    """A row with an infinity or NaN is infinite or NaN in all its products; other rows, one of zeros too, are what they are."""
    g = graph(tokens, kind, 96, ("w", 24))
    compiled = compile_function(g.returns(g.product(g.quantize(g["x"], kind), "w", kind, 96)))
    given = g.packed_inputs(w=(24, 96, kind, 0, False))
    given["x"][0, 5] = stray
    given["x"][1:2] = 0
    for level in ("reference", "interpret"):
        (found,) = compiled.run(given, level)
        assert not found[0].isfinite().any()
        assert found[1:].isfinite().all() and (found[1:2] == 0).all()


def test_every_product_of_bytes_is_exact() -> None:
    """The largest sum of each sign over many columns is what whole numbers give."""
    g = graph(3, "int8", 2080, ("w", 16))
    compiled = compile_function(g.returns(g.contract(g.quantize(g["x"], "int8")[0], g.weight("w", "int8", 0, 2080))))
    x = torch.cat([torch.full((1, 2080), 3.0), torch.full((1, 2080), -3.0), torch.arange(2080.0)[None] % 7])
    words = torch.full((16, 520), -0x7F7F7F80, dtype=torch.int32)
    given = {"x": x, "w": words, "w_scale": torch.ones(16, 1)}
    expected = agree(compiled, given, 0)[0]
    assert abs(expected[0, 0].item()) > 2**25


def test_bytes_meet_weights_of_their_kind_only() -> None:
    g = Rows(x="3x64xf32", **Rows.arguments_for("w", 8, 64, "int8", 32, False))
    rows = g.quantize(g["x"], "int8")
    function = g.returns(g.map("mul", g.contract(rows[0], g.weight("w", "int8", 32, 64)), rows[1]))
    with pytest.raises(PassError, match="x is i8, whose products need a weight of int8 with one scale a row"):
        compile_function(function)


def test_a_region_of_bytes_does_not_quantize(compiled_reason: Compiled) -> None:
    refused = [entry for entry in compiled_reason.entries("refused") if "quantized once" in str(entry["reason"])]
    assert refused, compiled_reason.entries("refused")


@pytest.fixture
def compiled_reason() -> Compiled:
    """One token, where a norm before floats would be computed by every program of the product."""
    g = graph(1, "int8", 64, ("w", 24))
    assert element_type_of(g["w"]) == i32
    return compile_function(g.returns(g.product(g.quantize(g.norm(g["x"]), "int8"), "w", "int8", 64)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_a_large_model_do_not_spill(kind: str) -> None:
    """Llama-3.1-8B, compiled for sm_90 with no GPU: one token, eight, and 2048, whose bytes come through descriptors."""
    config = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "llama-3.1-8b.json"
    program = lamella.compile(
        config, random_weights=0, dtype="bfloat16", quantize=kind, activations=kind, buckets=[1, 8, 2048], max_context=4096
    )
    of_bytes = {name: text for name, text in program.kernels.items() if "_mma_" in name and "values" in text}
    rows = {name: text for name, text in program.kernels.items() if "_row_" in name and "values_out_ptr" in text}
    assert len(of_bytes) >= 12 and len(rows) >= 9
    word = "tensordesc<i8[" if kind == "int8" else "tensordesc<fp8e4nv["
    assert all((word in text) == name.startswith("t2048") for name, text in of_bytes.items() if "lm_head" not in text)
    for figure in cross_compile(of_bytes | rows, "sm_90", pdl=True):
        assert figure.spills == 0, figure


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 9, 75, 130])
def test_bytes_on_a_gpu(kind: str, tokens: int) -> None:
    """Bytes are those of the reference, but for a few that lie between two; where a row's are, its products agree."""
    g = graph(tokens, kind, 1544, ("w", 200))
    rows = g.quantize(g["x"], kind)
    compiled = compile_function(g.returns(g.float32(rows[0]), g.product(rows, "w", kind, 1544)))
    given = g.packed_inputs(w=(200, 1544, kind, 0, False))
    (expected_bytes, expected), (found_bytes, found) = compiled.expected(given), [v.cpu() for v in compiled.run(given, "cuda")]
    same = found_bytes == expected_bytes
    assert same.float().mean() > 0.999
    kept = same.all(1)
    assert kept.float().mean() > 0.5
    error = ((found - expected)[kept].square().mean().sqrt() / expected.square().mean().sqrt()).item()
    # Whole numbers have no error but the last rounding; tensor cores add up products of float8 with some 14 bits.
    assert error < {"int8": 1e-6, "fp8": 1e-3}[kind], f"{error:.1e}"

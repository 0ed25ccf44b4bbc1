"""Routing and contractions by chosen experts: interpreted Triton against the ops' meaning, and that meaning against a loop over tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import AddRowsOp, ContractExpertsOp, ContractOp, RouteOp, SortChoicesOp
from lamella.semantics import IMPLEMENTATIONS
from lamella.tools.costs import launch_cost
from tests.numeric.harness import NARROW, Compiled, Graph, agree, compile_function, i32, numbers


def choices(tokens: int, top_k: int, experts: int, seed: int = 5) -> torch.Tensor:
    """Distinct experts of each token, i32 [tokens, top_k]."""
    generator = torch.Generator().manual_seed(seed)
    return i32([torch.randperm(experts, generator=generator)[:top_k].tolist() for _ in range(tokens)])


def mixture(
    tokens: int,
    top_k: int,
    experts: int,
    *,
    width: int = 20,
    inner: int = 12,
    element: str = "f32",
    skeleton: str = "experts",
    **schedule: int,
) -> Compiled:
    """A whole block: gate and up, their product, down, weights, the sum over choices, and a residual."""
    kind = {"f32": f32, "f16": f16, "bf16": bf16}[element]
    g = Graph(
        x=f"{tokens}x{width}x{element}",
        chosen=f"{tokens}x{top_k}xi32",
        scale=f"{tokens}x{top_k}xf32",
        w_gate=f"{experts * inner}x{width}x{element}",
        w_up=f"{experts * inner}x{width}x{element}",
        w_down=f"{experts * width}x{inner}x{element}",
    )
    order = g.add(SortChoicesOp(g["chosen"])) if skeleton == "expert_tiles" else None

    def contract(x: SSAValue, weight: str) -> SSAValue:
        return g.float32(g.cast(g.add(ContractExpertsOp(x, g[weight], g["chosen"], order, experts=experts)), kind))

    gate, up = contract(g["x"], "w_gate"), contract(g["x"], "w_up")
    active = g.cast(g.map("mul", g.map("silu", gate), up), kind)
    down = contract(active, "w_down")
    weighted = g.cast(g.map("mul", down, g.reshape(g["scale"], (tokens * top_k, 1))), kind)
    total = g.map("add", g.add(AddRowsOp(weighted, top_k)), g.float32(g["x"]))
    return compile_function(g.returns(g.cast(total, kind)), schedules={skeleton: schedule})


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "element", "schedule"),
    [
        (1, 2, 5, "f32", {}),
        (1, 1, 3, "f32", {"rows": 8, "k": 8}),
        (7, 3, 4, "f32", {"rows": 16, "k": 16}),
        (5, 2, 130, "f16", {"rows": 4}),
    ],
)
def test_a_mixture_in_three_launches(tokens: int, top_k: int, experts: int, element: str, schedule: dict[str, int]) -> None:
    compiled = mixture(tokens, top_k, experts, element=element, **schedule)
    assert compiled.skeletons == ["experts", "experts", "row"]
    chosen = choices(tokens, top_k, experts)
    inputs = {
        name: chosen if name == "chosen" else numbers(shape, seed, dtype, 0.3 if name.startswith("w") else 1.0)
        for seed, (name, shape, dtype) in enumerate(arguments(compiled))
    }
    agree(compiled, inputs, NARROW[element])


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "element", "schedule"),
    [
        (17, 2, 3, "f32", {}),
        (33, 1, 5, "f16", {"m": 16, "n": 16, "k": 16}),
        (21, 4, 6, "f32", {"m": 32, "n": 16, "k": 16}),
        (19, 3, 40, "f32", {"m": 16, "n": 32, "k": 32}),
    ],
)
def test_many_tokens_in_tiles(tokens: int, top_k: int, experts: int, element: str, schedule: dict[str, int]) -> None:
    compiled = mixture(tokens, top_k, experts, element=element, skeleton="expert_tiles", **schedule)
    assert compiled.skeletons == ["sort", "expert_tiles", "expert_tiles", "row"]
    # One expert is chosen by nobody: its programs end at once, and its weights do not matter.
    chosen = choices(tokens, top_k, experts - 1)
    inputs = {
        name: chosen if name == "chosen" else numbers(shape, seed, dtype, 0.3 if name.startswith("w") else 1.0)
        for seed, (name, shape, dtype) in enumerate(arguments(compiled))
    }
    for name in ("w_gate", "w_up", "w_down"):
        inputs[name].view(experts, -1, inputs[name].shape[1])[-1] = math.nan
    agree(compiled, inputs, NARROW[element])


def arguments(compiled: Compiled) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Name, shape and type of the inputs of a function."""
    (bucket,) = compiled.manifest.buckets
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}
    return [(i.name, i.shape, kinds[i.dtype]) for i in bucket.inputs]


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "normalized"), [(1, 8, 2, True), (6, 5, 5, True), (3, 130, 7, False), (2, 1, 1, True)]
)
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_routing(tokens: int, experts: int, top_k: int, normalized: bool, element: str) -> None:
    g = Graph(x=f"{tokens}x{experts}x{element}")
    op = RouteOp(g["x"], top_k=top_k, normalized=normalized)
    g.add(op)
    compiled = compile_function(g.returns(g.cast(op.weights, f16), op.chosen))
    assert compiled.skeletons == ["route"]
    inputs = g.inputs()
    # Equal logits: the first expert is the likelier.
    inputs["x"][0] = inputs["x"][0, 0]
    weights, chosen = agree(compiled, inputs, NARROW["f16"])
    assert chosen[0].tolist() == list(range(top_k))
    assert not normalized or torch.allclose(weights.float().sum(-1), torch.ones(tokens), atol=2e-3)


def test_the_meaning_is_that_of_a_loop() -> None:
    tokens, top_k, experts, width, inner = 4, 2, 3, 6, 5
    x, logits = numbers((tokens, width), 1), numbers((tokens, experts), 2)
    gate, up = numbers((experts * inner, width), 3), numbers((experts * inner, width), 4)
    down = numbers((experts * width, inner), 5)
    weights, chosen = IMPLEMENTATIONS["transformer.route"](logits, top_k=top_k, normalized=True, dtype="f32")
    found = IMPLEMENTATIONS["transformer.experts"](x, chosen, weights, gate, up, down, experts=experts, activation="silu")
    for token in range(tokens):
        exponents = [math.exp(v) for v in logits[token].tolist()]
        best = sorted(range(experts), key=lambda e: -exponents[e])[:top_k]
        assert chosen[token].tolist() == best
        expected = torch.zeros(width)
        for expert in best:
            own = slice(expert * inner, (expert + 1) * inner)
            hidden = torch.nn.functional.silu(gate[own] @ x[token]) * (up[own] @ x[token])
            share = exponents[expert] / sum(exponents[e] for e in best)
            expected += share * (down[expert * width : (expert + 1) * width] @ hidden)
        torch.testing.assert_close(found[token], expected, rtol=1e-5, atol=1e-5)


def test_what_no_token_chose_is_not_read() -> None:
    """Weights of the other experts are NaN; what a step moves counts the chosen ones only."""
    tokens, top_k, experts, width, inner = 1, 2, 6, 20, 12
    compiled = mixture(tokens, top_k, experts)
    chosen = i32([[4, 1]])
    inputs: dict[str, Any] = {
        name: chosen if name == "chosen" else numbers(shape, seed, dtype) for seed, (name, shape, dtype) in enumerate(arguments(compiled))
    }
    for name in ("w_gate", "w_up", "w_down"):
        own = inputs[name].view(experts, -1, inputs[name].shape[1])
        own[[0, 2, 3, 5]] = math.nan
    (result,) = agree(compiled, inputs)
    assert result.isfinite().all()
    (bucket,) = compiled.manifest.buckets
    moved = [launch_cost(compiled.manifest, bucket, launch, 1) for launch in bucket.launches]
    matrices = [top_k * inner * width * 4] * 3
    small = (width + top_k) * 4
    assert moved[0].inputs == sum(matrices[:2]) + small
    assert moved[1].inputs == matrices[2] + 2 * top_k * 4
    assert moved[0].flops == {"f32": 2 * 2 * top_k * inner * width}


def test_two_choices_are_two_launches() -> None:
    g = Graph(x="2x8xf32", a="2x1xi32", b="2x1xi32", w="12x8xf32")
    products = [g.add(ContractExpertsOp(g["x"], g["w"], g[name], experts=3)) for name in ("a", "b")]
    compiled = compile_function(g.returns(*products))
    assert compiled.skeletons == ["experts", "experts"]
    assert shape_of(products[0]) == (2, 4)
    agree(compiled, g.inputs(0, a=i32([[2], [0]]), b=i32([[1], [1]])))


@pytest.mark.parametrize("tokens", [1, 7, 70])
@pytest.mark.parametrize("element", ["f32", "f16"])
def test_the_gate_of_a_shared_expert(tokens: int, element: str) -> None:
    """A contraction with one row of weights beside another of the same x, and its sigmoid times each row of what a third makes."""
    kind = {"f32": f32, "f16": f16}[element]
    g = Graph(
        x=f"{tokens}x20x{element}", w_gate=f"1x20x{element}", w_up=f"36x20x{element}", w_down=f"20x36x{element}", y=f"{tokens}x20x{element}"
    )
    gate, up = (g.cast(g.add(ContractOp(g["x"], g[w])), kind) for w in ("w_gate", "w_up"))
    down = g.float32(g.cast(g.add(ContractOp(g.cast(g.map("silu", g.float32(up)), kind), g["w_down"])), kind))
    share = g.cast(g.map("sigmoid", g.float32(gate)), kind)
    shared = g.cast(g.map("mul", down, g.float32(share)), kind)
    total = g.cast(g.map("add", g.float32(shared), g.float32(g["y"])), kind)
    compiled = compile_function(g.returns(total, share))
    skeleton = "gemv" if tokens == 1 else "mma"
    assert compiled.skeletons.count(skeleton) == 2
    agree(compiled, g.inputs(), NARROW[element])


@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(1, 1, 1), (17, 2, 3), (40, 3, 7), (64, 2, 200)])
def test_sorting_choices(tokens: int, top_k: int, experts: int) -> None:
    """By expert, those of one expert in order: several programs, some of whose rows stick out."""
    g = Graph(chosen=f"{tokens}x{top_k}xi32")
    compiled = compile_function(g.returns(g.add(SortChoicesOp(g["chosen"]))))
    assert compiled.skeletons == ["sort"]
    chosen = choices(tokens, top_k, experts)
    (order,) = agree(compiled, {"chosen": chosen})
    flat = chosen.reshape(-1)
    expected = sorted(range(tokens * top_k), key=lambda number: (int(flat[number]), number))
    assert order.tolist() == expected

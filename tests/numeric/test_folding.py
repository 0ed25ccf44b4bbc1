"""Folding changes no result: the algebra of each fold in float64, its rounding at the compute dtype, and a whole model before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from lamella import pipeline, registry
from lamella.dialects import signature
from lamella.frontends.decoder import build, weight_shapes
from lamella.lowering.body import export_function
from lamella.lowering.weights import made_weights
from lamella.runtime.evaluate import evaluate
from lamella.semantics import DTYPES, IMPLEMENTATIONS
from lamella.verification import verify
from tests.models.tiny_llama import BASE, BIASED

WIDTHS = (48, 33)
"""K of the linears: one that tiles divide, one that none does."""
SPREAD = (0.01, 100.0)
"""The range of a norm's scales, by their logarithm."""
SEEDS = range(5)
FOLD = "fold-norm-scale,fold-constants"

NORMS = {
    "rms": ('transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (X, G) -> X', False),
    "gemma": ('transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, offset = 1.0 : f64, loc = "norm"} : (X, G) -> X', False),
    "layer": ('transformer.layer_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (X, G) -> X', False),
    "layer with shift": ('transformer.layer_norm %x, %g, %s {eps = 1.0e-05 : f64, loc = "norm"} : (X, G, G) -> X', True),
}


def program(norm: str, dtype: str, width: int) -> ModuleOp:
    """A norm and two linears of it, with biases; where the norm shifts, a bias takes the shift."""
    text, _ = NORMS[norm]
    types = {"X": f"tensor<7x{width}x{dtype}>", "G": f"tensor<{width}x{dtype}>"}
    for name, type in types.items():
        text = text.replace(f"({name},", f"({type},").replace(f" {name},", f" {type},").replace(f" {name})", f" {type})")
        text = text.replace(f"-> {name}", f"-> {type}")
    x, g, w, b, y = types["X"], types["G"], f"tensor<24x{width}x{dtype}>", f"tensor<24x{dtype}>", f"tensor<7x24x{dtype}>"
    source = f"""
        func.func @forward(%x : {x}) -> ({y}, {y}) {{
          %g = transformer.weight "norm" : {g}
          %s = transformer.weight "norm.bias" : {g}
          %w = transformer.weight "w" : {w}
          %b = transformer.weight "w.bias" : {b}
          %v = transformer.weight "v" : {w}
          %c = transformer.weight "v.bias" : {b}
          %n = {text}
          %y = transformer.linear %n, %w, %b {{loc = "y"}} : ({x}, {w}, {b}) -> {y}
          %z = transformer.linear %n, %v, %c {{loc = "z"}} : ({x}, {w}, {b}) -> {y}
          func.return %y, %z : {y}, {y}
        }}"""
    module = Parser(registry.context(), source).parse_module()
    verify(module)
    return module


def passed(module: ModuleOp, passes: str) -> ModuleOp:
    """`module` after some passes."""
    for built in registry.parse_passes(passes):
        pipeline.apply(registry.context(), module, built)
        verify(module)
    return module


def transformed(module: ModuleOp, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Checkpoint weights and those that the module's `@transform_weights` makes of them."""
    made = {n: evaluate(s.transform, [weights[source.name] for source in s.sources])[0] for n, s in made_weights(module).items()}
    return {**weights, **made}


def run(module: ModuleOp, x: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Both results of `program` side by side, in x's dtype, whatever dtype the program was written for."""
    body, handles = export_function(signature.steps(module)[0])
    wide = "f64" if x.dtype == torch.float64 else None
    ops = [[name, ids, {**a, "dtype": wide} if wide and "dtype" in a else a, results] for name, ids, a, results in body["ops"]]
    held = transformed(module, weights)
    return torch.cat(evaluate({**body, "ops": ops}, [x, *(held[name] for name in handles)]), dim=-1)


def data(width: int, seed: int, *, offset: float = 0.0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """x and weights in float64; scales of either sign spread over SPREAD."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    low, high = (torch.tensor(bound, dtype=torch.float64).log() for bound in SPREAD)
    scale = (low + (high - low) * torch.rand(width, generator=generator, dtype=torch.float64)).exp() * draw(width).sign()
    weights = {"norm": scale - offset, "norm.bias": draw(width), "w": draw(24, width), "v": draw(24, width) / width}
    return draw(7, width) * 3 + 1, {**weights, "w.bias": draw(24), "v.bias": draw(24)}


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error of all outputs together."""
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("norm", NORMS)
def test_the_algebra_holds_in_float64(norm: str, width: int) -> None:
    plain, folded = program(norm, "f32", width), passed(program(norm, "f32", width), FOLD)
    assert set(made_weights(folded)) == {"w.scaled", "v.scaled", *(["w.bias.shifted", "v.bias.shifted"] if NORMS[norm][1] else [])}
    for seed in SEEDS:
        x, weights = data(width, seed)
        before, after = run(plain, x, weights), run(folded, x, weights)
        assert float(((after - before).abs() / before.abs().max()).max()) <= 1e-12
        # What is folded matters: other scales, or none, give other results.
        assert error(run(folded, x, {**weights, "norm": torch.ones(width, dtype=torch.float64)}), before) > 0.01


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("norm", NORMS)
def test_rounding_is_no_worse_than_without_folding(norm: str, dtype: str) -> None:
    """Against the exact result for the same rounded weights, over all seeds: at most 1.5 times the error of the program as written."""
    offset = 1.0 if norm == "gemma" else 0.0
    for width in WIDTHS:
        plain, folded = program(norm, dtype, width), passed(program(norm, dtype, width), FOLD)
        assert made_weights(folded)
        errors = torch.zeros(2)
        for seed in SEEDS:
            x, weights = data(width, seed, offset=offset)
            narrow = {name: w.to(DTYPES[dtype]) for name, w in weights.items()}
            x = x.to(DTYPES[dtype])
            exact = run(plain, x.double(), {name: w.double() for name, w in narrow.items()})
            errors += torch.tensor([error(run(module, x, narrow), exact) for module in (plain, folded)])
    assert 0 < errors[1] <= 1.5 * errors[0], errors.tolist()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("passes", ["transformer-to-tile", f"{FOLD},transformer-to-tile"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_lowering_means_the_same(norm: str, passes: str, dtype: str) -> None:
    """Level 2 of each norm, with and without weights: equal but for the order of float32 sums, which may turn a rounding."""
    before, after = (passed(program(norm, dtype, 48), p) for p in (passes.removesuffix("transformer-to-tile").rstrip(","), passes))
    x, weights = data(48, 0)
    narrow = {name: w.to(DTYPES[dtype]) for name, w in weights.items()}
    results = [run(module, x.to(DTYPES[dtype]), narrow).double() for module in (before, after)]
    assert error(results[1], results[0]) <= {"bf16": 2e-3, "f32": 1e-6}[dtype]


def test_f16_is_not_folded() -> None:
    """A scale of 100 and a weight of 700 are fine apart; their product is not."""
    module = passed(program("rms", "f16", 48), FOLD)
    assert made_weights(module) == {}
    assert signature.records(signature.steps(module)[0])[0]["reason"] == "its scale times a weight can overflow or vanish in f16"


STAGE = "canonicalize,rope-table{length=64},propagate-layout,fold-constants,cse,dce"
FOLDED = STAGE.replace("propagate", "fold-norm-scale,propagate")


def logits(config, passes: str, dtype: str, weights: Mapping[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """The logits of every token of one prompt, at level 1."""
    module = passed(build(config, dtype=dtype, block=16), passes)
    body, names = export_function(signature.steps(module)[0])
    held = transformed(module, {name: w.to(DTYPES[dtype]) for name, w in weights.items()})
    attributes = {"length": 64, "rotary_dim": config.rotary, "theta": config.rope_theta, "scaling": dict(config.rope_scaling)}
    held["rope_table"] = IMPLEMENTATIONS["transformer.rope_table"](**attributes)
    count = len(tokens)
    ints = [tokens, list(range(count)), [0, count], [count], [[1, 2, 3, 4]], list(range(count))]
    given = [torch.tensor(value, dtype=torch.int32) for value in ints]
    zeros, none = torch.zeros(count), torch.zeros(count, dtype=torch.int32)
    sampling = [zeros, none, torch.ones(count), zeros, none]
    caches = [torch.zeros(5, 2, config.kv_heads, 16, config.head_dim, dtype=DTYPES[dtype]) for _ in range(config.layers)]
    return evaluate(body, [*given, *sampling, *caches, *(held[name] for name in names)])[0]


@pytest.mark.parametrize("config", [replace(BASE, layers=2), replace(BIASED, layers=2)], ids=["plain", "tied, biased"])
def test_a_model_rounds_no_worse_than_unfolded(config) -> None:
    """bfloat16 logits of whole models whose scales are spread over SPREAD, against float32 logits of the same rounded weights."""
    errors = torch.zeros(2)
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        weights: dict[str, torch.Tensor] = {}
        for name, shape in weight_shapes(config).items():
            drawn = torch.randn(shape, generator=generator)
            if name.endswith("norm"):
                low, high = (torch.tensor(bound).log() for bound in SPREAD)
                drawn = (low + (high - low) * torch.rand(shape, generator=generator)).exp()
            elif len(shape) == 2:
                drawn = drawn / shape[1] ** 0.5 / (10 if "q_proj" in name or "k_proj" in name else 1)
            weights[name] = drawn.bfloat16().float()
        tokens = torch.randint(0, config.vocabulary, (20,), generator=generator).tolist()
        exact = logits(config, STAGE, "f32", weights, tokens)
        torch.testing.assert_close(logits(config, FOLDED, "f32", weights, tokens), exact, rtol=0, atol=1e-3 * float(exact.abs().max()))
        errors += torch.tensor([error(logits(config, p, "bf16", weights, tokens), exact.double()) for p in (STAGE, FOLDED)])
    assert 0 < errors[1] <= 1.5 * errors[0], errors.tolist()

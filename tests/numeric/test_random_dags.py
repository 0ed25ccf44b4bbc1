"""Random graphs of tile ops: fusion never makes a cycle, never changes a result, and is the same each time; the kernels compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, bf16, f16
from xdsl.ir import SSAValue

from lamella import pipeline, registry
from lamella.dialects.attributes import element_of, shape_of
from lamella.dialects.tile import FusedOp, GatherColumnsOp
from lamella.lowering.body import export_function
from lamella.passes.choose_schedule import ChooseSchedule
from lamella.passes.fuse_regions import FuseRegions
from lamella.runtime.evaluate import evaluate
from lamella.verification import verify
from tests.numeric.harness import Graph, agree, compile_function

UNARY = ("neg", "relu", "sigmoid", "tanh", "silu")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
WIDTHS = (5, 8)
Choose = Callable[[int], int]
"""Draws a number below its argument."""


@dataclass(frozen=True)
class Recipe:
    """Numbers that say how a graph is built: the same numbers, the same graph, as often as asked."""

    rows: int
    steps: tuple[tuple[int, ...], ...]
    returned: tuple[int, ...]

    def build(self) -> tuple[Graph, func.FuncOp]:
        """The graph, and its function. Values nothing uses stay in: fusion has to cope with them."""
        r, (a, b) = self.rows, WIDTHS
        arguments = {
            "x": f"{r}x{a}xf32",
            "y": f"{r}x{b}xf32",
            "row": f"1x{a}xf32",
            "column": f"{r}x1xf32",
            "va": f"{a}xf32",
            "vb": f"{b}xf32",
            "vr": f"{r}xf32",
            "table": f"7x{a}xf32",
            "list": "7xf32",
            "w_ab": f"{b}x{a}xf32",
            "w_ba": f"{a}x{b}xf32",
            "w_aa": f"{a}x{a}xf32",
            "index": f"{r}xi32",
            "pick": "2xi32",
            "few": f"{a}xi32",
            "many": f"{b}xi32",
        }
        g = Graph(**arguments)
        values = [g[name] for name in ("vr", "vb", "va", "column", "row", "y", "x")]
        made: list[SSAValue] = []
        for step in self.steps:
            value = _step(g, values, step)
            if value is not None:
                values.append(value)
                made.append(value)
        made = made or [g.map("neg", g["x"])]
        kept = [made[i % len(made)] for i in self.returned]
        return g, g.returns(*dict.fromkeys([made[-1], *kept]))

    def inputs(self, g: Graph) -> dict[str, torch.Tensor]:
        """Numbers for its arguments."""
        index = torch.arange(self.rows, dtype=torch.int32) * 3 % 7
        few, many = (torch.arange(width, dtype=torch.int32) * 3 % WIDTHS[0] for width in WIDTHS)
        return g.inputs(index=index, pick=torch.tensor([self.rows - 1, 0], dtype=torch.int32), few=few, many=many)


def _step(g: Graph, values: list[SSAValue], numbers: tuple[int, ...]) -> SSAValue | None:
    """One more op on earlier values; None where the operands drawn do not fit."""
    kind, first, second, which = numbers
    x, y = (g.float32(values[-1 - i % len(values)]) for i in (first, second))
    match kind:
        case 0:
            return g.map(UNARY[which % len(UNARY)], x)
        case 1 | 2:
            sizes = (shape_of(x), shape_of(y))
            fits = all(m == n or 1 in (m, n) for m, n in zip(*(s[::-1] for s in sizes), strict=False))
            # No skeleton stretches a vector of one number.
            fits = fits and all(len(a) != 1 or a == b or (len(b) == 2 and a[-1] == b[-1] > 1) for a, b in (sizes, sizes[::-1]))
            return g.map(BINARY[which % len(BINARY)], x, y) if fits else None
        case 3:
            return g.map(BINARY[which % 2], x, 0.5 + which)
        case 4:
            return g.reduce(("sum", "max", "min")[which % 3], x) if len(shape_of(x)) == 2 else None
        case 5:
            return g.cast(x, (bf16, f16)[which % 2])
        case 6:
            weights = [w for w in (g["w_ab"], g["w_ba"], g["w_aa"]) if len(shape_of(x)) == 2 and shape_of(w)[1] == shape_of(x)[1]]
            return g.contract(x, weights[which % len(weights)]) if weights else None
        case 7:
            return g.gather((g["table"], g["list"])[which % 2], g["index"])
        case 8:
            columns = g[("few", "many")[which % 2]]
            return g.add(GatherColumnsOp(x, columns)) if len(shape_of(x)) == 2 and shape_of(x)[1] in WIDTHS else None
        case _:
            return g.gather(x, g["pick"]) if len(shape_of(x)) == 2 and shape_of(x)[0] == shape_of(g["index"])[0] else None


@st.composite
def recipes(draw: st.DrawFn, most: int = 14) -> Recipe:
    """Graphs of up to `most` ops."""
    number = st.integers(0, 30)
    # Mostly operands made a few steps ago, so that graphs grow long and meet again.
    step = st.tuples(
        st.sampled_from((0, 1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9)), st.integers(0, 3) | number, st.integers(0, 6) | number, number
    )
    steps = st.lists(step, min_size=most // 2, max_size=most)
    return Recipe(draw(st.sampled_from((1, 3, 5))), tuple(draw(steps)), tuple(draw(st.lists(number, max_size=3))))


OPTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    **{f"no {step}": {step: False} for step in ("vertical", "horizontal", "epilogue", "prologue", "shared", "siblings")},
    **{f"depth {n}": {"max_depth": n} for n in (0, 1, 2, 4)},
    "few registers": {"max_registers": 18},
    "sm_80": {"arch": "sm_80"},
}
LOCAL = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def fused(recipe: Recipe, options: dict[str, Any]) -> tuple[ModuleOp, func.FuncOp]:
    """The function after fusion and the choice of schedules, verified: operands dominate their uses, so there is no cycle."""
    _, function = recipe.build()
    module = ModuleOp([function])
    ctx = registry.context()
    FuseRegions(**options).apply(ctx, module)
    verify(module, pipeline.TILES)
    ChooseSchedule().apply(ctx, module)
    verify(module, pipeline.TILES)
    return module, function


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@LOCAL
@given(recipe=recipes())
def test_fusion_changes_no_result(options: dict[str, Any], recipe: Recipe) -> None:
    """Bit for bit: the same ops run, some of them more than once."""
    g, function = recipe.build()
    inputs = [recipe.inputs(g)[name] for name in g.arguments]
    expected = evaluate(export_function(function)[0], inputs)
    _, after = fused(recipe, options)
    found = evaluate(export_function(after)[0], inputs)
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@settings(LOCAL, max_examples=5)
@given(recipe=recipes())
def test_fusion_gives_the_same_ir_twice(options: dict[str, Any], recipe: Recipe) -> None:
    assert pipeline.text(fused(recipe, options)[0]) == pipeline.text(fused(recipe, options)[0])


@LOCAL
@given(recipe=recipes())
def test_no_depth_is_one_op_a_region(recipe: Recipe) -> None:
    module, _ = fused(recipe, {"max_depth": 0})
    sizes = [
        sum(op.name not in ("tile.constant", "tile.yield") for op in r.body.block.ops) for r in module.walk() if isinstance(r, FusedOp)
    ]
    assert set(sizes) <= {1}


@LOCAL
@given(recipe=recipes(), depth=st.integers(1, 4))
def test_fewer_launches_with_more_depth(recipe: Recipe, depth: int) -> None:
    """Not a law of greedy search, but of these: nothing is gained by forbidding everything."""
    counts = [sum(isinstance(op, FusedOp) for op in fused(recipe, {"max_depth": n})[0].walk()) for n in (0, depth)]
    assert counts[1] <= counts[0]


@settings(LOCAL, max_examples=40)
@given(recipe=recipes(10))
def test_the_kernels_compute_the_graph(recipe: Recipe) -> None:
    """What the oracle calls feasible, the skeletons can lower: through the plan and printed Triton, interpreted."""
    g, function = recipe.build()
    rounded = any(element_of(r) not in ("f32", "i32") for op in function.walk() for r in op.results)
    agree(compile_function(function, verify_each=True), recipe.inputs(g), 2e-2 if rounded else 1e-4)

"""Invariant 6: no pass or lowering knows a combination of ops. An elementwise op and a reduction that only this file defines fuse like all others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType, f16, f32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.attributes import shape_of
from lamella.dialects.elementwise import Elementwise, LastAxisReduction
from lamella.dialects.transformer import LinearOp
from lamella.dialects.transformer.types import FloatTensor, TransformerOp
from lamella.errors import PassError
from lamella.lowering.body import export_function
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.tile_to_kernel.scalars import REDUCTION_RULES, SCALAR_RULES, Reduction, scalar_rule
from lamella.runtime.evaluate import evaluate
from lamella.semantics import IMPLEMENTATIONS, REDUCTIONS, SCALARS, reduction, scalar
from lamella.semantics.elementwise import rounded
from tests.numeric.harness import Compiled, agree, compile_function, numbers

# One file's worth of a new op: definition, meaning, scalar rule.


@irdl_op_definition
class SoftenOp(TransformerOp, Elementwise):
    """x / (1 + |y|), y stretched along the last axis."""

    name = "transformer.soften"

    x = operand_def(FloatTensor)
    y = operand_def(FloatTensor)
    result = result_def(FloatTensor)
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue, y: SSAValue) -> None:
        super().__init__(operands=[x, y], result_types=[x.type])


@irdl_op_definition
class EuclidOp(TransformerOp, LastAxisReduction):
    """The square root of the sum of squares of the last axis."""

    name = "transformer.euclid"

    x = operand_def(FloatTensor)
    result = result_def(FloatTensor)
    traits = traits_def(Pure())

    def __init__(self, x: SSAValue) -> None:
        assert isinstance(x.type, TensorType)
        super().__init__(operands=[x], result_types=[TensorType(x.type.get_element_type(), [*shape_of(x)[:-1], 1])])


def hypotenuse(b: KernelBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    """√(x² + y²): associative and commutative, with 0 as its identity."""
    return b.sqrt(b.add(b.mul(x, x), b.mul(y, y)))


@pytest.fixture(autouse=True)
def new_ops() -> Iterator[None]:
    """Registers the two ops in the tables for as long as a test runs."""
    scalar("soften")(lambda x, y: x / (1 + y.abs()))
    IMPLEMENTATIONS["transformer.soften"] = rounded(SCALARS["soften"])
    reduction("euclid")(lambda x: x.square().sum(-1, keepdim=True).sqrt())
    IMPLEMENTATIONS["transformer.euclid"] = rounded(REDUCTIONS["euclid"])
    scalar_rule("soften")(lambda b, x, y: b.div(x, b.add(b.maximum(y, b.neg(y)), 1.0)))
    REDUCTION_RULES["euclid"] = Reduction(hypotenuse, 0.0)
    yield
    for table in (SCALARS, SCALAR_RULES):
        table.pop("soften", None)
    for table in (REDUCTIONS, REDUCTION_RULES):
        table.pop("euclid", None)
    for name in ("soften", "euclid"):
        del IMPLEMENTATIONS[f"transformer.{name}"]


def both_sides(tokens: int, k: int, outputs: int, element: Attribute = f32) -> func.FuncOp:
    """soften(x, euclid(x)) @ wᵀ, and the same two ops again on the product."""
    x, w = TensorType(element, [tokens, k]), TensorType(element, [outputs, k])
    function = func.FuncOp("extended", ((x, w), (TensorType(element, [tokens, outputs]),)))
    block = function.body.block
    block.args[0].name_hint, block.args[1].name_hint = "x", "w"

    def softened(value: SSAValue) -> SSAValue:
        size = EuclidOp(value)
        soft = SoftenOp(value, size.result)
        block.add_ops([size, soft])
        return soft.result

    linear = LinearOp(softened(block.args[0]), block.args[1])
    block.add_op(linear)
    block.add_op(func.ReturnOp(softened(linear.result)))
    return function


def meaning(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The function in plain torch."""
    for factor in (w, None):
        x = x / (1 + x.norm(dim=-1, keepdim=True))
        x = x if factor is None else x @ factor.T
    return x


def kinds(compiled: Compiled) -> list[str]:
    return [str(entry["kind"]) for entry in compiled.entries("joined")]


@pytest.mark.parametrize(
    ("tokens", "k", "schedules", "skeleton"),
    [
        pytest.param(1, 40, {}, "gemv", id="gemv"),
        pytest.param(1, 300, {"gemv": {"k": 16}}, "gemv", id="gemv in a loop, the reduction chunk by chunk"),
        pytest.param(21, 72, {"mma": {"m": 16, "k": 16}}, "mma", id="mma in a loop, the reduction chunk by chunk"),
    ],
)
def test_both_fuse_before_and_after_a_contraction(tokens: int, k: int, schedules: dict, skeleton: str) -> None:
    compiled = compile_function(both_sides(tokens, k, 24), schedules=schedules, after="specialized")
    (region,) = compiled.regions
    assert compiled.skeletons == [skeleton]
    assert {"prologue", "epilogue"} <= set(kinds(compiled))
    names = [op.name if op.name != "tile.map" else op.kind.data for op in region.body.block.ops]
    middle = names.index("tile.contract")
    for side in (names[:middle], names[middle:]):
        assert "soften" in side and "tile.reduce" in side
    x, w = numbers([tokens, k], 1), numbers([24, k], 2)
    (found,) = agree(compiled, {"x": x, "w": w})
    torch.testing.assert_close(found, meaning(x, w), rtol=0, atol=1e-4)
    (source,) = compiled.sources.values()
    assert source.count("tl.reduce(") == 2


def test_they_round_where_other_ops_round() -> None:
    """In a narrow type each op computes in float32 and rounds once, here as at level 1."""
    function = both_sides(3, 40, 24, f16)
    body, _ = export_function(function)
    compiled = compile_function(function, after="specialized")
    x, w = numbers([3, 40], 1, torch.float16), numbers([24, 40], 2, torch.float16)
    (expected,) = agree(compiled, {"x": x, "w": w}, 2e-3)
    assert torch.equal(expected, evaluate(body, [x, w])[0])


def test_an_op_without_a_rule_is_refused_by_name() -> None:
    """Without its scalar rule the same function stops at the lowering: nothing falls back to a neighbour's rule."""
    del SCALAR_RULES["soften"]
    with pytest.raises(PassError, match="no scalar rule soften"):
        compile_function(both_sides(1, 40, 24), after="specialized")

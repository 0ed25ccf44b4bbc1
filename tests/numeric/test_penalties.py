"""Penalized logits and the factors that know a new token, in printed kernels of every number of rows and columns."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType, f32, i32

from lamella.dialects.transformer import AdvanceOp, MarkOp, PenalizeOp
from lamella.semantics import IMPLEMENTATIONS
from tests.numeric.harness import agree, compile_function, numbers


def last_ops(rows: int, width: int) -> func.FuncOp:
    """Logits that are penalized, and factors that are marked."""
    table, vector = TensorType(f32, [rows, width]), TensorType(f32, [rows])
    types = [table, table, TensorType(i32, [rows]), vector]
    function = func.FuncOp("case", (types, [table, table]))
    block = function.body.block
    for value, name in zip(block.args, ("logits", "factors", "tokens", "penalty"), strict=True):
        value.name_hint = name
    logits, factors, tokens, penalty = block.args
    held, known = PenalizeOp(logits, factors, loc="penalize"), MarkOp(factors, tokens, penalty, loc="factors")
    block.add_ops([held, known, func.ReturnOp(held.result, known.result)])
    return function


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 67), (1, 9000), (3, 64), (5, 4099), (32, 33)])
def test_rows_and_columns_of_all_sizes(rows: int, width: int) -> None:
    compiled = compile_function(last_ops(rows, width), after="specialized")
    assert set(compiled.skeletons) == {"row"}
    logits = numbers([rows, width], 1, scale=5.0)
    logits[0, 0] = 0.0
    tokens = torch.tensor([(7919 * row + 5) % width for row in range(rows)], dtype=torch.int32)
    factors = torch.where(numbers([rows, width], 2) > 0, 1.0, 1.3)
    penalty = 1 + torch.arange(rows) / 8
    held, known = agree(compiled, {"logits": logits, "factors": factors, "tokens": tokens, "penalty": penalty})
    torch.testing.assert_close(held, torch.where(logits < 0, logits * factors, logits / factors), rtol=1e-6, atol=0)
    expected = IMPLEMENTATIONS["transformer.mark"](factors, tokens, penalty)
    assert torch.equal(known, expected) and (known != factors).sum() <= rows


def counted(rows: int, width: int) -> func.FuncOp:
    """Factors that are marked, beside numbers that count on, as a step that feeds the next one ends."""
    table, vector = TensorType(f32, [rows, width]), TensorType(i32, [rows])
    function = func.FuncOp("case", ([table, vector, TensorType(f32, [rows]), vector], [table, vector]))
    block = function.body.block
    for value, name in zip(block.args, ("factors", "tokens", "penalty", "positions"), strict=True):
        value.name_hint = name
    factors, tokens, penalty, positions = block.args
    known, following = MarkOp(factors, tokens, penalty, loc="factors"), AdvanceOp(positions, loc="positions")
    block.add_ops([known, following, func.ReturnOp(known.result, following.result)])
    return function


@pytest.mark.parametrize(("rows", "width"), [(1, 9000), (7, 300), (32, 33)])
def test_factors_are_updated_in_place_beside_vectors(rows: int, width: int) -> None:
    """One launch, whose programs run in shuffled order, and storage that is its own input."""
    compiled = compile_function(counted(rows, width), after="specialized", ties={0: 0, 1: 3})
    assert compiled.skeletons == ["row"]
    assert len(compiled.entries("in_place")) == 2 and not compiled.entries("not_in_place")
    tokens = torch.tensor([(31 * row + 2) % width for row in range(rows)], dtype=torch.int32)
    given = {"factors": numbers([rows, width], 2), "tokens": tokens, "penalty": numbers([rows], 3), "positions": torch.arange(rows).int()}
    known, following = agree(compiled, given)
    assert torch.equal(known, IMPLEMENTATIONS["transformer.mark"](given["factors"], tokens, given["penalty"]))
    assert following.tolist() == list(range(1, rows + 1))

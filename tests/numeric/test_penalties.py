"""Penalized logits and the factors that know a new token, in printed kernels of every number of rows and columns."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects import func
from xdsl.dialects.builtin import TensorType, f32, i32
from xdsl.ir import Block

from lamella.dialects.transformer import MarkOp, PenalizeOp
from lamella.semantics import IMPLEMENTATIONS
from tests.numeric.harness import agree, compile_function, numbers


def last_ops(rows: int, width: int) -> func.FuncOp:
    """Logits that are penalized, and factors that are marked."""
    table, vector = TensorType(f32, [rows, width]), TensorType(f32, [rows])
    types = [table, table, TensorType(i32, [rows]), vector]
    function = func.FuncOp("case", (types, [table, table]))
    block = function.body.block
    assert isinstance(block, Block)
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

"""Bodies as functions: they compute what the same torch calls do, and say which op has no meaning."""

import pytest
import torch

from lamella.errors import ManifestError
from lamella.runtime.evaluate import compile_body, evaluate

NORM = {
    "args": 2,
    "ops": [
        ["tile.constant", [], {"value": 1e-5}, [2]],
        ["tile.constant", [], {"value": 24.0}, [3]],
        ["tile.cast", [0], {"dtype": "f32"}, [4]],
        ["tile.map", [4], {"kind": "square"}, [5]],
        ["tile.reduce", [5], {"kind": "sum"}, [6]],
        ["tile.map", [6, 3], {"kind": "div"}, [7]],
        ["tile.map", [7, 2], {"kind": "add"}, [8]],
        ["tile.map", [8], {"kind": "rsqrt"}, [9]],
        ["tile.map", [4, 9], {"kind": "mul"}, [10]],
        ["tile.cast", [10], {"dtype": "f16"}, [11]],
        ["tile.contract", [11, 1], {}, [12]],
    ],
    "yields": [12, 11],
}


def test_a_body_equals_the_torch_calls_it_lists() -> None:
    x, w = torch.randn(5, 24).half(), torch.randn(7, 24).half()
    projected, normal = evaluate(NORM, [x, w])
    expected = (x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) / 24 + 1e-5)).half()
    assert torch.equal(normal, expected)
    assert projected.dtype == torch.float32
    torch.testing.assert_close(projected, expected.float() @ w.float().T)


def test_a_compiled_body_keeps_nothing_between_calls() -> None:
    run = compile_body(NORM)
    w = torch.randn(7, 24)
    first, second = torch.randn(1, 24), torch.randn(3, 24)
    alone = [t.clone() for t in run(second, w)]
    run(first, w)
    assert all(torch.equal(a, b) for a, b in zip(alone, run(second, w), strict=True))


def test_ops_with_several_results() -> None:
    attributes = {"heads": 2, "kv_heads": 1, "head_dim": 4, "scale": 0.5, "splits": 3, "tile": 2}
    body = {
        "args": 5,
        "ops": [
            ["tile.attend_partial", [0, 1, 2, 3, 4], attributes, [5, 6, 7]],
            ["tile.attend_merge", [5, 6, 7], {}, [8]],
        ],
        "yields": [8, 7],
    }
    cache = torch.randn(3, 2, 1, 4, 4)
    ints = [torch.tensor(v, dtype=torch.int32) for v in ([[1, 2]], [0, 1], [6])]
    merged, total = evaluate(body, [torch.randn(1, 8), cache, *ints])
    assert merged.shape == (1, 8)
    assert total.shape == (1, 2, 3)
    assert torch.isfinite(merged).all()


def test_a_no_op_cast_and_a_scatter_return_their_operand() -> None:
    body = {
        "args": 3,
        "ops": [["tile.cast", [0], {"dtype": "f32"}, [3]], ["tile.scatter", [3, 1, 2], {"part": 1}, [4]]],
        "yields": [3, 4],
    }
    values, cache, slots = torch.randn(1, 4), torch.zeros(2, 2, 1, 4, 4), torch.tensor([5], dtype=torch.int32)
    same, written = evaluate(body, [values, cache, slots])
    assert same is values
    assert written is cache
    assert torch.equal(cache[1, 1, 0, 1], values[0])


def test_weights_by_name() -> None:
    body = {
        "args": 1,
        "ops": [["transformer.weight", [], {"name": "w"}, [1]], ["transformer.linear", [0, 1], {"dtype": "f32"}, [2]]],
        "yields": [2],
    }
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    torch.testing.assert_close(evaluate(body, [x], {"w": w})[0], x @ w.T)
    with pytest.raises(ManifestError, match="no weight 'w' was given"):
        compile_body(body)


def test_an_unknown_op_names_the_nearest() -> None:
    with pytest.raises(ManifestError, match=r"op 'tile\.contrct' has no semantics \(nearest: tile\.contract"):
        compile_body({"args": 2, "ops": [["tile.contrct", [0, 1], {}, [2]]], "yields": [2]})


def test_the_number_of_tensors_is_checked() -> None:
    with pytest.raises(ValueError, match="takes 2 tensors, got 1"):
        evaluate(NORM, [torch.randn(1, 24)])

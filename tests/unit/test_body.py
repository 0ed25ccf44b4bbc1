"""Regions and whole functions in the body form, and what the evaluator makes of them."""

from __future__ import annotations

import json

import pytest
import torch
from xdsl.dialects import func
from xdsl.parser import Parser

from lamella import registry
from lamella.dialects.tile import FusedOp
from lamella.errors import PassError
from lamella.lowering.body import export_body, export_function, handles_of
from lamella.runtime.evaluate import evaluate

NORM = """
func.func @norm(%x: tensor<3x8xbf16>) -> (tensor<3x8xbf16>, tensor<3x8xf32>) {
  %y, %z = tile.fused ins(%x : tensor<3x8xbf16>) {
  ^bb0(%a: tensor<3x8xbf16>):
    %eps = tile.constant 0.5 : f32 : tensor<f32>
    %b = tile.cast %a : tensor<3x8xbf16> -> tensor<3x8xf32>
    %s = tile.reduce "sum" %b : tensor<3x8xf32> -> tensor<3x1xf32>
    %t = tile.map "add"(%s, %eps) : tensor<3x1xf32>, tensor<f32> -> tensor<3x1xf32>
    %c = tile.map "mul"(%b, %t) {loc = "layers.0"} : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
    %d = tile.cast %c : tensor<3x8xf32> -> tensor<3x8xbf16>
    tile.yield %d, %b : tensor<3x8xbf16>, tensor<3x8xf32>
  } -> tensor<3x8xbf16>, tensor<3x8xf32>
  func.return %y, %z : tensor<3x8xbf16>, tensor<3x8xf32>
}"""


def parse(text: str) -> func.FuncOp:
    module = Parser(registry.context(), text).parse_module()
    module.verify()
    function = module.body.block.first_op
    assert isinstance(function, func.FuncOp)
    return function


def region(function: func.FuncOp) -> FusedOp:
    return next(op for op in function.body.block.ops if isinstance(op, FusedOp))


def test_a_region_is_numbered_arguments_first_and_keeps_only_what_computes() -> None:
    body = export_body(region(parse(NORM)).body.block)
    assert body == {
        "args": 1,
        "ops": [
            ["tile.constant", [], {"value": 0.5}, [1]],
            ["tile.cast", [0], {"dtype": "f32"}, [2]],
            ["tile.reduce", [2], {"kind": "sum"}, [3]],
            ["tile.map", [3, 1], {"kind": "add"}, [4]],
            ["tile.map", [2, 4], {"kind": "mul"}, [5]],
            ["tile.cast", [5], {"dtype": "bf16"}, [6]],
        ],
        "yields": [6, 2],
    }
    assert json.loads(json.dumps(body)) == body


def test_a_function_inlines_its_regions() -> None:
    function = parse(NORM)
    body, names = export_function(function)
    assert names == []
    x = torch.randn(3, 8).to(torch.bfloat16)
    direct = evaluate(export_body(region(function).body.block), [x])
    inlined = evaluate(body, [x])
    for a, b in zip(direct, inlined, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(inlined[0], (x.float() * (x.float().sum(-1, keepdim=True) + 0.5)).to(torch.bfloat16), rtol=0, atol=0)


CHAIN = """
func.func @chain(%x: tensor<2x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>) {
  %w = transformer.weight "up" : tensor<8x8xf32>
  %table = transformer.rope_table {length = 4 : i64, rotary_dim = 8 : i64, theta = 10.0 : f64, scaling = {}} : tensor<4x8xf32>
  %y = tile.fused ins(%w, %x : tensor<8x8xf32>, tensor<2x8xf32>) {
  ^bb0(%a: tensor<8x8xf32>, %b: tensor<2x8xf32>):
    %r = tile.contract %b, %a : tensor<2x8xf32>, tensor<8x8xf32> -> tensor<2x8xf32>
    tile.yield %r : tensor<2x8xf32>
  } -> tensor<2x8xf32>
  %z, %same = tile.fused ins(%y, %x : tensor<2x8xf32>, tensor<2x8xf32>) {
  ^bb0(%a: tensor<2x8xf32>, %b: tensor<2x8xf32>):
    %r = tile.map "sub"(%b, %a) : tensor<2x8xf32>, tensor<2x8xf32> -> tensor<2x8xf32>
    tile.yield %r, %b : tensor<2x8xf32>, tensor<2x8xf32>
  } -> tensor<2x8xf32>, tensor<2x8xf32>
  func.return %z, %same : tensor<2x8xf32>, tensor<2x8xf32>
}"""


def test_handles_are_arguments_after_those_of_the_function() -> None:
    function = parse(CHAIN)
    body, names = export_function(function)
    assert names == ["up", "rope_table"]
    assert [op.name for op in handles_of(function)] == ["transformer.weight", "transformer.rope_table"]
    assert body["args"] == 3
    x, w = torch.randn(2, 8), torch.randn(8, 8)
    z, same = evaluate(body, [x, w, torch.zeros(4, 8)])
    torch.testing.assert_close(z, x - x @ w.T)
    torch.testing.assert_close(same, x, rtol=0, atol=0)


def test_level_one_runs_as_it_is() -> None:
    function = parse("""
func.func @level1(%x: tensor<2x8xf32>) -> tensor<2x4xf32> {
  %w = transformer.weight "down" : tensor<4x8xf32>
  %y = transformer.linear %x, %w : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}""")
    body, names = export_function(function)
    x, w = torch.randn(2, 8), torch.randn(4, 8)
    assert names == ["down"]
    torch.testing.assert_close(evaluate(body, [x, w])[0], x @ w.T)


def test_a_region_on_buffers_is_refused() -> None:
    function = parse("""
func.func @buffers(%x: memref<4xf32>) {
  tile.fused ins(%x : memref<4xf32>) outs(%x : memref<4xf32>) attributes {loc = "layers.0"} {
  ^bb0(%a: tensor<4xf32>):
    tile.yield %a : tensor<4xf32>
  }
  func.return
}""")
    with pytest.raises(PassError, match=r"tile.fused at layers.0: a region on buffers cannot be inlined, expected tensors"):
        export_function(function)
    assert export_body(region(function).body.block) == {"args": 1, "ops": [], "yields": [0]}


def test_a_value_from_outside_is_refused() -> None:
    function = parse("""
func.func @outside(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = tile.map "silu"(%x) : tensor<4xf32> -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}""")
    block = function.body.block
    first = block.first_op
    assert first is not None
    first.operands[0] = parse(CHAIN).body.block.args[0]
    with pytest.raises(PassError, match="operand 0 comes from outside of the body"):
        export_body(block)

"""A checkpoint that stores [inputs, outputs] (GPT-2's Conv1D): its transposes run once, at load time, and the report says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from lamella import api, registry
from lamella.dialects import signature
from lamella.dialects.transformer import TransposeOp
from lamella.lowering.body import export_function
from lamella.lowering.weights import made_weights
from lamella.runtime.evaluate import evaluate
from lamella.tools.explain import explain

CONV1D = """
func.func @forward(%x: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x6xf32>, tensor<3x4xf32>) {
  %wa = transformer.weight "c_attn" : tensor<4x14xf32>
  %wp = transformer.weight "c_proj" : tensor<6x4xf32>
  %ta = transformer.transpose %wa : (tensor<4x14xf32>) -> tensor<14x4xf32>
  %fused = transformer.linear %x, %ta : (tensor<3x4xf32>, tensor<14x4xf32>) -> tensor<3x14xf32>
  %a = transformer.slice_columns %fused {start = 0 : i64, size = 8 : i64} : (tensor<3x14xf32>) -> tensor<3x8xf32>
  %b = transformer.slice_columns %fused {start = 8 : i64, size = 6 : i64} : (tensor<3x14xf32>) -> tensor<3x6xf32>
  %c = transformer.slice_columns %a {start = 0 : i64, size = 4 : i64} : (tensor<3x8xf32>) -> tensor<3x4xf32>
  %tp = transformer.transpose %wp : (tensor<6x4xf32>) -> tensor<4x6xf32>
  %y = transformer.linear %b, %tp {loc = "proj"} : (tensor<3x6xf32>, tensor<4x6xf32>) -> tensor<3x4xf32>
  func.return %c, %b, %y : tensor<3x4xf32>, tensor<3x6xf32>, tensor<3x4xf32>
}"""
"""A projection in two parts, and another one behind a part."""


def laid_out(passes: str) -> ModuleOp:
    """The module after some passes."""
    ctx = registry.context()
    module = Parser(ctx, CONV1D).parse_module()
    for one in registry.parse_passes(passes):
        one.apply(ctx, module)
        module.verify()
    return module


@pytest.mark.parametrize(
    ("passes", "line"),
    [
        ("propagate-layout,fold-constants", "2 in a step before, 0 after: 2 of weights at load time"),
        # What splits the fused weight has moved its transpose already; it is one of those that a step had.
        ("split-linears,propagate-layout,fold-constants", "2 in a step before, 0 after: 2 of weights at load time"),
    ],
)
def test_transposes_of_weights_move_to_load_time(passes: str, line: str) -> None:
    module = laid_out(passes)
    (step,) = signature.steps(module)
    assert [op for op in step.walk() if isinstance(op, TransposeOp)] == []
    assert [r["reason"] for r in signature.records(step) if r["verdict"] == "layout"] == [line]

    torch.manual_seed(0)
    checkpoint = {"c_attn": torch.randn(4, 14), "c_proj": torch.randn(6, 4)}
    weights = dict(checkpoint)
    for name, spec in made_weights(module).items():
        (weights[name],) = evaluate(spec.transform, [checkpoint[source.name] for source in spec.sources])
    body, names = export_function(step)
    x = torch.randn(3, 4)
    found = evaluate(body, [x, *(weights[name] for name in names)])
    fused = x @ checkpoint["c_attn"]
    for value, expected in zip(found, (fused[:, :4], fused[:, 8:], fused[:, 8:] @ checkpoint["c_proj"]), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


def test_a_gpt2_has_no_transpose_in_a_step_and_explain_says_so(tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_inner": 64, "n_positions": 64, "vocab_size": 61}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        **sizes,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = api.compile(tmp_path / "config.json", random_weights=0, buckets=(1,), until="plan")
    # Fused q, k and v, the attention's projection, and two in the MLP: four a layer.
    lines = [" ".join(line.split()) for line in explain(program.ledger).splitlines()]
    assert "layout transposes 8 in a step before, 0 after: 8 of weights at load time" in lines
    assert "transformer.transpose" not in program.ir("specialized")

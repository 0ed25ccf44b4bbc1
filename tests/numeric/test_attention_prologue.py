"""What comes before the queries of an attention runs in its launch, also where the context is split: rotations, scales, activations."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import TensorType, f32

from lamella.dialects.tile import AttendOp, RotateOp
from tests.numeric.harness import agree, compile_function, numbers
from tests.numeric.test_schedules_attention import Batch


@pytest.mark.parametrize("blocks", [2, 16], ids=["whole", "split"])
@pytest.mark.parametrize("lengths", [[(1, 30)], [(3, 20), (5, 32)]], ids=["one token", "several sequences"])
def test_queries_are_rotated_in_the_launch_that_reads_them(lengths: list[tuple[int, int]], blocks: int) -> None:
    batch = Batch(lengths, heads=6, kv_heads=2, dim=16, block=16, blocks=blocks)
    g, tokens = batch.g, batch.real
    angles = g.block.insert_arg(TensorType(f32, [tokens, 12]), len(g.block.args))
    angles.name_hint, g.arguments["angles"] = "angles", angles
    turned = g.add(RotateOp(g.map("mul", g["q"], 1.5), angles, heads=6, head_dim=16, rotary_dim=12, style="half"))
    mixed = g.add(AttendOp(turned, *(g[n] for n in ("cache", "block_table", "query_start", "context_len")), **batch.sizes))
    compiled = compile_function(g.returns(g.map("add", mixed, g["q"])), longest_query=batch.longest)
    assert compiled.skeletons == ["attend"]
    assert sorted(e["kind"] for e in compiled.entries("joined")) == ["epilogue", "prologue", "vertical"]
    agree(compiled, {**batch.given, "angles": numbers([tokens, 12], 3)})

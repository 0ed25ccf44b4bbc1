"""Bytes and operations of launches, steps and pools, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lamella import api, registry
from lamella.errors import ManifestError
from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.runtime.memory import reserve
from lamella.tools.costs import SHAPES, Cost, context_of, flops, infer, launch_cost, pairs, pools, size_of, step_cost
from tests.unit import tiny_program

# One layer, f32: hidden 8, 2 heads on 1 of 4, vocabulary 11, blocks of 4 tokens, 8 blocks a sequence.
PROGRAM = Manifest.from_json(tiny_program.manifest())
PREFILL, _, DECODE, RAGGED = PROGRAM.buckets


def cost(bucket: Bucket, kernel: str, context: int) -> Cost:
    launch = next(launch for launch in bucket.launches if launch.kernel == kernel)
    return launch_cost(PROGRAM, bucket, launch, context)


def test_a_gather_reads_the_rows_it_is_asked_for() -> None:
    assert cost(PREFILL, "embed", 8) == Cost(weights=8 * 8 * 4, inputs=8 * 4, activations=8 * 8 * 4)
    assert cost(DECODE, "embed", 20) == Cost(weights=8 * 4, inputs=4, activations=8 * 4)


def test_a_gather_of_more_rows_than_the_table_has_reads_it_once() -> None:
    # 12 tokens, a table of 11 rows.
    assert cost(RAGGED, "embed", 8).weights == 11 * 8 * 4


def test_a_scatter_writes_its_rows_and_reads_no_cache() -> None:
    found = cost(DECODE, "write", 20)
    # Two weights of 4 by 8; x; positions, query_start and the one entry of the block table that names this token's block.
    assert found == Cost(weights=2 * 4 * 8 * 4, inputs=4 + 2 * 4 + 4, activations=8 * 4, cache=2 * 4 * 4, flops={"f32": 2 * 2 * 1 * 8 * 4})
    assert cost(PREFILL, "write", 8).cache == 8 * 2 * 4 * 4


def test_attention_reads_the_context_of_each_sequence() -> None:
    found = cost(DECODE, "attend", 18)
    # Keys and values of 18 tokens, and the five entries of the block table that hold them; x read, y written.
    assert found.cache == 18 * 2 * 4 * 4
    assert found.inputs == 5 * 4 + 2 * 4 + 4
    assert found.activations == 2 * 8 * 4
    assert found.flops == {"f32": 4 * 2 * 4 * 18}
    assert cost(RAGGED, "attend", 6).cache == 4 * 6 * 2 * 4 * 4


def test_causal_pairs() -> None:
    # Token i of a fresh sequence of 8 sees i + 1 tokens; the next 8 of 20 see 13 to 20; a decode step sees all.
    assert pairs(PREFILL, 8) == sum(range(1, 9))
    assert pairs(PREFILL, 20) == sum(range(13, 21))
    assert pairs(DECODE, 20) == 20
    assert pairs(RAGGED, 6) == 4 * (4 + 5 + 6)


def test_the_head_multiplies_only_the_rows_that_want_logits() -> None:
    found = cost(PREFILL, "head", 8)
    assert found == Cost(weights=11 * 8 * 4, inputs=4, activations=8 * 4 + 11 * 4, flops={"f32": 2 * 8 * 11})
    assert cost(RAGGED, "head", 6).flops == {"f32": 4 * 2 * 8 * 11}


def test_one_storage_given_twice_is_read_once_and_written_apart() -> None:
    found = cost(DECODE, "advance", 20)
    # Logits; four sampling parameters, the position and its row, the context length; next, position and context length are written.
    assert found == Cost(activations=11 * 4, inputs=(5 + 3 + 3) * 4)
    launch = next(launch for launch in PREFILL.launches if launch.kernel == "write")
    doubled = Launch(launch.kernel, launch.grid, (*launch.args[:2], launch.args[1], *launch.args[3:]))
    assert launch_cost(PROGRAM, PREFILL, doubled, 8).weights == 4 * 8 * 4


def test_a_step_is_the_sum_of_its_launches() -> None:
    launches = [launch_cost(PROGRAM, DECODE, launch, 20) for launch in DECODE.launches]
    whole = step_cost(PROGRAM, DECODE, 20)
    assert whole.bytes == sum(c.bytes for c in launches)
    assert whole.flops == {"f32": sum(c.flops.get("f32", 0) for c in launches)}


@pytest.mark.parametrize(("bucket", "expected"), [(DECODE, 20), (PREFILL, 8), (RAGGED, 3)])
def test_only_a_decode_step_continues_a_context(bucket: Bucket, expected: int) -> None:
    assert context_of(bucket, 20) == expected


def test_pools_count_the_null_block() -> None:
    weights = (11 * 8 + 4 * 8 + 4 * 8 + 11 * 8) * 4
    inputs = sum(4 * (2 * n + (b + 1) + b + 8 * b + 6 * r) for n, b, _, r, _ in tiny_program.BUCKETS)
    assert pools(PROGRAM, 9) == {
        "weights": weights,
        "constants": 0,
        "arena": PROGRAM.arena_bytes,
        "inputs": inputs,
        "cache": (1 + 3) * 4 * 2 * 4 * 4,
        "graphs": 0,
    }


def test_the_runtime_reserves_what_is_predicted() -> None:
    memory = reserve(PROGRAM, tiny_program.weights(), {}, torch.device("cpu"), cache_tokens=9)
    found = pools(PROGRAM, 9)
    assert sum(c.numel() * c.element_size() for c in memory.caches) == found["cache"]
    assert sum(t.numel() * t.element_size() for inputs in memory.inputs.values() for t in inputs.values()) == found["inputs"]
    assert memory.arena.numel() == found["arena"]


def test_one_row_is_no_work_for_tensor_cores() -> None:
    body: dict[str, Any] = {"args": 2, "ops": [["tile.contract", [0, 1], {}, [2]]], "yields": [2]}
    assert infer(body, [("bf16", (1, 8)), ("bf16", (4, 8))])[2] == ("f32", (1, 4))
    for rows, kind in ((1, "f32"), (5, "bf16")):
        values = infer(body, [("bf16", (rows, 8)), ("bf16", (4, 8))])
        assert flops(body, values, DECODE, 1) == {kind: 2 * rows * 8 * 4}


def test_partials_of_attention() -> None:
    attributes = {"heads": 4, "kv_heads": 2, "head_dim": 8, "splits": 3, "scale": 1.0}
    body = {"args": 5, "ops": [["tile.attend_partial", [0, 1, 2, 3, 4], attributes, [5, 6, 7]], ["tile.attend_merge", [5, 6, 7], {}, [8]]]}
    values = infer(body, [("bf16", (2, 32)), ("bf16", (1, 2, 2, 16, 8)), ("i32", (2, 4)), ("i32", (3,)), ("i32", (2,))])
    assert [values[i] for i in (5, 6, 7, 8)] == [("f32", (2, 4, 3, 8)), ("f32", (2, 4, 3)), ("f32", (2, 4, 3)), ("f32", (2, 32))]


def test_a_decode_step_moves_little_but_weights_cache_and_logits() -> None:
    """Llama-3.2-1B, one token at a context of 1000: within 3 % of what the mathematics needs."""
    program = api.compile("benchmarks/models/llama-3.2-1b.json", random_weights=0, buckets=[1], max_context=2048, keep_ir=False)
    assert program.manifest is not None
    manifest = program.manifest
    weights = sum(size_of((w.dtype, w.shape)) for w in manifest.weights.values())
    cache, logits = 1000 * 16 * 2 * 8 * 64 * 2, 2 * 128256 * 4
    moved = step_cost(manifest, manifest.buckets[0], 1000).bytes
    assert weights + cache + logits <= 1.001 * moved
    assert moved <= 1.03 * (weights + cache + logits)


def test_every_op_that_computes_has_a_rule() -> None:
    structural = {"tile.fused", "tile.yield"}
    assert {op.name for op in registry.DIALECTS["tile"]().operations} - structural - SHAPES.keys() == set()


def test_an_op_without_a_rule_is_named() -> None:
    body = {"args": 1, "ops": [["tile.gathr", [0], {}, [1]]], "yields": [1]}
    with pytest.raises(ManifestError, match=r"costs: no rule says what tile\.gathr makes \(nearest: tile\.gather"):
        infer(body, [("f32", (1,))])

"""From planned modules to the manifest: what it says of launches, weights and memory, and that the reference executor can run it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp, f32
from xdsl.rewriter import Rewriter

from lamella import pipeline
from lamella.dialects.attributes import attributes_of, shape_of
from lamella.dialects.host import WeightOp
from lamella.errors import PassError
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import build
from lamella.lowering.body import export_function, handles_of
from lamella.lowering.manifest import export_manifest
from lamella.runtime.evaluate import evaluate
from lamella.runtime.executor import make_executor
from lamella.runtime.manifest import Manifest, WeightSpec
from lamella.semantics import IMPLEMENTATIONS

CONFIG = ModelConfig("llama", 3, 96, 6, 2, 16, 200, 257, 1e-5, 10000.0, eos=(2,))
BLOCKS = 8


def module(stage: str, tokens: int, after: ModuleOp | None = None) -> ModuleOp:
    options = pipeline.Options(tokens=tokens, longest_query=tokens, blocks=BLOCKS, length=BLOCKS * 16, advance=tokens == 1)
    if after is not None:
        return pipeline.run(after.clone(), options, after="plan", until=stage, verify_each=True)
    return pipeline.run(build(CONFIG, dtype="f32", block=16), options, until=stage, verify_each=True)


def function_of(module: ModuleOp) -> func.FuncOp:
    return next(op for op in module.ops if isinstance(op, func.FuncOp))


def manifest_of(*plans: ModuleOp, programs: list[ModuleOp] | None = None) -> Manifest:
    return export_manifest(CONFIG, plans, programs, dtype="f32", max_context=BLOCKS * 16, transforms=module("model", 1))


@pytest.fixture(scope="module")
def plans() -> dict[int, ModuleOp]:
    return {tokens: module("plan", tokens) for tokens in (13, 1)}


def test_what_the_manifest_says(plans: dict[int, ModuleOp]) -> None:
    manifest = manifest_of(*plans.values())
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))).to_json() == manifest.to_json()
    prefill, decode = manifest.buckets
    assert decode.key == (1, 1, 1, 1, True)
    assert [i.name for i in decode.inputs][:3] == ["tokens", "positions", "query_start"]
    assert decode.refs["next"].to_json() == {"pool": "input", "name": "tokens"}
    assert decode.refs["cache.2"].to_json() == {"pool": "cache", "layer": 2}
    assert decode.refs["logits"].pool == "arena"
    assert decode.max_live_bytes <= decode.arena_bytes < decode.buffer_bytes
    assert manifest.arena_bytes == prefill.arena_bytes
    assert (manifest.cache.layers, manifest.cache.blocks_per_sequence, manifest.cache.paired) == (3, BLOCKS, 16)
    key = manifest.weights["layers.1.attn.k_proj.paired.scaled"]
    assert [s.name for s in key.sources] == ["layers.1.attn.k_proj", "layers.1.attn_norm"]
    assert key.transform["ops"] == [
        ["transformer.pair_rows", [0], {"head_dim": 16, "rotary_dim": 16}, [2]],
        ["transformer.scale_columns", [2, 1], {}, [3]],
    ]
    assert manifest.weights["layers.1.attn.o_proj"] == WeightSpec("f32", (96, 96))
    assert not any("norm" in name for name in manifest.weights)
    assert manifest.constants["rope_table"].op == "transformer.rope_table"
    assert {k for k in manifest.kernels if k.startswith("t1_")} == {launch.kernel for launch in decode.launches}
    per_layer = [launch for launch in decode.launches if launch.loc.startswith("layers.1")]
    assert len(per_layer) <= 6
    assert "contract" in manifest.kernels[per_layer[0].kernel].sources


def test_layers_share_their_kernels(plans: dict[int, ModuleOp]) -> None:
    # The first layer may differ (its norm has no producer), the last may too; what lies between repeats.
    attends = [launch.kernel for launch in manifest_of(plans[1]).buckets[0].launches if "attend" in launch.kernel]
    assert len(attends) == CONFIG.layers
    assert len(set(attends)) == 1


def test_grids_and_files_come_from_the_program(plans: dict[int, ModuleOp]) -> None:
    program = module("kernels", 1, after=plans[1])
    manifest = manifest_of(plans[1], programs=[program])
    assert any(launch.grid[0] > 1 for launch in manifest.buckets[0].launches)
    assert all(kernel.file == f"kernels/{name}.py" for name, kernel in manifest.kernels.items())
    assert [launch.grid for launch in manifest_of(plans[1]).buckets[0].launches] == [(1, 1, 1)] * len(manifest.buckets[0].launches)
    other = program.clone()
    function_of(other).body.block.erase_op(next(op for op in function_of(other).body.block.ops if op.name == "host.launch"))
    with pytest.raises(PassError, match="launches other kernels than the plan"):
        manifest_of(plans[1], programs=[other])


def test_what_cannot_be_exported(plans: dict[int, ModuleOp]) -> None:
    with pytest.raises(PassError, match=r"func.func @forward: the function is not planned \(run plan-memory first\)"):
        manifest_of(module("buffers", 1))
    unnamed = plans[1].clone()
    next(op for op in unnamed.walk() if op.name == "tile.fused").attributes.pop("kernel")
    with pytest.raises(PassError, match=r"has no kernel.*\(run number-kernels first\)"):
        manifest_of(unnamed)
    other = plans[1].clone()
    table = next(op for op in other.walk() if isinstance(op, WeightOp) and op.weight_name.data == "embed")
    Rewriter.replace_value_with_new_type(table.result, MemRefType(f32, [1, 96]))
    with pytest.raises(PassError, match="embed has another type than before"):
        manifest_of(plans[13], other)


def inputs(tokens: torch.Tensor, start: int) -> dict[str, torch.Tensor]:
    count = len(tokens)
    return {
        "tokens": tokens.to(torch.int32),
        "positions": torch.arange(start, start + count, dtype=torch.int32),
        "query_start": torch.tensor([0, count], dtype=torch.int32),
        "context_len": torch.tensor([start + count], dtype=torch.int32),
        "block_table": torch.tensor([[3, 1, 2, 4, 5, 6, 7, 8]], dtype=torch.int32),
        "logit_rows": torch.tensor([count - 1], dtype=torch.int32),
        "temperature": torch.zeros(1),
        "top_k": torch.zeros(1, dtype=torch.int32),
        "top_p": torch.ones(1),
        "min_p": torch.zeros(1),
        "seed": torch.zeros(1, dtype=torch.int32),
    }


def test_the_reference_executor_agrees_with_level_one(plans: dict[int, ModuleOp]) -> None:
    """Prefill, a decode and a decode that takes token and positions from the step before, with dead buffers poisoned, in float32 to 1e-4."""
    generator = torch.Generator().manual_seed(0)
    functions = {tokens: function_of(module("specialized", tokens)) for tokens in (13, 1)}
    handles: dict[str, torch.Tensor] = {}
    for op in handles_of(functions[1]):
        attributes = attributes_of(op)
        if op.name != "transformer.weight":
            handles["rope_table"] = IMPLEMENTATIONS[op.name](**attributes)
        else:
            handles[attributes["name"]] = torch.randn(shape_of(op.results[0]), generator=generator) * 0.3
    weights = {name: weight for name, weight in handles.items() if name != "rope_table"}
    executor = make_executor(manifest_of(*plans.values()), weights, executor="reference", device="cpu", cache_tokens=128)
    prefill, decode = executor.manifest.buckets
    caches = [torch.zeros(9, 2, 2, 16, 16) for _ in range(CONFIG.layers)]
    tokens, start = torch.randint(0, CONFIG.vocabulary, (13,), generator=generator), 0
    for number, bucket in enumerate((prefill, decode, decode)):
        given = inputs(tokens, start)
        body, names = export_function(functions[bucket.tokens])
        logits, chosen, *rest = evaluate(body, [*given.values(), *caches, *(handles[name] for name in names)])
        caches = rest[: CONFIG.layers]
        for name, value in given.items() if number < 2 else ():
            executor.inputs(bucket)[name].copy_(value)
        executor.launch(bucket)
        torch.testing.assert_close(executor.output(bucket, "logits"), logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(executor.output(bucket, "next"), chosen, rtol=0, atol=0)
        tokens, start = chosen.clone(), start + len(tokens)
    assert executor.inputs(decode)["positions"].tolist() == [15]


def test_buckets_must_agree_on_the_cache(plans: dict[int, ModuleOp]) -> None:
    options = pipeline.Options(tokens=4, longest_query=4, blocks=BLOCKS * 2, length=BLOCKS * 16)
    other = pipeline.run(build(replace(CONFIG, eos=()), dtype="f32", block=16), options, until="plan")
    with pytest.raises(PassError, match="has another cache than the buckets before it"):
        manifest_of(plans[1], other)

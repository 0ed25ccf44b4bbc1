"""`python -m tests.models.sanitized CASE`: every launch of a tiny model, once and without graphs, each operand an allocation of its own.

For a tool that watches memory: with PYTORCH_NO_CUDA_MEMORY_CACHING=1 what lies behind a tensor belongs to nobody. Where there is no GPU
the reference executor runs the same steps.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
import triton.language as tl

from lamella.checkpoints import RandomSource
from lamella.frontends import ModelConfig
from lamella.frontends.config import Experts
from lamella.frontends.decoder import weight_shapes
from lamella.program import BLOCK, Shape, compile_model
from lamella.runtime.executor import MemoryExecutor
from lamella.runtime.generate import Session
from lamella.runtime.memory import Memory, reserve
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.runtime.weights import load_weights, make_constants

CONTEXT = 320
"""Tokens: attention of few sequences shares them out."""
LLAMA = ModelConfig(
    family="llama",
    layers=1,
    hidden=128,
    heads=6,
    kv_heads=2,
    head_dim=32,
    ffn=256,
    vocabulary=1027,
    norm_eps=1e-5,
    max_positions=CONTEXT,
)
ODD = replace(LLAMA, hidden=136, ffn=200)
"""Sizes that no tile divides."""
LONG = replace(LLAMA, hidden=1024, ffn=1024)
"""Rows that one token reads in runs."""
DRAWN = SamplingParameters(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=3)


@dataclass(frozen=True)
class Case:
    """A model and the buckets that are run: a prompt of all tokens but three, then a decode step of every sequence."""

    config: ModelConfig
    decode: tuple[int, ...]
    prefill: int
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


CASES: Mapping[str, Case] = {
    # So long a sum that few tokens share it out.
    "plain": Case(replace(ODD, ffn=4104), (1, 3), 40),
    "int8": Case(LLAMA, (1, 3), 40, {"quantize-weights": {"kind": "int8", "head": "int8"}}),
    "int4": Case(LLAMA, (1, 3), 40, {"quantize-weights": {"kind": "int4", "head": "int8"}}),
    **{f"{kind} in runs": Case(LONG, (1, 3), 40, {"quantize-weights": {"kind": kind, "head": kind}}) for kind in ("int8", "int4", "fp8")},
    "experts": Case(replace(ODD, experts=Experts(5, 2, 72)), (1, 3), 40),
    "packed experts": Case(replace(LLAMA, experts=Experts(5, 2, 96)), (1, 3), 40, {"quantize-weights": {"kind": "int4", "head": "int8"}}),
}


def run(case: Case, device: str, executor: Callable[[Memory, Mapping[str, str]], MemoryExecutor]) -> dict[str, Any]:
    """Launches every bucket on tokens, and on a GPU before that, as each bucket's first launch is, on padding alone. Says what was launched."""
    shapes = [*(Shape.decode(n) for n in case.decode), Shape.prefill(case.prefill)]
    program = compile_model(case.config, shapes, dtype="bf16", max_context=CONTEXT, pass_options=case.options)
    manifest = program.manifest
    assert manifest is not None
    # Made on the CPU, so that nothing runs on the device but what is to be watched.
    source = RandomSource(weight_shapes(case.config), 0)
    weights = {name: weight.to(device) for name, weight in load_weights(manifest, source).items()}
    constants = {name: value.to(device) for name, value in make_constants(manifest).items()}
    memory = reserve(manifest, weights, constants, device, cache_tokens=max(case.decode) * CONTEXT, poisoned=False)
    made = executor(replace(memory, caches=[cache.clone() for cache in memory.caches]), program.kernels)
    session = Session(made)
    blocks = [session.allocator.allocate(CONTEXT // BLOCK) for _ in range(max(case.decode))]
    tokens = list(range(case.prefill - 3))
    found = [session.step(tokens, tokens, [0, len(tokens)], [len(tokens)], blocks[:1], [len(tokens) - 1], [DRAWN])]
    for count in case.decode:
        # The last places of the last blocks, and a sequence that has only begun.
        lengths = [CONTEXT, 1, 17][:count]
        positions = [n - 1 for n in lengths]
        rows = range(count)
        requests = [DRAWN if row % 2 else SamplingParameters() for row in rows]
        found.append(session.step([5] * count, positions, range(count + 1), lengths, blocks[:count], rows, requests))
    assert all(math.isfinite(float(each.logits.cpu().abs().max())) for each in found)
    in_runs = sum("run = " in text for text in program.kernels.values())
    return {"kernels": sorted(manifest.kernels), "in_runs": in_runs, "launches": sum(len(b.launches) for b in manifest.buckets)}


def on_gpu(memory: Memory, kernels: Mapping[str, str]) -> MemoryExecutor:
    """Launches one by one."""
    from lamella.runtime.cuda import CudaExecutor

    return CudaExecutor(memory, kernels, graphs=False)


def on_cpu(memory: Memory, kernels: Mapping[str, str]) -> MemoryExecutor:
    """No kernel runs."""
    from lamella.runtime.reference import ReferenceExecutor

    return ReferenceExecutor(memory)


@triton.jit
def overrun(out, SIZE: tl.constexpr):  # noqa: N803
    """Writes SIZE zeros."""
    tl.store(out + tl.arange(0, SIZE), tl.zeros((SIZE,), tl.int32))


def planted() -> None:
    """A kernel that writes behind its tensor, to see that the tool notices."""
    overrun[(1,)](torch.zeros(256, dtype=torch.int32).to("cuda"), SIZE=512)
    torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1] == "planted":
        planted()
    else:
        where = "cuda" if torch.cuda.is_available() else "cpu"
        print(json.dumps(run(CASES[sys.argv[1]], where, on_gpu if where == "cuda" else on_cpu)))
        if where == "cuda":
            torch.cuda.synchronize()

"""Two spellings of one model are one model: ops in another order, operands swapped, q, k and v fused in the checkpoint."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest
from xdsl.builder import Builder
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint

from lamella import pipeline
from lamella.dialects import kernel
from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.transformer import LinearOp, SliceColumnsOp, WeightOp
from lamella.frontends.decoder import build
from lamella.lowering.print_triton import print_kernel
from lamella.passes.canonical_order import commutes
from lamella.pipeline import Options
from tests.models.tiny_llama import BASE

CONFIG = replace(BASE, layers=2, attention_bias=True)
DECODE = Options(blocks=8, length=128, advance=True)
PREFILL = Options(blocks=8, length=128, tokens=16, longest_query=16)


def model() -> ModuleOp:
    """The model as the front end spells it."""
    return build(CONFIG, dtype="bf16", block=16)


def body_of(module: ModuleOp) -> FuncOp:
    """Its one function."""
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    return function


def shuffled(seed: int) -> ModuleOp:
    """The model with its ops in a random order that respects data, and operands that commute swapped at random."""
    rng = random.Random(seed)
    module = model()
    block = body_of(module).body.block
    waiting = {op: {v.owner for v in op.operands if isinstance(v.owner, Operation)} for op in list(block.ops)[:-1]}
    terminator = block.last_op
    assert terminator is not None
    ordered: list[Operation] = []
    while waiting:
        ready = [op for op, before in waiting.items() if not before]
        chosen = rng.choice(ready)
        del waiting[chosen]
        for before in waiting.values():
            before.discard(chosen)
        ordered.append(chosen)
    for op in (*ordered, terminator):
        op.detach()
        if commutes(op) and rng.random() < 0.5:
            op.operands = list(reversed(op.operands))
    block.add_ops([*ordered, terminator])
    return module


def fused() -> ModuleOp:
    """The model of a checkpoint that stores q, k and v of a layer as one weight: one linear, and slices of its columns."""
    module = model()
    function = body_of(module)
    for first in [op for op in function.walk() if isinstance(op, LinearOp) and location(op).endswith("attn.q")]:
        parts = [use.operation for use in first.x.uses]
        parts = sorted((op for op in parts if isinstance(op, LinearOp)), key=lambda op: "qkv".index(location(op)[-1]))
        assert len(parts) == 3
        prefix = location(first).removesuffix(".q")
        rows = sum(shape_of(op.weight)[0] for op in parts)
        builder = Builder(InsertPoint.before(first))
        element = element_type_of(first.weight)
        weight = builder.insert(WeightOp(f"{prefix}.qkv_proj", TensorType(element, [rows, CONFIG.hidden]))).result
        bias = builder.insert(WeightOp(f"{prefix}.qkv_proj.bias", TensorType(element, [rows]))).result
        whole = builder.insert(LinearOp(first.x, weight, bias, loc=f"{prefix}.qkv")).result
        start = 0
        for op in parts:
            size = shape_of(op.weight)[0]
            piece = SliceColumnsOp(whole, start=start, size=size, loc=location(op))
            piece.result.name_hint = op.result.name_hint
            builder.insert(piece)
            op.result.replace_all_uses_with(piece.result)
            start += size
        for op in parts:
            op.detach()
            op.erase()
    return module


def stages(module: ModuleOp, options: Options, *, verify_each: bool = True) -> dict[str, str]:
    """The text of every stage."""
    snapshots = pipeline.Snapshots()
    pipeline.run(module, options, verify_each=verify_each, instruments=(snapshots,))
    return snapshots.ir


def kernels(module: ModuleOp, options: Options) -> Mapping[str, str]:
    """The printed kernels."""
    pipeline.run(module, options)
    return {op.sym_name.data: print_kernel(op) for op in module.ops if isinstance(op, kernel.FuncOp)}


@pytest.mark.parametrize("seed", range(4))
def test_another_order_gives_the_same_ir(seed: int) -> None:
    spelled = shuffled(seed)
    assert pipeline.text(spelled) != pipeline.text(model())
    assert stages(spelled, DECODE) == stages(model(), DECODE)


@pytest.mark.parametrize("options", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_another_order_gives_the_same_kernels(options: Options) -> None:
    assert kernels(shuffled(7), options) == kernels(model(), options)


@pytest.mark.parametrize("options", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_fused_projections_give_the_same_kernels(options: Options) -> None:
    assert kernels(fused(), options) == kernels(model(), options)


def test_fused_projections_give_the_same_regions() -> None:
    """But for the names of the weights, which are those of the checkpoint's tensors, and the note that there was nothing to split."""
    names = re.compile(r'(?<=transformer\.weight) "[^"]*"|\{pass = "split-linears"[^}]*\}, ')
    texts = [names.sub("", stages(m, DECODE)["regions"]) for m in (fused(), model())]
    assert texts[0] == texts[1]
    assert "slice" not in texts[0]


def test_a_wrong_split_is_noticed() -> None:
    """The comparison can fail: a model with another activation has other kernels."""
    other = build(replace(CONFIG, activation="gelu_tanh"), dtype="bf16", block=16)
    assert kernels(other, DECODE) != kernels(model(), DECODE)


def digest() -> str:
    """Of all that a compilation makes."""
    made = [*(stages(model(), options, verify_each=False) for options in (DECODE, PREFILL)), sorted(kernels(fused(), DECODE).items())]
    return hashlib.sha256(repr(made).encode()).hexdigest()


def test_compilation_is_the_same_in_every_process() -> None:
    """This process and another one hash strings each in its own way."""
    command = [sys.executable, "-c", "from tests.unit.test_canonical_form import digest; print(hash('lamella'), digest())"]
    seed = "0" if os.environ.get("PYTHONHASHSEED") == "4242" else "4242"
    run = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
    hashed, found = run.stdout.split()
    assert int(hashed) != hash("lamella")
    assert found == digest()

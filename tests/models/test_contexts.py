"""Contexts of many lengths, one sequence and 32 of them, against the reference executor; narrow logits; and steps repeated bit for bit.

On a GPU as long and as many as a user may ask for; the same checks, smaller, run through the interpreter and on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.accuracy import LIMIT, MARGIN, margin, rms
from benchmarks.hugging_face import logits, transformers_model
from benchmarks.lamella_runner import Step, decode_step, load, prefill_step
from lamella.api import Model
from lamella.checkpoints import RandomSource
from lamella.frontends import ModelConfig
from lamella.frontends.decoder import weight_shapes
from lamella.program import BLOCK, Program, Shape, compile_model
from lamella.runtime.executor import Executor, make_executor
from lamella.runtime.generate import Session
from lamella.runtime.memory import BlockAllocator, reserve
from lamella.runtime.reference import ReferenceExecutor
from lamella.runtime.weights import load_weights, make_constants
from tests.models.tiny_llama import BASE, text

LENGTHS = (1, 2, 15, 16, 17, 255, 1000, 4097, 8192)
STEPS = 4
"""Tokens that follow each context: the last of them see past the end of a block and of a tile."""
SMALL = replace(BASE, layers=2, hidden=64, heads=4, ffn=136, vocabulary=193, max_positions=LENGTHS[-1] + BLOCK)
WIDE = replace(BASE, layers=1, hidden=2048, heads=32, kv_heads=8, head_dim=64, ffn=8192, vocabulary=4096, max_positions=2048)
"""Wide enough that few tokens share out the columns of a product, and one token the positions of its context."""
LARGE = replace(WIDE, hidden=4096, head_dim=128, ffn=14336)
RELATIVE = 1e-4
"""Distance of float32 logits over their root mean square: an H200 sums 8192 positions in another order, and its exp is off in the last bits."""


@dataclass(frozen=True)
class Tried:
    """What one executor made of the contexts: ids and logits of every step."""

    ids: dict[str, list[list[int]]]
    logits: dict[str, list[torch.Tensor]]


def sessions(program: Program, executor: str, device: str, cache_tokens: int) -> tuple[Session, Session]:
    """The executor to be tried and the reference, on the same device with weights of their own, blocks in the same shuffled order."""
    manifest = program.manifest
    assert manifest is not None
    source = RandomSource(weight_shapes(program.config), 5)
    tried = make_executor(
        manifest,
        load_weights(manifest, source, device),
        executor=executor,
        device=device,
        kernels=program.kernels,
        cache_tokens=cache_tokens,
    )
    where = torch.device(device)
    memory = reserve(manifest, load_weights(manifest, source, device), make_constants(manifest, where), where, cache_tokens=cache_tokens)
    made: list[Executor] = [tried, ReferenceExecutor(memory)]
    first, second = (Session(each, BlockAllocator(each.caches[0].shape[0], 1)) for each in made)
    return first, second


def run_batch(session: Session, prompts: Sequence[Sequence[int]], lengths: Sequence[int], chunk: int) -> Tried:
    """The caches are filled with the prompts once; then STEPS tokens follow each prefix, the longest first: what they overwrite lies
    behind all that a shorter one reads. In the end sequences of all lengths go in one batch.
    """
    longest, batch = max(lengths), len(prompts)
    blocks = [session.allocator.allocate(-(-(longest + STEPS) // BLOCK)) for _ in prompts]
    for prompt, own in zip(prompts, blocks, strict=True):
        for start in range(0, longest, chunk):
            end = min(start + chunk, longest)
            session.step(prompt[start:end], range(start, end), [0, end - start], [end], [own], [end - start - 1])
    found = Tried({}, {})
    mixed = [lengths[i % len(lengths)] for i in range(batch)]
    for each in (*([length] * batch for length in sorted(lengths, reverse=True)), mixed):
        name = f"mixed, {batch}" if each is mixed else f"{each[0]}, {batch}"
        tokens = [prompt[length - 1] for prompt, length in zip(prompts, each, strict=True)]
        for step in range(STEPS):
            positions = [length - 1 + step for length in each]
            made = session.step(tokens, positions, range(batch + 1), [p + 1 for p in positions], blocks, range(batch))
            tokens = made.next.tolist()
            found.ids.setdefault(name, []).append(tokens)
            found.logits.setdefault(name, []).append(made.logits.cpu())
    for own in blocks:
        session.allocator.free(own)
    return found


def run_alone(session: Session, prompt: Sequence[int], lengths: Sequence[int]) -> dict[int, list[int]]:
    """Generations from prefixes of a prompt: prefill in chunks, then steps that feed themselves, in groups where there are graphs."""
    return {n: list(session.stream(prompt[:n], STEPS + 2, ignore_eos=True, steps_per_replay=STEPS)) for n in lengths}


def agree(tried: Session, reference: Session, lengths: Sequence[int], batch: int, chunk: int) -> None:
    """Ids are the same, and logits as near as another order of sums makes them."""
    vocabulary = tried.manifest.model.vocabulary
    prompts = [text(max(lengths), seed, vocabulary) for seed in range(batch)]
    alone = run_alone(tried, prompts[0], lengths)
    assert alone == run_alone(reference, prompts[0], lengths)
    # A model that says the same whatever it reads would agree too.
    assert len({tuple(ids) for ids in alone.values()}) >= len(lengths) - 1
    found, expected = (run_batch(session, prompts, lengths, chunk) for session in (tried, reference))
    assert found.ids == expected.ids
    for name, rows in expected.logits.items():
        for mine, theirs in zip(found.logits[name], rows, strict=True):
            scale = float(theirs.square().mean().sqrt())
            torch.testing.assert_close(mine, theirs, rtol=0, atol=RELATIVE * scale, msg=lambda m, name=name: f"{name}: {m}")


def program_of(config: ModelConfig, max_context: int, batch: int, chunk: int) -> Program:
    return compile_model(config, [Shape.decode(), Shape.decode(batch), Shape.prefill(chunk)], dtype="f32", max_context=max_context)


def test_contexts_in_the_interpreter() -> None:
    config = replace(BASE, layers=1, hidden=16, heads=2, kv_heads=1, head_dim=8, ffn=12, vocabulary=13)
    agree(*sessions(program_of(config, 32, 2, 8), "interpret", "cpu", 2 * 32), (1, 17), 2, 8)


@pytest.mark.gpu
def test_contexts_on_a_gpu() -> None:
    batch, longest = 32, LENGTHS[-1] + BLOCK
    program = program_of(SMALL, longest, batch, 512)
    agree(*sessions(program, "cuda", "cuda", batch * longest), LENGTHS, batch, 512)


def check_narrow(device: str, positions: int, seed: int) -> tuple[float, float]:
    """In bfloat16 teacher-forced logits are at most LIMIT times as far from float32 as those of transformers in bfloat16, and where
    another token is the likeliest, float32 prefers its own by at most MARGIN times the error of transformers. Returns both figures.
    """
    where, config, chunk = torch.device(device), replace(SMALL, max_positions=positions), min(positions, 128)
    source = RandomSource(weight_shapes(config), seed)
    ids = text(positions, seed, config.vocabulary)
    exact, theirs = (
        logits(transformers_model(config, source, dtype, where, weights="bf16"), ids, where) for dtype in (torch.float32, torch.bfloat16)
    )
    program = compile_model(config, [Shape.decode(), Shape(chunk, 1, chunk, chunk)], dtype="bf16", max_context=positions)
    assert program.manifest is not None
    executor = "cuda" if where.type == "cuda" else "reference"
    made = make_executor(
        program.manifest,
        load_weights(program.manifest, source, where),
        executor=executor,
        device=device,
        kernels=program.kernels,
        cache_tokens=positions,
    )
    ratio = worst = 0.0
    for one_by_one in (False, True):
        session = Session(made)
        if one_by_one:
            session.prefill_buckets = []
        found = session.forward_logits(ids)
        error = rms(theirs - exact)
        ratio, worst = max(ratio, rms(found - exact) / error), max(worst, margin(found, exact, error))
    assert ratio <= LIMIT, f"{ratio:.3f} times the error of transformers"
    assert worst <= MARGIN, f"a choice that float32 would not make, by {worst:.2f} times the error"
    return ratio, worst


def test_narrow_logits_and_choices() -> None:
    check_narrow("cpu", 100, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_narrow_logits_and_choices_on_a_gpu(seed: int) -> None:
    check_narrow("cuda", 1000, seed)


RUNS = 20


def bits(step: Step) -> list[torch.Tensor]:
    """All that a step leaves: its outputs, keys and values, as integers, so that NaN equals itself."""
    bucket, executor = step.bucket, step.executor
    made = [executor.output(bucket, o.name) for o in bucket.outputs if o.ref.pool != "cache"]
    return [x.view({2: torch.int16, 4: torch.int32}[x.itemsize]).clone() for x in (*made, *executor.caches)]


def check_repeats(folder: Path, config: Mapping[str, Any], shape: Shape, device: str, context: int, quantize: str = "none") -> Model:
    """Every run leaves the same bits, also while something else keeps a part of the device busy, so that programs come and go in another
    order.
    """
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    where, length = torch.device(device), config["max_position_embeddings"]
    model = load(path, [shape], device=where, dtype="bfloat16", max_context=length, sequences=shape.sequences, quantize=quantize)
    (bucket,) = model.executor.manifest.buckets
    step = decode_step(model, context, 1) if bucket.advance else prefill_step(model, bucket)
    noise = torch.ones(2048, 2048, device=where)
    side = torch.cuda.Stream(where) if where.type == "cuda" else None
    first: list[torch.Tensor] | None = None
    for number in range(RUNS):
        step.reset()
        if side is not None:
            torch.cuda.synchronize(where)
            with torch.cuda.stream(side):
                for _ in range(number):
                    torch.mm(noise, noise)
        step()
        found = bits(step)
        if side is not None:
            torch.cuda.synchronize(where)
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True)), f"run {number} differs from the first"
    return model


def described(config: ModelConfig) -> dict[str, Any]:
    """A Llama as config.json has it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
    }


@pytest.mark.parametrize("shape", [Shape.decode(2), Shape.prefill(9)], ids=lambda shape: shape.name)
def test_steps_repeat_on_a_cpu(shape: Shape, tmp_path: Path) -> None:
    check_repeats(tmp_path, described(replace(SMALL, max_positions=32)), shape, "cpu", 20)


MERGED = {Shape.decode(): {"tile.attend_partial"}, Shape.decode(8): {"tile.attend_partial", "tile.contract_partial"}}
"""Steps in which parts are merged by whichever program comes last: in the same order, or bits would differ."""


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [Shape.decode(), Shape.decode(8), Shape.decode(32), Shape.prefill(300)], ids=lambda shape: shape.name)
def test_steps_repeat_on_a_gpu(shape: Shape, tmp_path: Path) -> None:
    model = check_repeats(tmp_path, described(WIDE), shape, "cuda", 1000)
    ops = {op[0] for kernel in model.executor.manifest.kernels.values() for op in kernel.body["ops"]}
    assert MERGED.get(shape, set()) <= ops


@pytest.mark.gpu
@pytest.mark.parametrize("quantize", ["none", "int8", "int4", "fp8"])
@pytest.mark.parametrize("shape", [Shape.decode(n) for n in (1, 8, 32, 64)] + [Shape.prefill(300)], ids=lambda shape: shape.name)
def test_large_steps_repeat_on_a_gpu(shape: Shape, quantize: str, tmp_path: Path) -> None:
    """A layer as large as one of Llama-3.1-8B: tiles follow each other for long enough that one written too early would be read."""
    check_repeats(tmp_path, described(LARGE), shape, "cuda", 500, quantize)


def text_with_and_without_graphs(folder: Path, config: ModelConfig, device: str, count: int) -> list[list[int]]:
    """Greedy ids after a short prompt: launched one by one, as a graph a step, and as graphs of eight steps."""
    (folder / "config.json").write_text(json.dumps(described(config)))
    found: list[list[int]] = []
    for graphs, steps in ((False, 1), (True, 1), (True, 8)):
        made = load(
            folder / "config.json",
            [Shape.decode(), Shape.prefill(16)],
            device=torch.device(device),
            dtype="bfloat16",
            max_context=config.max_positions,
            steps_per_replay=steps,
            graphs=graphs,
        )
        found.append(made.generate([5, 9, 2, 11, 3], max_new_tokens=count, ignore_eos=True).output_ids)
    return found


def test_texts_of_several_steps_on_a_cpu(tmp_path: Path) -> None:
    one, same, several = text_with_and_without_graphs(tmp_path, replace(SMALL, max_positions=64), "cpu", 20)
    assert one == same == several and len(one) == 20 and len(set(one)) > 5


@pytest.mark.gpu
@pytest.mark.parametrize("config", [WIDE, SMALL], ids=["wide", "small"])
def test_a_long_text_with_graphs_is_that_without(config: ModelConfig, tmp_path: Path) -> None:
    one, same, several = text_with_and_without_graphs(tmp_path, replace(config, max_positions=2048), "cuda", 2000)
    assert len(one) == 2000 and len(set(one)) > 20
    assert one == same == several

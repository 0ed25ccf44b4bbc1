"""Every family: a checkpoint that `transformers` saved, loaded and run, gives its logits in float32, at every length and past the window."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from lamella import api
from lamella.program import BLOCK, Shape
from lamella.runtime.generate import Session
from tests.models.tiny_families import CASES, Case

TOLERANCE = {"rtol": 0, "atol": 1e-4}


def ids_of(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return torch.randint(3, vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits_of(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """What transformers says after each token, float32 [N, V]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def step(session: Session, ids: list[int], blocks: list[int], start: int, bucket: Shape) -> torch.Tensor:
    """Logits of the tokens of `ids` from `start` on, in one step of a bucket."""
    found = next(b for b in session.manifest.buckets if (b.tokens, b.advance) == (bucket.tokens, bucket.advance))
    count = len(ids) - start
    return session.step(ids[start:], range(start, len(ids)), [0, count], [len(ids)], [blocks], range(count), bucket=found).logits.cpu()


def compare(case: Case, folder: Path, lengths: tuple[int, ...], executor: str) -> None:
    """Prefill of each length and decode after it, against transformers."""
    model = case.save(folder)
    shapes = {n: Shape.decode() if n == 1 else Shape(n + 1, 1, n + 1, n + 1) for n in (1, *lengths)}
    device = "cuda" if executor == "cuda" else "cpu"
    loaded = api.load(
        folder, device=device, dtype="float32", executor=executor, max_context=case.max_context, buckets=list(shapes.values())
    )
    vocabulary = loaded.opened.config.vocabulary
    longest = min(case.max_context or 128, max(lengths) + 1)
    for length in (min(length, longest - 1) for length in lengths):
        ids = ids_of(length + 1, vocabulary, length)
        expected = logits_of(model, ids)
        assert float(expected.std()) > 0.05
        blocks = loaded.session.allocator.allocate(-(-len(ids) // BLOCK))
        take = partial(step, loaded.session, blocks=blocks)
        shape = next(s for n, s in shapes.items() if n >= length)
        torch.testing.assert_close(take(ids[:length], start=0, bucket=shape), expected[:length], **TOLERANCE)
        torch.testing.assert_close(take(ids, start=length, bucket=shapes[1]), expected[length:], **TOLERANCE)
        loaded.session.allocator.free(blocks)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    compare(CASES[name], tmp_path, CASES[name].lengths, "reference")


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("length", [20, 32, 33])
def test_a_text_that_outgrows_its_frequencies(length: int, steps: int, tmp_path: Path) -> None:
    """LongRoPE: texts of up to 32 tokens have the short factors; from the 33rd on all of the text has the long ones, in transformers too."""
    model = CASES["phi3, both"].save(tmp_path)
    loaded = api.load(tmp_path, device="cpu", dtype="float32", buckets=[1, 16, 64])
    ids = ids_of(length, 97, 5)
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=24, min_new_tokens=24, do_sample=False)[0, length:].tolist()
    found = list(loaded.session.stream(ids, 24, ignore_eos=True, steps_per_replay=steps))
    assert found == expected
    # Nothing is left behind: the next text starts short again.
    assert list(loaded.session.stream(ids, 24, ignore_eos=True, steps_per_replay=steps)) == expected


INTERPRETED = {
    "window, soft-cap": "gemma2",
    "norm of all heads": "olmo2",
    "two rotations, norm of each head": "gemma3",
    "no rotation": "smollm3",
    "partial rotation, LayerNorm, norms with a weight a head": "stablelm",
    "learned positions": "gpt2",
    "two sets of frequencies": "phi3, both",
    "interleaved rotation": "cohere",
    "slopes of heads": "bloom",
    "mixture of experts": "mixtral",
    "shared expert": "qwen2_moe",
    "mixture of experts beside a dense layer": "qwen3_moe",
}


@pytest.mark.parametrize("name", INTERPRETED.values(), ids=INTERPRETED)
def test_kernels_compute_every_kind_of_block(name: str, tmp_path: Path) -> None:
    compare(CASES[name], tmp_path, (11, 40) if "both" in name else (11,), "interpret")


FIRST = {case.model_type: name for name, case in reversed(CASES.items())}
"""The name of each family's first case."""
AS_NEAR = 1.25
"""Lamella rounds where the models' code does or later; the order of sums makes single figures differ either way."""


def compare_narrow(case: Case, folder: Path, dtype: str, device: str) -> None:
    """Prefill and decode in a narrow type are about as far from float32, on the same weights, as transformers' own are."""
    narrow = getattr(torch, dtype)
    case.model().to(narrow).save_pretrained(folder)
    exact, rounded = (
        getattr(transformers, case.architecture)
        .from_pretrained(folder, dtype=kind, attn_implementation="eager", experts_implementation="eager")
        .eval()
        for kind in (torch.float32, narrow)
    )
    shape = Shape(40, 1, 40, 40)
    loaded = api.load(folder, device=device, dtype=dtype, max_context=case.max_context, buckets=[1, shape])
    ids = ids_of(34, loaded.opened.config.vocabulary, 3)
    blocks = loaded.session.allocator.allocate(-(-len(ids) // BLOCK))
    parts = [step(loaded.session, ids[:33], blocks, 0, shape), step(loaded.session, ids, blocks, 33, Shape.decode())]
    found, expected, theirs = torch.cat(parts), logits_of(exact, ids), logits_of(rounded, ids)
    tokens = [(x - expected).square().mean(-1) for x in (found, theirs)]
    # Where two experts are nearly as likely, a rounding chooses another: a mixture is judged by the median of its tokens.
    mine, limit = ((x.mean() if loaded.opened.config.experts is None else x.median()).sqrt() for x in tokens)
    assert mine < AS_NEAR * limit, f"{mine:.5f} from float32, transformers {limit:.5f}"


@pytest.mark.parametrize("family", sorted(FIRST))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_as_near_as_transformers(family: str, dtype: str, tmp_path: Path) -> None:
    compare_narrow(CASES[FIRST[family]], tmp_path, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_logits_on_a_gpu(name: str, tmp_path: Path) -> None:
    compare(CASES[name], tmp_path, CASES[name].lengths, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_on_a_gpu(name: str, dtype: str, tmp_path: Path) -> None:
    compare_narrow(CASES[name], tmp_path, dtype, "cuda")

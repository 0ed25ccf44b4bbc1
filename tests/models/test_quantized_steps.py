"""Packed weights in whole models, in every form that kernels have for them: one token, digits of a few, tiles of several and of many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import lamella
from lamella.api import Model
from lamella.passes import packed_columns
from lamella.pipeline import PassOptions
from lamella.program import Shape

ROOT = Path(__file__).resolve().parents[2]
LARGE = {
    "hidden_size": 384,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 515,
}
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 67,
}
"""In place of sizes of benchmarks/models/tiny.json: rows are whole groups of 128, and no tile divides the rows of the head."""
IN_RUNS = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 67,
}
FEW_RUNS = IN_RUNS | {
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
"""Models whose every row is whole runs; of bytes only the second."""
PIECES = (1, 2, 4, 9, 20, 70)
IDS = torch.randint(3, 67, (75,), generator=torch.Generator().manual_seed(4)).tolist()


def logits(model: Model, tokens: int, count: int) -> torch.Tensor:
    """Logits of the first positions, so many tokens a step."""
    buckets = [b for b in model.executor.manifest.buckets if b.tokens == tokens and tokens > 1]
    model.session.prefill_buckets = buckets
    return model.session.forward_logits(IDS[:count]).float().cpu()


def loaded(
    folder: Path,
    quantize: str,
    dtype: str,
    executor: str,
    device: str,
    pieces: tuple[int, ...],
    activations: str = "none",
    options: PassOptions | None = None,
) -> Model:
    """The model of the folder's configuration."""
    buckets = [1, *(Shape(n, 1, n, n) for n in pieces if n > 1)]
    return lamella.load(
        folder / "config.json",
        random_weights=0,
        quantize=quantize,
        activations=activations,
        dtype=dtype,
        executor=executor,
        device=device,
        buckets=buckets,
        max_context=96,
        pass_options=options,
    )


def compare(
    folder: Path,
    quantize: str,
    dtype: str,
    executor: str,
    device: str,
    pieces: tuple[int, ...],
    activations: str = "none",
    sizes: Mapping[str, int] | None = None,
    options: PassOptions | None = None,
) -> None:
    """Every number of tokens a step gives the logits of the reference executor, which multiplies the floats that the packed words stand for.

    What lies between two numbers of eight bits may become either, where sums are rounded otherwise. One such byte moves every later byte of its row,
    and, through the cache, of the rows behind it: on the CPU, the reference executor with one part in 10,000 more of the norms' epsilon differs from
    itself by 2e-2 (int8) and 3e-2 (fp8), as much as two types do. So float32 is compared by the row that agrees best, which no such byte has reached,
    and all rows by the limits of narrow types.
    """
    narrow = {"none": 2e-2, "int8": 5e-2, "fp8": 8e-2}[activations]
    sizes = sizes or (LARGE if device == "cuda" else SMALL)
    config = json.loads((ROOT / "benchmarks" / "models" / "tiny.json").read_text()) | {"head_dim": 64} | sizes
    (folder / "config.json").write_text(json.dumps(config))
    tried = loaded(folder, quantize, dtype, executor, device, pieces, activations, options)
    reference = loaded(folder, quantize, dtype, "reference", "cpu", pieces, activations)
    for tokens in pieces:
        count = min(75, 20 * tokens) if device == "cuda" else min(5, 2 * tokens)
        expected, found = logits(reference, tokens, count), logits(tried, tokens, count)
        rows = (found - expected).square().mean(1) / expected.square().mean()
        error, best = rows.mean().sqrt().item(), rows.min().sqrt().item()
        assert error < (1e-4 if (dtype, activations) == ("float32", "none") else narrow), f"{tokens} tokens a step: {error:.2e}"
        # Groups of warps add up products of float8 with some 14 bits, which moves a byte in every row: they take 64 rows, of weights where tokens are few.
        if dtype == "float32" and not (activations == "fp8" and tokens > 16):
            assert best < 1e-4, f"{tokens} tokens a step: {best:.2e} in the row that agrees best"


@pytest.fixture(params=["any size", "as chosen"])
def digits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token and half bytes: digits, which only larger weights than these get otherwise, or FMA."""
    if request.param == "any size":
        monkeypatch.setattr(packed_columns, "SMALL", 0)


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_interpreted_steps_are_those_of_the_reference(quantize: str, tmp_path: Path) -> None:
    compare(tmp_path, quantize, "float32", "interpret", "cpu", (1, 4))


@pytest.mark.gpu
@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_steps_on_a_gpu_are_those_of_the_reference(quantize: str, dtype: str, tmp_path: Path) -> None:
    compare(tmp_path, quantize, dtype, "cuda", "cuda", PIECES)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_interpreted_steps_of_bytes_are_those_of_the_reference(kind: str, tmp_path: Path) -> None:
    compare(tmp_path, kind, "float32", "interpret", "cpu", (1, 4, 9), activations=kind)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_steps_of_bytes_on_a_gpu_are_those_of_the_reference(kind: str, dtype: str, tmp_path: Path) -> None:
    compare(tmp_path, kind, dtype, "cuda", "cuda", (*PIECES, 75), activations=kind)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_step_rounds_as_any_other(kind: str, tmp_path: Path) -> None:
    """One token a step or many: the rows of x become the same bytes, so that the logits agree."""
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((ROOT / "benchmarks" / "models" / "tiny.json").read_text()) | {"head_dim": 64} | SMALL)
    )
    reference = loaded(tmp_path, kind, "float32", "reference", "cpu", (1, 70), kind)
    plain = loaded(tmp_path, kind, "float32", "reference", "cpu", (70,))
    together, one_by_one = logits(reference, 70, 20), logits(reference, 1, 20)
    assert ((together - one_by_one).square().mean() / together.square().mean()).sqrt() < (1e-3 if kind == "int8" else 1e-2)
    # It is not what floats of x give.
    assert ((together - logits(plain, 70, 20)).square().mean() / together.square().mean()).sqrt() > 5e-3


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_launches_of_a_layer(kind: str) -> None:
    """Each norm and its rounding are one launch, attention and the gated activation are followed by one of their own: nine a layer."""
    config = ROOT / "benchmarks" / "models" / "llama-3.2-1b.json"
    for tokens in (1, 8, 512):
        program = lamella.compile(
            config, random_weights=0, quantize=kind, activations=kind, dtype="bfloat16", buckets=[tokens], max_context=1024, until="plan"
        )
        assert program.manifest is not None
        (bucket,) = program.manifest.buckets
        places = [launch.loc.removeprefix("layers.3.") for launch in bucket.launches if launch.loc.startswith("layers.3.")]
        assert places == ["attn_norm", "attn", "attn.attention", "attn.attention", "attn", "ffn_norm", "ffn", "ffn.gated", "ffn"], places


def test_interpreted_bytes_become_bfloat16(tmp_path: Path) -> None:
    """Which Triton's interpreter by itself would take for the bits of one."""
    compare(tmp_path, "int8", "bfloat16", "interpret", "cpu", (9,))


def test_interpreted_steps_in_runs_are_those_of_the_reference(tmp_path: Path) -> None:
    """What attention, and gate and up with the norm inside, leave for one token is stored with its pairs swapped."""
    compare(tmp_path, "int8", "bfloat16", "interpret", "cpu", (1,), sizes=FEW_RUNS)
    ledger = loaded(tmp_path, "int8", "bfloat16", "reference", "cpu", (1,)).program.ledger
    assert [record["loc"] for record in ledger if record["verdict"] == "swapped"] == ["layers.0.attn.attention", "layers.0"]


@pytest.mark.gpu
@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_steps_in_runs_on_a_gpu_are_those_of_the_reference(quantize: str, dtype: str, tmp_path: Path) -> None:
    compare(tmp_path, quantize, dtype, "cuda", "cuda", (1, 2, 9), sizes=IN_RUNS)


BEHIND: PassOptions = {"commute-row-scale": {"columns": True}, "split-reductions": {"on": True}}
"""Norms with weights move behind products, and their sums are split."""


def test_interpreted_steps_with_norms_behind_products_are_those_of_the_reference(tmp_path: Path) -> None:
    compare(tmp_path, "int8", "bfloat16", "interpret", "cpu", (1,), sizes=FEW_RUNS, options=BEHIND)
    launches = loaded(tmp_path, "int8", "bfloat16", "reference", "cpu", (1,), options=BEHIND).executor.manifest.buckets[0].launches
    # The embedding, five of a layer, the norm and the head, the choice of a token, and what advances.
    assert [launch.kernel.split("_")[1] for launch in launches[:6]] == ["row", "gemv", "attend", "gemv", "gemv", "gemv"]


@pytest.mark.gpu
@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
def test_steps_with_norms_behind_products_on_a_gpu_are_those_of_the_reference(quantize: str, tmp_path: Path) -> None:
    compare(tmp_path, quantize, "bfloat16", "cuda", "cuda", (1, 2), sizes=IN_RUNS, options=BEHIND)

"""GGUF blocks that stay packed: bit for bit what the `gguf` package makes of them, and SmolLM2 from its Q4_1 file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import lamella
from lamella.api import Model, quantized
from lamella.checkpoints import GgufSource, PackedSource
from lamella.checkpoints.packed import BLOCKS, GROUP, part_names
from lamella.errors import DtypeError
from lamella.frontends import open_model
from lamella.program import Shape
from lamella.semantics import IMPLEMENTATIONS
from lamella.tools.costs import step_cost
from tests.models.model_files import write_gguf

CAPITAL = (504, 3575, 282, 4649, 314, 7042, 30)
PARTS = {"q4_0": (4, False), "q4_1": (4, True), "q8_0": (8, False)}


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_unpacked_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """Random bytes as numbers, scales of all magnitudes, both signs."""
    type = gguf.GGMLQuantizationType[kind.upper()]
    values = np.random.default_rng(7).standard_normal((6, 96), np.float32) * np.float32([[1e-3], [1], [40], [0], [1e-6], [3]])
    stored = gguf.quantize(values, type)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", stored, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = PackedSource(GgufSource.open(tmp_path / "m.gguf", {"w": "w"}, {"w": (6, 96)}), {"w": kind})
    bits, least = PARTS[kind]
    parts = [source.load(name) for name in part_names("w", BLOCKS[kind])]
    assert [tuple(p.shape) for p in parts] == [source.shape(name) for name in part_names("w", BLOCKS[kind])]
    assert len(parts) == 2 + least
    made = IMPLEMENTATIONS["tile.dequantize"](*parts, packing={"kind": f"int{bits}", "group": GROUP})
    assert torch.equal(made, torch.from_numpy(gguf.dequantize(stored, type)))


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    config = Path(__file__).parent / "no.json"
    opened = open_model(write_gguf(tmp_path / "m.gguf"))
    kept, _ = quantized(opened, "keep", None)
    assert kept.config.packed
    with pytest.raises(DtypeError, match="no packed weights to keep"):
        quantized(replace(opened, source=kept.source, path=config), "keep", None)
    with pytest.raises(DtypeError, match="unsupported quantization"):
        quantized(opened, "int5", None)


@pytest.mark.parametrize("quantize", ["keep", "int8", "int4"])
@pytest.mark.parametrize("prompt", [[5], [5, 9, 2, 7, 1]])
def test_levels_agree_on_a_tiny_model(quantize: str, prompt: list[int], tmp_path: Path) -> None:
    """A layer and the head through interpreted Triton, decode and prefill, give the ids and nearly the logits of the reference executor."""
    file = write_gguf(tmp_path / "m.gguf")
    found = {}
    for executor in ("reference", "interpret"):
        model = lamella.load(file, device="cpu", dtype="float32", executor=executor, max_context=32, buckets=[1, 8], quantize=quantize)
        found[executor] = model.session.forward_logits(prompt, [len(prompt) - 1])[0]
    torch.testing.assert_close(found["interpret"], found["reference"], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def packed(smollm2: Path) -> Model:
    return lamella.load(smollm2, device="cpu", dtype="float32", max_context=64, buckets=[Shape.decode(), 48], quantize="keep")


def test_smollm2_answers_from_packed_weights(packed: Model) -> None:
    generation = packed.generate("What is the capital of France?", 16, chat=True)
    assert generation.output_ids == CAPITAL
    assert generation.stop_reason == "eos"


def test_a_step_reads_words_scales_and_mins(packed: Model) -> None:
    """Bytes of weights of a decode step: 4 bits a weight and two float16 a block for linears; the tied head, a row of it, and the norms as floats."""
    config, manifest = packed.opened.config, packed.program.manifest
    assert manifest is not None
    linears = config.layers * config.hidden * (2 * config.hidden + 2 * config.kv_heads * config.head_dim + 3 * config.ffn)
    floats = (config.vocabulary + 1 + 2 * config.layers + 1) * config.hidden
    read = step_cost(manifest, next(b for b in manifest.buckets if b.tokens == 1), 32).weights
    assert read == linears * 4 // 8 + linears // GROUP * 4 + floats * 4
    assert {w.dtype for name, w in manifest.weights.items() if name.endswith(".packed")} == {"i32"}

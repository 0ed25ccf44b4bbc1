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
from lamella.checkpoints.gguf_blocks import BLOCKS, keepable
from lamella.errors import DtypeError
from lamella.frontends import open_model
from lamella.program import Shape
from lamella.semantics import DTYPES, IMPLEMENTATIONS
from lamella.tools.costs import step_cost
from tests.models.model_files import write_gguf

ROOT = Path(__file__).parents[2]
CAPITAL = (504, 3575, 282, 4649, 314, 7042, 30)
GROUP = 32
PARTS = {
    "q4_0": ("int4", 32, "f16", ""),
    "q4_1": ("int4", 32, "f16", "f16"),
    "q5_0": ("int8", 32, "f16", ""),
    "q5_1": ("int8", 32, "f16", "f16"),
    "q8_0": ("int8", 32, "f16", ""),
    "q4_k": ("int4", 32, "i8", "i8"),
    "q5_k": ("int8", 32, "i8", "i8"),
    "q6_k": ("int8", 16, "i8", ""),
}
HALVES = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Where blocks have float16 numbers; the others at their beginning."""


def random_blocks(kind: str, rows: int, columns: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Rows of blocks of random bytes, but for the float16 numbers, which are of all magnitudes up to `scale` and of both signs."""
    rng = np.random.default_rng(seed)
    per_block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    blocks = rng.integers(0, 256, (rows, columns // per_block, size), np.uint8)
    for at in HALVES.get(kind, (0,)):
        halves = rng.standard_normal(blocks.shape[:2]) * scale * 10.0 ** rng.integers(-3, 1, blocks.shape[:2])
        blocks[..., at : at + 2] = halves.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def write(file: Path, tensors: dict[str, tuple[np.ndarray, str]], **keys: int) -> Path:
    """A GGUF file of blocks, or floats, by the names of their types."""
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in keys.items():
        writer.add_int32(f"llama.{key.replace('__', '.')}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_all_block_types_are_listed() -> None:
    assert {kind: (b.packing.kind, b.packing.group, b.packing.scales, b.packing.mins) for kind, b in BLOCKS.items()} == PARTS


def test_bits_a_weight_are_those_of_the_documentation() -> None:
    """docs/quantization.md, a row a type or two."""
    rows = [line.split("|") for line in (ROOT / "docs/quantization.md").read_text().splitlines() if line.startswith("| GGUF Q")]
    said = {
        kind.strip(): float(bits)
        for row in rows
        for kind, bits in zip(row[1].removeprefix(" GGUF").split(","), row[5].split(","), strict=True)
    }
    assert said == {kind.upper(): block.packing.size(1, 256) * 8 / 256 for kind, block in BLOCKS.items()}


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_unpacked_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """Random bytes as numbers, scales of all magnitudes, both signs."""
    columns = 768 if kind.endswith("_k") else 96
    stored = random_blocks(kind, 70, columns, 7)
    write(tmp_path / "m.gguf", {"w": (stored, kind)})
    stored_source = GgufSource.open(tmp_path / "m.gguf", {"w": "w"}, {"w": (70, columns)})
    source = PackedSource(stored_source, keepable(stored_source, ["w"]))
    number, group, scales, mins = PARTS[kind]
    names = ["w.packed", "w.scales", *(["w.mins"] if mins else [])]
    names += [name.replace("w.", "w.super_") for name in names[1:]] if scales == "i8" else []
    assert source.names() == sorted(["w", *names])
    parts = [source.load(name) for name in names]
    assert [tuple(p.shape) for p in parts] == [source.shape(name) for name in names]
    own = ["i32", scales, *([mins] if mins else [])]
    assert [source.dtype(name) for name in names] == own + ["f16"] * (len(names) - len(own))
    assert all(p.dtype == DTYPES[source.dtype(name)] for name, p in zip(names, parts, strict=True))
    made = IMPLEMENTATIONS["tile.dequantize"](*parts, packing={"kind": number, "group": group})
    expected = torch.from_numpy(gguf.dequantize(stored, gguf.GGMLQuantizationType[kind.upper()]))
    assert expected.isfinite().all()
    assert torch.equal(made, expected)
    assert torch.equal(source.weights["w"].floats("f32", "cpu"), expected)


def mixed_file(file: Path, head: str) -> Path:
    """A layer of types as files of today mix them: three for q, k and v, one projection in floats, embeddings in Q6_K, which are the head where none is given."""
    hidden, ffn = 256, 256
    types: dict[str, tuple[int, int, str]] = {
        "attn_q": (128, hidden, "q4_k"), "attn_k": (64, hidden, "q5_k"), "attn_v": (64, hidden, "q6_k"), "attn_output": (hidden, 128, "q5_0"),
        "ffn_up": (ffn, hidden, "q5_1"), "ffn_down": (hidden, ffn, "q6_k"),
    }  # fmt: skip
    tensors = {f"blk.0.{n}.weight": (random_blocks(k, rows, columns, len(n), 1e-3), k) for n, (rows, columns, k) in types.items()}
    floats = np.random.default_rng(3).standard_normal((ffn, hidden)).astype(np.float16) * np.float16(0.05)
    tensors |= {f"{n}.weight": (np.ones(hidden, np.float32), "f32") for n in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    tensors |= {
        "blk.0.ffn_gate.weight": (floats, "f16"),
        "token_embd.weight": (random_blocks("q6_k", 50, hidden, 1, 1e-3), "q6_k"),
    }
    if head:
        tensors["output.weight"] = (random_blocks(head, 50, hidden, 2, 1e-3), head)
    keys = {"block_count": 1, "embedding_length": hidden, "feed_forward_length": ffn, "context_length": 64, "rope__dimension_count": 64}
    heads = {"attention__head_count": 2, "attention__head_count_kv": 1, "attention__key_length": 64, "attention__value_length": 64}
    return write(file, tensors, **keys, **heads)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_file(tmp_path_factory.mktemp("mixed") / "m.gguf", "q8_0")


@pytest.mark.parametrize("prompt", [[5], [5, 9, 2, 7, 1]])
def test_types_mix_in_one_file(mixed: Path, prompt: list[int]) -> None:
    """q, k and v in three types are still one launch; logits are those of the floats that the blocks stand for."""
    options = {"device": "cpu", "dtype": "float32", "max_context": 32, "buckets": [1, 8]}
    found: dict[str, torch.Tensor] = {}
    for quantize, executor in (("none", "reference"), ("keep", "reference"), ("keep", "interpret")):
        model = lamella.load(mixed, quantize=quantize, executor=executor, **options)
        found[f"{quantize} {executor}"] = model.session.forward_logits(prompt, [len(prompt) - 1])[0]
    assert found["none reference"].std() > 0.1
    packed = model.opened.config.packed
    assert {name: f"{p.kind} {p.group}" for name, p in packed.items() if name.startswith("layers.0.attn")} == {
        "layers.0.attn.q_proj": "int4 32",
        "layers.0.attn.k_proj": "int8 32",
        "layers.0.attn.v_proj": "int8 16",
        "layers.0.attn.o_proj": "int8 32",
    }
    assert "layers.0.ffn.gate_proj" not in packed and "lm_head" in packed
    assert packed["embed"].kind == "int8" and packed["embed"].group == 16
    manifest = model.program.manifest
    assert manifest is not None
    assert max(list(kernel.sources).count("dequantize") for kernel in manifest.kernels.values()) == 3
    for name in ("keep reference", "keep interpret"):
        torch.testing.assert_close(found[name], found["none reference"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prompt", [[5], [5, 9, 2, 7, 1]])
def test_a_table_of_two_levels_is_looked_up_and_multiplied(prompt: list[int], tmp_path: Path) -> None:
    """Embeddings of Q6_K tied to the head: one table in memory, a byte a group and a float16 for 256 columns."""
    file = mixed_file(tmp_path / "m.gguf", "")
    options = {"device": "cpu", "dtype": "float32", "max_context": 32, "buckets": [1, 8]}
    found: dict[str, torch.Tensor] = {}
    for quantize, executor in (("none", "reference"), ("keep", "reference"), ("keep", "interpret")):
        model = lamella.load(file, quantize=quantize, executor=executor, **options)
        found[f"{quantize} {executor}"] = model.session.forward_logits(prompt, [len(prompt) - 1])[0]
    manifest = model.program.manifest
    assert manifest is not None
    table = {name: (spec.dtype, spec.shape) for name, spec in manifest.weights.items() if name.startswith("embed")}
    assert table == {"embed.packed": ("i32", (50, 64)), "embed.scales": ("i8", (50, 16)), "embed.super_scales": ("f16", (50, 1))}
    for name in ("keep reference", "keep interpret"):
        torch.testing.assert_close(found[name], found["none reference"], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("head", ["q8_0", "q4_1", ""])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-4), ("float16", 5e-3), ("bfloat16", 2e-2)])
def test_blocks_on_a_gpu(dtype: str, limit: float, head: str, tmp_path: Path) -> None:
    """Every number of tokens a step gives the logits of the reference executor, scales of scales among the weights."""
    file = mixed_file(tmp_path / "m.gguf", head)
    pieces, ids = (1, 2, 4, 9, 20, 40), torch.randint(3, 50, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    options = {"dtype": dtype, "max_context": 64, "buckets": [1, *(Shape(n, 1, n, n) for n in pieces if n > 1)], "quantize": "keep"}
    reference = lamella.load(file, device="cpu", executor="reference", **options)
    tried = lamella.load(file, device="cuda", **options)
    for tokens in pieces:
        found = []
        for model in (reference, tried):
            model.session.prefill_buckets = [b for b in model.executor.manifest.buckets if b.tokens == tokens > 1]
            found.append(model.session.forward_logits(ids).float().cpu())
        expected, got = found
        error = ((got - expected).square().mean() / expected.square().mean()).sqrt().item()
        assert error < limit, f"{tokens} tokens a step: {error:.2e}"


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
    """Bytes of weights of a decode step: 4 bits a weight and two float16 a block for linears, 8 bits and one for the tied head (Q8_0) and a
    row of it; the norms as floats."""
    config, manifest = packed.opened.config, packed.program.manifest
    assert manifest is not None
    linears = config.layers * config.hidden * (2 * config.hidden + 2 * config.kv_heads * config.head_dim + 3 * config.ffn)
    table = (config.vocabulary + 1) * config.hidden
    floats = (2 * config.layers + 1) * config.hidden
    read = step_cost(manifest, next(b for b in manifest.buckets if b.tokens == 1), 32).weights
    assert read == linears * 4 // 8 + linears // GROUP * 4 + table + table // GROUP * 2 + floats * 4
    assert {w.dtype for name, w in manifest.weights.items() if name.endswith(".packed")} == {"i32"}

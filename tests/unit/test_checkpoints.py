"""Tensor sources: what was written comes back, by canonical name, in any element type; files that lie are refused in one line."""

import json
import os
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lamella.checkpoints import GgufSource, RandomSource, SafetensorsSource, open_source, read_gguf
from lamella.checkpoints.gguf import can_dequantize
from lamella.errors import CheckpointError, DtypeError, LamellaError, ModelNotFoundError, TensorError, nearest

NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight"}
SHAPES = {"embed": (7, 64), "final_norm": (64,)}


def tensors(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {NAMES[n]: torch.randn(s, generator=generator).to(dtype) for n, s in SHAPES.items()}


def write_shards(folder: Path) -> None:
    """Each tensor in its own file, and the index."""
    places = {}
    for i, (name, tensor) in enumerate(tensors().items()):
        places[name] = f"model-{i}.safetensors"
        save_file({name: tensor}, folder / places[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def write_gguf(path: Path, blocks: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]) -> None:
    """A GGUF file of the given tensors, plain or quantized, and a vocabulary, so that lists of texts are stepped over."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["<s>", "a", "é"])
    writer.add_token_scores([0.5, 1.0, 2.0])
    for name, (values, kind) in blocks.items():
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def refusal(kind: type[LamellaError], call, *parts: str) -> None:
    """`call` raises `kind`, in one line that holds each of `parts`."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


# --- safetensors


@pytest.mark.parametrize("sharded", [False, True])
def test_safetensors_come_back(tmp_path: Path, sharded: bool) -> None:
    if sharded:
        write_shards(tmp_path)
    else:
        save_file(tensors(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = SafetensorsSource.open(tmp_path, NAMES, SHAPES)
    assert source.names() == ["embed", "final_norm"]
    assert (source.shape("embed"), source.dtype("embed")) == ((7, 64), "bf16")
    for name, stored in NAMES.items():
        assert torch.equal(source.load(name), tensors()[stored])
        assert torch.equal(source.load(name, "f32"), tensors()[stored].float())
        assert source.load(name, "f16").dtype == torch.float16
    again = open_source(json.loads(json.dumps(source.describe())))
    assert torch.equal(again.load("embed"), source.load("embed"))
    assert again.fingerprint() == source.fingerprint()


def test_writing_into_a_loaded_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    SafetensorsSource.open(tmp_path, NAMES).load("embed").zero_()
    assert torch.equal(SafetensorsSource.open(tmp_path, NAMES).load("embed"), tensors()[NAMES["embed"]])
    write_gguf(tmp_path / "m.gguf", {"x": (np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.F32)})
    GgufSource.open(tmp_path / "m.gguf", {"x": "x"}).load("x").zero_()
    assert GgufSource.open(tmp_path / "m.gguf", {"x": "x"}).load("x").sum() == 64


def test_fingerprint_changes_with_the_header(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    before = SafetensorsSource.open(tmp_path, NAMES).fingerprint()
    save_file(tensors(torch.float16), tmp_path / "model.safetensors")
    assert SafetensorsSource.open(tmp_path, NAMES).fingerprint() != before


def test_unknown_names_and_types_are_refused(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    source = SafetensorsSource.open(tmp_path, NAMES, SHAPES)
    refusal(TensorError, lambda: source.load("embde"), "embde", "nearest: embed")
    refusal(DtypeError, lambda: source.load("embed", "f8"), "f32, f16, bf16", "got f8")


@pytest.mark.parametrize("keep", [0, 5, 8, 60, -1])
def test_truncated_safetensors(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file(tensors(), file)
    file.write_bytes(file.read_bytes()[:keep])
    refusal(
        CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES, SHAPES), str(file), "truncated", "expected", "bytes", "download"
    )


def test_trailing_bytes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(tensors(), file)
    file.write_bytes(file.read_bytes() + b"x")
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES, SHAPES), "bytes its header does not name")


@pytest.mark.parametrize(
    "header",
    [
        b"{not json",
        b"[1]",
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}',
        b'{"a": 3}',
        b"{" + b'"a":{' * 100000,
    ],
)
def test_corrupt_safetensors_header(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "model.safetensors", "safetensors")


def test_a_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"<!DOCTYPE html>" * 9)
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "not a safetensors file")


@pytest.mark.parametrize("place", ["../secret.safetensors", "/etc/passwd", "a/../../b", "C:\\x", "\\\\host\\x", ""])
def test_index_must_stay_in_the_folder(tmp_path: Path, place: str) -> None:
    write_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {NAMES["embed"]: place}}))
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "outside the folder", NAMES["embed"], str(index))


def test_shards_may_be_links_out_of_the_folder(tmp_path: Path) -> None:
    """So is the hub's cache laid out."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    write_shards(folder)
    (folder / "model-0.safetensors").rename(blobs / "0123")
    (folder / "model-0.safetensors").symlink_to(blobs / "0123")
    assert SafetensorsSource.open(folder, NAMES, SHAPES).load("embed").shape == (7, 64)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "{}"])
def test_malformed_index(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "malformed index")


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    write_shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**places, NAMES["embed"]: "model-1.safetensors"}}))
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), NAMES["embed"], "does not hold it")
    (tmp_path / "model-1.safetensors").unlink()
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "missing", "model-1.safetensors")


def test_missing_extra_and_misshapen_tensors(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"model.norm.weigth": torch.ones(64)}, file)
    refusal(
        TensorError, lambda: SafetensorsSource.open(tmp_path, {"final_norm": NAMES["final_norm"]}), "missing", "nearest: model.norm.weigth"
    )
    save_file({**tensors(), "model.other": torch.ones(3)}, file)
    refusal(TensorError, lambda: SafetensorsSource.open(tmp_path, NAMES, SHAPES), "unexpected tensor model.other", str(file))
    save_file({**tensors(), NAMES["embed"]: torch.ones(64, 7)}, file)
    refusal(TensorError, lambda: SafetensorsSource.open(tmp_path, NAMES, SHAPES), NAMES["embed"], "expected (7, 64)", "got (64, 7)")


def test_harmless_tensors_are_ignored(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3), "lm_head.weight": torch.ones(7, 64)}
    save_file({**tensors(), **extra}, tmp_path / "model.safetensors")
    assert SafetensorsSource.open(tmp_path, NAMES, SHAPES, buffers=("lm_head.weight",)).names() == ["embed", "final_norm"]
    refusal(TensorError, lambda: SafetensorsSource.open(tmp_path, NAMES, SHAPES), "unexpected tensor lm_head.weight")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float64])
def test_unsupported_safetensors_type(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({**tensors(), NAMES["embed"]: torch.ones(7, 64).to(dtype)}, tmp_path / "model.safetensors")
    refusal(DtypeError, lambda: SafetensorsSource.open(tmp_path, NAMES, SHAPES), NAMES["embed"], "expected f32, f16, bf16")


# --- GGUF

KINDS = [k for k in gguf.GGMLQuantizationType if k.name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_gguf_blocks_come_back(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    values = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", {"w.weight": (values, kind), "n.weight": (values[0], gguf.GGMLQuantizationType.F32)})
    source = GgufSource.open(tmp_path / "m.gguf", {"w": "w.weight", "n": "n.weight"}, {"w": (5, 96), "n": (96,)})
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(values, kind), kind))
    assert source.dtype("w") == kind.name.lower()
    assert torch.equal(source.load("w", "f32"), expected)
    assert torch.equal(source.load("w", "bf16"), expected.bfloat16())
    assert torch.equal(source.load("n"), torch.from_numpy(values[0]))
    again = open_source(json.loads(json.dumps(source.describe())))
    assert torch.equal(again.load("w"), source.load("w"))
    assert again.fingerprint() == source.fingerprint()


def test_gguf_rows_are_dequantized_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamella.checkpoints.gguf.CHUNK", 64)
    values = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", {"w": (values, gguf.GGMLQuantizationType.Q8_0)})
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(values, kind), kind))
    assert torch.equal(GgufSource.open(tmp_path / "m.gguf", {"w": "w"}).load("w"), expected)


def test_every_block_type_of_the_package_is_read() -> None:
    unreadable = {k.name for k in gguf.GGMLQuantizationType if not can_dequantize(int(k))}
    assert unreadable == {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"} | ({"Q1_0"} & unreadable)


def test_gguf_truncated_anywhere(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    write_gguf(whole, {"w": (np.ones((4, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)})
    content = whole.read_bytes()
    end = read_gguf(whole).tensors["w"].offset + 4 * 34
    for keep in [*range(4, end, 3), end - 1]:
        cut.write_bytes(content[:keep])
        refusal(CheckpointError, lambda: read_gguf(cut), str(cut), "truncated GGUF", "bytes")
    cut.write_bytes(content[:end])
    assert GgufSource.open(cut, {"w": "w"}).load("w").sum() == pytest.approx(128, rel=1e-3)


def test_not_gguf(tmp_path: Path) -> None:
    for content in (b"", b"GG", b"PK\x03\x04" * 8):
        (tmp_path / "m.gguf").write_bytes(content)
        refusal(CheckpointError, lambda: read_gguf(tmp_path / "m.gguf"), "not a GGUF file", "expected")


def test_gguf_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(16))
    refusal(CheckpointError, lambda: read_gguf(tmp_path / "m.gguf"), "expected version 2 or 3", "version 9")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(16))
    refusal(CheckpointError, lambda: read_gguf(tmp_path / "m.gguf"), "big-endian")


def test_gguf_absurd_counts_end_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16 + bytes(64))
    refusal(CheckpointError, lambda: read_gguf(tmp_path / "m.gguf"), "GGUF header")


def test_gguf_unsupported_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", np.ones((2, 32), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refusal(DtypeError, lambda: GgufSource.open(tmp_path / "m.gguf", {"w": "w"}), "tensor w", "got i32")


def test_gguf_missing_and_misshapen(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"w": (np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.F32)})
    refusal(TensorError, lambda: GgufSource.open(tmp_path / "m.gguf", {"v": "v"}), "tensor v", "missing")
    refusal(TensorError, lambda: GgufSource.open(tmp_path / "m.gguf", {"w": "w"}, {"w": (32, 2)}), "expected (32, 2)", "got (2, 32)")
    refusal(TensorError, lambda: GgufSource.open(tmp_path / "m.gguf", {}, {}), "unexpected tensor w")


# --- random

RANDOM = RandomSource({"embed": (300, 1024), "layers.0.attn_norm": (1024,), "layers.0.attn.q_proj.bias": (1024,)}, seed=3)


def test_random_weights_have_the_promised_distribution() -> None:
    z = RANDOM.load("embed").flatten().sort().values * 32
    normal = torch.distributions.Normal(0.0, 1.0).cdf(z)
    assert (normal - torch.arange(len(z)) / len(z)).abs().max() < 0.012
    assert z.mean().abs() < 0.01
    assert abs(z.std() - 1) < 0.01
    norm = RANDOM.load("layers.0.attn_norm")
    assert abs(norm.mean() - 1) < 0.01
    assert 0.04 < norm.std() < 0.06
    assert abs(RANDOM.load("layers.0.attn.q_proj.bias").mean()) < 0.003


def test_random_weights_are_uncorrelated() -> None:
    z = RANDOM.load("embed") * 32
    for a, b in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1]), (z[:, 512:], z[:, :512]), (z[1:, 1:], z[:-1, :-1])):
        assert (a * b).mean().abs() < 0.01
    other = RandomSource(RANDOM.shapes, seed=4).load("embed") * 32
    assert (z * other).mean().abs() < 0.01


def test_random_weights_depend_on_seed_and_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"a": (9, 50), "b": (9, 50)}
    a, b = (RandomSource(shapes, 0).load(n) for n in "ab")
    assert not torch.equal(a, b)
    assert not torch.equal(a, RandomSource(shapes, 1).load("a"))
    reopened = open_source(json.loads(json.dumps(RandomSource(shapes, 0).describe())))
    assert torch.equal(reopened.load("a"), a)
    assert torch.equal(reopened.load("a", "bf16"), a.bfloat16())
    monkeypatch.setattr("lamella.checkpoints.random.CHUNK", 7)
    assert torch.equal(RandomSource({"a": (9, 50)}, 0).load("a"), a)


def test_random_numbers_stay_the_same() -> None:
    """Seeds in scripts keep their meaning: a change of the rule must be seen, and counted in RULE."""
    counts = RandomSource({"w": (1, 4)}, 0).load("w") * 2 / (1 / (4 * 65535 / 12) ** 0.5) + 510
    assert counts.round().int().flatten().tolist() == [412, 486, 239, 304]


def test_descriptions_are_checked(tmp_path: Path) -> None:
    refusal(CheckpointError, lambda: open_source({"kind": "safetensor"}), "nearest: safetensors")
    refusal(CheckpointError, lambda: open_source({"kind": "random"}), "malformed description")
    refusal(ModelNotFoundError, lambda: open_source({"kind": "gguf", "path": str(tmp_path / "x"), "names": {}}), "gone")
    refusal(ModelNotFoundError, lambda: open_source({"kind": "safetensors", "path": str(tmp_path), "names": {}}), "gone")
    refusal(TensorError, lambda: RANDOM.load("embd"), "nearest: embed")


# --- what a fuzz test found, or a reader of the formats


def write_header(file: Path, entries: list[tuple[str, dict]], body: int) -> None:
    """A safetensors file of a header given piece by piece, so that it may repeat itself, and so many bytes of data."""
    header = ("{" + ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries) + "}").encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(body))


def entry(begin: int, end: int) -> dict:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("entries", "parts"),
    [
        ([("a", entry(0, 8)), ("a", entry(0, 8))], ("a is given twice",)),
        ([("a", {**entry(0, 8), "x": {"y": 1}}), ("b", entry(0, 8))], ("tensor b overlaps the one before it", "from byte 8 on, got 0")),
        ([("a", entry(4, 8)), ("b", entry(0, 8))], ("tensor a overlaps",)),
        ([("a", entry(0, 4)), ("b", entry(8, 12))], ("tensor b leaves a gap before it",)),
        ([("a", {**entry(0, 8), "shape": [10**4000]})], ("tensor a has no consistent",)),
        ([("a\n\x1b[2J\ud800", {})], (r"tensor a \x1b[2J\ud800 has no consistent",)),
        ([("a" * 10**6, {})], ("aaa…aaa",)),
    ],
)
def test_headers_that_contradict_themselves(tmp_path: Path, entries: list[tuple[str, dict]], parts: tuple[str, ...]) -> None:
    file = tmp_path / "model.safetensors"
    write_header(file, entries, 8)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsSource.open(tmp_path, {})
    line = str(caught.value)
    assert line.isprintable() and len(line) < 800
    assert all(part in line for part in (str(file), *parts)), line


@pytest.mark.parametrize("size", [25_000_001, 1 << 40, (1 << 64) - 1])
def test_a_header_longer_than_any_is_not_read(tmp_path: Path, size: int) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(size.to_bytes(8, "little") + b"{")
    with file.open("r+b") as stream:
        stream.truncate(1 << 41)  # a file of holes
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, {}), str(file))


@pytest.mark.parametrize("place", ["x" * 5000, "a\0b", "\ud800", "loop", "pipe", "zeros", "folder"])
def test_an_index_names_files(tmp_path: Path, place: str) -> None:
    """Not what no file can be called, nor pipes and devices, which would never end."""
    write_shards(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NAMES["embed"]: place}}))
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "a file that the index names is missing")


def test_an_index_without_end(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.touch()
    os.truncate(index, 1 << 40)
    refusal(CheckpointError, lambda: SafetensorsSource.open(tmp_path, NAMES), "the index is too large, expected at most 25000000 bytes")


def gguf_header(*parts: bytes) -> bytes:
    """Magic, version 3, one tensor or one metadatum, and what follows."""
    return b"GGUF" + struct.pack("<I", 3) + b"".join(parts)


def counts(tensors: int, metadata: int) -> bytes:
    return struct.pack("<QQ", tensors, metadata)


KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gguf_header(counts(1 << 60, 0)), "too many tensors"),
        (gguf_header(counts(0, 1 << 60)), "too many metadata"),
        (gguf_header(counts(0, 1), struct.pack("<Q", 1 << 33)), "too many bytes in a name"),
        (gguf_header(counts(1, 0), struct.pack("<Q", 1 << 33)), "too many bytes in a name"),
        (gguf_header(counts(0, 1), KEY, struct.pack("<IQ", 8, 1 << 62)), "truncated GGUF header"),
        (gguf_header(counts(0, 1), KEY, struct.pack("<IIQ", 9, 8, 1 << 28)), "too many texts in a list"),
        (gguf_header(counts(0, 1), KEY, struct.pack("<IIQ", 9, 4, 1 << 61)), "truncated GGUF header"),
        (gguf_header(counts(0, 1), KEY, struct.pack("<IIQ", 9, 9, 1 << 61)), "a list of metadata type 9"),
        (gguf_header(counts(1, 0), KEY, struct.pack("<IQQIQ", 2, 1 << 62, 1 << 62, 0, 0)), "ends past the end"),
        (gguf_header(counts(1, 0), KEY, struct.pack("<IQIQ", 1, 8, 0, 1 << 63)), "ends past the end"),
    ],
)
def test_counts_of_a_gguf_that_lie(tmp_path: Path, content: bytes, what: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    os.truncate(file, 1 << 36)  # holes: there would be room for what the header says
    refusal(CheckpointError, lambda: read_gguf(file), str(file), what)


def test_a_long_text_of_a_gguf_is_stepped_over(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_header(counts(0, 1), KEY, struct.pack("<IQ", 8, 1 << 33)))
    os.truncate(file, 1 << 34)
    assert dict(read_gguf(file).metadata) == {}


def test_blocks_with_infinite_scales_load(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"x": (np.ones((1, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)})
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    at = read_gguf(tmp_path / "m.gguf").tensors["x"].offset
    content[at : at + 34] = np.float16("inf").tobytes() + bytes(32)
    (tmp_path / "m.gguf").write_bytes(bytes(content))
    assert GgufSource.open(tmp_path / "m.gguf", {"x": "x"}).load("x").isnan().all()


def test_the_nearest_of_a_million_names_is_found_at_once() -> None:
    names = [f"model.layers.{i}.weight" for i in range(10**6)]
    start = time.perf_counter()
    assert "model.layers.77777.weight" in nearest("model.layers.77777.weigth", names)
    assert time.perf_counter() - start < 5

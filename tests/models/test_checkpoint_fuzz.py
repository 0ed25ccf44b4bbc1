"""Checkpoints spoiled at random (every file of one) open and load whole, or are refused in one line: no hang, and no memory for sizes they claim."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tokenizers import Tokenizer as Builder
from tokenizers import models, pre_tokenizers

from lamella.errors import LamellaError
from lamella.frontends import open_model, survey
from tests.models.model_files import write_folder, write_gguf
from tests.models.quantized_files import LLAMA, Awq, Compressed, Gptq, save

SECONDS = 5
"""That one case may take, on a slow machine."""
GROWTH = 1 << 30
"""Bytes that the process may grow by in all."""
CASES = {"safetensors": 600, "index": 250, "gguf": 450, "generation": 150, "configuration": 200, "tokenizer": 100, "quantized": 300}

GPTQ_FIELDS = [
    "desc_act",
    "sym",
    "checkpoint_format",
    "static_groups",
    "modules_in_block_to_quantize",
    "dynamic",
    "lm_head",
    "quant_method",
    "weight_block_size",
]

INTEGERS = st.sampled_from(
    [0, 1, 2, 3, 7, 8, 31, 32, 100, 255, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
)
SCALARS = st.sampled_from(
    [None, True, False, 0, -1, 1, 2, 31, 64, 1.5, -2.5, 1e30, 5e-324, float("nan"), float("inf"), 10**12, 2**63, 10**400, "", "x", "F32", "I8", "\ud800",
     "a\nb", "\x1b[2J", "x" * 5000, "\0", [], {}]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "", "type", "id"]), inner, max_size=2)
)
GARBAGE = st.sampled_from(
    [b"", b"{", b"null", b"[]", b"3", b'"text"', b"\xff\xfe", b"{}", b"\0" * 64, b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b'{"a": 1' + b"0" * 4999 + b"}",
     b"\xef\xbb\xbf{}", b'{"a": NaN}', b"<!DOCTYPE html>"]
)  # fmt: skip
PLACES = st.sampled_from(
    ["/etc/passwd", "../x.safetensors", "a/../../b", "..", ".", "", "/", "C:\\x", "\\\\host\\share", "~/x", "x" * 5000, "a\0b", "\ud800", "\udcff", "link",
     "loop", "zeros", "pipe", "folder", "dangling", "config.json", "a.safetensors", "./a.safetensors", "b.safetensors", "b.safetensors/x", "no\nsuch", "/dev/zero"]
)  # fmt: skip


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Within it, Python that runs for longer is interrupted."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def resident(kind: str) -> int:
    """Bytes of this process in memory: `VmRSS` now, `VmHWM` at most since that was reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) << 10


@pytest.fixture(scope="module", autouse=True)
def bounded_growth() -> Iterator[None]:
    """Checks that the process never grows by GROWTH, over all cases together."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before = resident("VmRSS")
    yield
    grown = resident("VmHWM") - before
    assert grown < GROWTH, f"grew by {grown >> 20} MiB"


def outcome(path: Path, text: bool = False) -> str:
    """Surveys a model, opens it, loads each tensor and (if `text`) uses its tokenizer: the line it is refused with, empty if it is not."""
    with deadline(SECONDS):
        try:
            assert survey(path).architecture.isprintable()
            opened = open_model(path)
            for name in opened.source.names():
                opened.source.load(name, "bf16")
            if text and opened.tokenizer is not None:
                ids = opened.tokenizer.encode("a b <s>c")
                stream = opened.tokenizer.stream()
                assert isinstance("".join(stream.push(i) for i in [*ids, 3, 10**6]) + stream.flush(), str)
                opened.tokenizer.chat([{"role": "user", "content": "a"}])
        except LamellaError as error:
            line = str(error)
            assert line and line.isprintable() and line.encode()
            assert len(line) < 1500
            return line
    return ""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of every kind of file, each tensor in one of two shards, and a GGUF file beside it."""
    folder = tmp_path_factory.mktemp("sound")
    tensors = write_folder(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {name: "a.safetensors" if i % 2 else "b.safetensors" for i, name in enumerate(names)}
    for shard in ("a.safetensors", "b.safetensors"):
        save_file({n: tensors[n] for n in names if places[n] == shard}, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    settings = {"eos_token_id": [2, 3], "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    builder = Builder(models.BPE({c: i for i, c in enumerate(["<s>", "</s>", "a", "b", "c", "d", "ab", "Ġ"])}, [("a", "b")]))
    builder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    builder.add_special_tokens(["<s>", "</s>"])
    builder.save(str(folder / "tokenizer.json"))
    tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{{ messages[0].content }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    assert outcome(folder, text=True) == ""
    assert outcome(write_gguf(folder / "sound.gguf")) == ""
    shutil.rmtree(folder / "shape")
    return folder


@pytest.fixture
def spoiled(sound: Path, tmp_path: Path) -> Path:
    """A copy, with links and things that are no files beside it."""
    folder = tmp_path / "spoiled"
    shutil.copytree(sound, folder)
    (tmp_path / "out.safetensors").write_bytes((sound / "a.safetensors").read_bytes())
    for name, target in (("link", "../out.safetensors"), ("loop", "loop"), ("zeros", "/dev/zero"), ("dangling", "nowhere")):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    return folder


def fuzz(kind: str):
    """Settings of a fuzz test of so many cases, the same in each run."""
    return settings(max_examples=CASES[kind], deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


def edited(draw: Any, value: Any, names: list[Any], depth: int = 0) -> Any:
    """JSON with one place changed: a field replaced, dropped or added, or a list shuffled."""
    if isinstance(value, dict) and value and (depth == 0 or draw(st.integers(0, 3))):
        key = draw(st.sampled_from([*value, *names]))
        match draw(st.integers(0, 4)):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, key: draw(VALUES)}
            case 2:
                # What belongs to one name is given to another.
                other = draw(st.sampled_from(list(value)))
                return {**value, key: value[other]}
            case _:
                return {**value, key: edited(draw, value.get(key), names, depth + 1)}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        i = draw(st.integers(0, len(value) - 1))
        return [*value[:i], edited(draw, value[i], names, depth + 1), *value[i + 1 :]]
    if type(value) is int and draw(st.booleans()):
        return value + draw(st.sampled_from([-1, 1, 2, 8, -value * 2, 2**32, 2**63]))
    return draw(VALUES)


def damaged(draw: Any, content: bytes, most: int) -> bytes:
    """Bytes with some of the first `most` replaced, or cut, or with more at the end."""
    match draw(st.integers(0, 3)):
        case 0:
            return content[: draw(st.integers(0, min(len(content), most)))]
        case 1:
            return content + draw(st.binary(min_size=1, max_size=9))
        case 2:
            at = draw(st.integers(0, min(len(content), most) - 1))
            return content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at:]
        case _:
            at, new = draw(st.integers(0, min(len(content), most) - 1)), draw(st.binary(min_size=1, max_size=9))
            return content[:at] + new + content[at + len(new) :]


def as_json(draw: Any, value: Any, names: list[Any]) -> bytes:
    """A JSON file with up to three places changed, damaged, or of something else entirely."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(GARBAGE)
    for _ in range(draw(st.integers(1, 3))):
        value = edited(draw, value, names)
    text = json.dumps(value).encode()
    return damaged(draw, text, len(text)) if kind == 1 else text


@fuzz("safetensors")
@given(data=st.data())
def test_safetensors(sound: Path, spoiled: Path, data: st.DataObject) -> None:
    content = (sound / "a.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, body = content[8 : 8 + length], content[8 + length :]
    match data.draw(st.integers(0, 4)):
        case 0:
            content = damaged(data.draw, content, 8 + length)
        case 1:
            content = (
                struct.pack("<Q", data.draw(INTEGERS | st.sampled_from([length - 1, length + 1, len(content), len(content) - 8])))
                + header
                + body
            )
        case 2:
            # The same name twice.
            again = data.draw(st.sampled_from([header[1:], b'"x":1,' + header[1:], b'"x":{},"x":{},' + header[1:]]))
            header = header.rstrip()[:-1] + b"," + again
            content = struct.pack("<Q", len(header)) + header + body
        case _:
            header = as_json(
                data.draw, json.loads(header), ["__metadata__", "dtype", "shape", "data_offsets", "x" * 9000, "a\nb", "\ud800"]
            )
            content = struct.pack("<Q", len(header)) + header + body
    (spoiled / "a.safetensors").write_bytes(content)
    outcome(spoiled)


@fuzz("index")
@given(data=st.data())
def test_index(sound: Path, spoiled: Path, data: st.DataObject) -> None:
    file = "model.safetensors.index.json"
    index = json.loads((sound / file).read_bytes())
    if data.draw(st.booleans()):
        for name in data.draw(st.lists(st.sampled_from(list(index["weight_map"])), min_size=1, max_size=3)):
            index["weight_map"][name] = data.draw(PLACES)
        (spoiled / file).write_text(json.dumps(index))
    else:
        (spoiled / file).write_bytes(as_json(data.draw, index, ["weight_map", "metadata"]))
    outcome(spoiled)


@fuzz("gguf")
@given(data=st.data())
def test_gguf(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = (sound / "sound.gguf").read_bytes()
    header = content.index(b"output_norm.weight") + 64
    match data.draw(st.integers(0, 3)):
        case 0:
            content = damaged(data.draw, content, header)
        case 1:
            content = b"GGUF" + struct.pack("<I", data.draw(st.sampled_from([2, 3]))) + data.draw(st.binary(max_size=200))
        case _:
            for _ in range(data.draw(st.integers(1, 2))):
                at = data.draw(st.integers(4, header))
                new = data.draw(INTEGERS).to_bytes(8, "little")[: data.draw(st.sampled_from([1, 4, 8]))]
                content = content[:at] + new + content[at + len(new) :]
    (tmp_path / "spoiled.gguf").write_bytes(content)
    outcome(tmp_path / "spoiled.gguf")


@fuzz("generation")
@given(data=st.data())
def test_generation_settings(sound: Path, spoiled: Path, data: st.DataObject) -> None:
    file = "generation_config.json"
    names = ["eos_token_id", "do_sample", "temperature", "top_k", "top_p", "min_p", "x"]
    (spoiled / file).write_bytes(as_json(data.draw, json.loads((sound / file).read_bytes()), names))
    outcome(spoiled)


@fuzz("configuration")
@given(data=st.data())
def test_configuration(sound: Path, spoiled: Path, data: st.DataObject) -> None:
    """With the weights it is about: `test_configuration_fuzz.py` spoils those of every family."""
    names = ["rope_scaling", "torch_dtype", "dtype", "quantization_config", "head_dim", "layer_types", "tie_word_embeddings"]
    (spoiled / "config.json").write_bytes(as_json(data.draw, json.loads((sound / "config.json").read_bytes()), names))
    outcome(spoiled)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints of other tools."""
    found: list[Path] = []
    for rule in (Gptq(ordered=True, symmetric=False), Awq(16), Compressed(group=16), Compressed("float-quantized", 8, "channel")):
        found.append(tmp_path_factory.mktemp("quantized"))
        save(found[-1], LLAMA, rule, rule.config)
        assert outcome(found[-1]) == ""
    return found


@fuzz("quantized")
@given(data=st.data())
def test_quantized_checkpoints(quantized: list[Path], tmp_path: Path, data: st.DataObject) -> None:
    folder = data.draw(st.sampled_from(quantized))
    config = json.loads((folder / "config.json").read_bytes())
    content = (folder / "model.safetensors").read_bytes()
    if data.draw(st.integers(0, 2)):
        names = [*GPTQ_FIELDS, *(c for path in quantized for c in json.loads((path / "config.json").read_bytes())["quantization_config"])]
        for _ in range(data.draw(st.integers(1, 3))):
            config["quantization_config"] = edited(data.draw, config["quantization_config"], names)
    else:
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        for _ in range(data.draw(st.integers(1, 2))):
            header = edited(data.draw, header, list(header))
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + content[8 + length :]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(content)
    outcome(tmp_path)


@fuzz("tokenizer")
@given(data=st.data())
def test_tokenizer(sound: Path, spoiled: Path, data: st.DataObject) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(sound / file, spoiled)
    file = data.draw(st.sampled_from(["tokenizer.json", "tokenizer.json", "tokenizer_config.json"]))
    names = ["added_tokens", "model", "chat_template", "eos_token", "tokenizer_class", "auto_map", "added_tokens_decoder"]
    (spoiled / file).write_bytes(as_json(data.draw, json.loads((sound / file).read_bytes()), names))
    outcome(spoiled, text=True)

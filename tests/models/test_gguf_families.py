"""Architectures of GGUF files beside llama: tiny models written as llama.cpp's converter would give `transformers`' logits; and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from lamella import api
from lamella.checkpoints import read_gguf
from lamella.errors import ConfigError, LamellaError, TensorError, UnknownArchitectureError
from lamella.frontends import open_model
from lamella.frontends.gguf import as_matrices, file_names, gguf_config
from lamella.frontends.gguf_architectures import ARCHITECTURES
from tests.models.gguf_writer import FILES, Written, write
from tests.models.test_families import TOLERANCE, ids_of, logits_of
from tests.models.tiny_families import CASES


def test_every_architecture_is_written() -> None:
    assert {made.architecture for made in FILES} == set(ARCHITECTURES)


@pytest.mark.parametrize("made", FILES, ids=[made.case for made in FILES])
def test_logits_are_those_of_the_model_that_was_written(made: Written, tmp_path: Path) -> None:
    case = CASES[made.case]
    case = replace(case, changes={**case.changes, **made.changes})
    model, file = case.model(), tmp_path / "model.gguf"
    write(made, model, file)
    if made.peer:
        # The writer knows the format: transformers finds the same weights in the file.
        load = getattr(transformers, case.architecture).from_pretrained
        peer = load(tmp_path, gguf_file=file.name, config=model.config, dtype=torch.float32).state_dict()
        assert all(torch.allclose(peer[name], tensor, rtol=0, atol=1e-6) for name, tensor in model.state_dict().items())
    loaded = api.load(file, device="cpu", dtype="float32", max_context=case.max_context, buckets=[1, 48])
    for length in (7, 40):
        ids = ids_of(length, 97, length)
        expected = logits_of(model, ids)
        assert float(expected.std()) > 0.05
        torch.testing.assert_close(loaded.session.forward_logits(ids), expected, **TOLERANCE)


WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97}


@pytest.mark.parametrize("case", ["qwen2", "gemma2", "phi3, both", "gpt_neox", "qwen3_moe"])
def test_blocks_may_stay_packed(case: str, tmp_path: Path) -> None:
    """Kept or dequantized, the numbers are the same: beside biases, norms with an offset, fused projections and experts."""
    made, file = next(made for made in FILES if made.case == case), tmp_path / "model.gguf"
    own = {**made.changes, **WIDE, **({"num_key_value_heads": None} if case == "gpt_neox" else {})}
    own |= {"moe_intermediate_size": 32} if "moe" in case else {}
    own |= {"rope_parameters": {**CASES[case].changes["rope_parameters"], "partial_rotary_factor": 0.5}} if "phi3" in case else {}
    write(made, replace(CASES[case], changes={**CASES[case].changes, **own}).model(), file, gguf.GGMLQuantizationType.Q8_0)
    ids = ids_of(20, 97)
    loaded = [api.load(file, device="cpu", dtype="float32", quantize=how, buckets=[1, 32]) for how in ("none", "keep")]
    floats, packed = (model.session.forward_logits(ids) for model in loaded)
    assert loaded[1].opened.config.packed
    torch.testing.assert_close(packed, floats, rtol=0, atol=2e-4)


def spoiled(file: Path, *, drop: str = "", **metadata: Any) -> Path:
    """A tiny qwen2 whose metadata are replaced, or (None) left out, and that lacks a tensor."""
    made = next(made for made in FILES if made.architecture == "qwen2")
    write(made, CASES["qwen2"].model(), file)
    reader, architecture = gguf.GGUFReader(file), metadata.pop("architecture", "qwen2")
    writer = gguf.GGUFWriter(file.with_suffix(".2.gguf"), architecture)
    values = {name.removeprefix("qwen2."): f.contents() for name, f in reader.fields.items() if name.startswith("qwen2.")}
    for name, value in {**values, **metadata}.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}.get(type(value))
        if add is not None:
            add(f"{architecture}.{name}", value)
    for tensor in reader.tensors:
        if tensor.name != drop:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file.with_suffix(".2.gguf")


@pytest.mark.parametrize(
    ("changes", "kind", "parts"),
    [
        ({"architecture": "qwen2vl"}, UnknownArchitectureError, ("unknown architecture qwen2vl", "qwen2")),
        ({"architecture": "rwkv7"}, UnknownArchitectureError, ("unknown architecture rwkv7", "docs/families.md")),
        ({"block_count": None}, ConfigError, ("num_hidden_layers is missing",)),
        ({"attention.head_count": 7}, ConfigError, ("hidden_size is not a multiple of num_attention_heads",)),
        ({"expert_count": 4}, ConfigError, ("mixtures of experts", "got 4")),
        ({"attention.key_length": 10, "attention.value_length": 8}, ConfigError, ("attention.value_length", "expected 10", "got 8")),
        ({"rope.dimension_count": 4}, ConfigError, ("rotates whole heads",)),
        ({"rope.scaling.type": "yarn"}, ConfigError, ("unknown RoPE scaling yarn",)),
        ({"vocab_size": 51}, ConfigError, ("vocab_size contradicts", "expected 97", "got 51")),
        ({"drop": "token_embd.weight"}, TensorError, ("token_embd.weight (embed) is missing",)),
        ({"drop": "blk.1.attn_q.bias"}, TensorError, ("blk.1.attn_q.bias (layers.1.attn.q_proj.bias) is missing",)),
    ],
)
def test_what_is_refused(changes: dict[str, Any], kind: type[LamellaError], parts: tuple[str, ...], tmp_path: Path) -> None:
    file = spoiled(tmp_path / "m.gguf", **changes)
    with pytest.raises(kind) as caught:
        open_model(file)
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in (str(file), *parts) if part not in text] == [], text


BAD = (None, 0, -1, 1, 3, 2**40, 2**63, 1.5, math.nan, math.inf, "x", True, [1], [])


@pytest.mark.parametrize("made", FILES, ids=[made.case for made in FILES])
def test_metadata_that_make_no_sense_give_clean_errors(made: Written, tmp_path: Path) -> None:
    """Nothing but LamellaError leaves, whatever stands in one or two places of the metadata."""
    case, file, chance, refused = CASES[made.case], tmp_path / "model.gguf", Random(made.case), 0
    write(made, replace(case, changes={**case.changes, **made.changes}).model(), file)
    header = as_matrices(read_gguf(file))
    keys = [name for name in header.metadata if not name.startswith("general.")]
    for _ in range(60):
        spoilt = replace(
            header, metadata={**header.metadata, **{key: chance.choice(BAD) for key in chance.sample(keys, chance.randint(1, 2))}}
        )
        try:
            config = gguf_config(spoilt)
            if config.layers < 100:
                file_names(spoilt, config)
        except LamellaError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 20

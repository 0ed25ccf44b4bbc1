"""Element types: a checkpoint in any of them runs in any other, and without a wish in the one that its configuration names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lamella import api
from tests.models.model_files import write_folder

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("stored", TYPES)
def test_any_source_runs_in_any_type(stored: str, tmp_path: Path) -> None:
    tensors = write_folder(tmp_path, dtype=TYPES[stored], torch_dtype=stored)
    opened = api.open_model(tmp_path)
    assert api.DTYPES[stored] == opened.config.dtype == opened.source.dtype("embed")
    assert api.element_name("auto", opened, on_gpu=True) == opened.config.dtype
    assert api.element_name("auto", opened, on_gpu=False) == "f32"
    embedding = tensors["model.embed_tokens.weight"]
    for name, dtype in TYPES.items():
        model = api.load(tmp_path, device="cpu", dtype=name, buckets=[1, 16])
        assert torch.equal(model.executor.memory.weights["embed"], embedding.to(dtype))  # pyright: ignore[reportAttributeAccessIssue]
        assert len(model.generate([3, 4], 2, ignore_eos=True).output_ids) == 2


@pytest.mark.parametrize("field", ["torch_dtype", "dtype"])
def test_the_configuration_counts_more_than_the_file(field: str, tmp_path: Path) -> None:
    write_folder(tmp_path, dtype=torch.float32)
    file = tmp_path / "config.json"
    config = {name: value for name, value in json.loads(file.read_text()).items() if name != "torch_dtype"}
    for named, expected in (({field: "bfloat16"}, "bf16"), ({field: "auto"}, "f32"), ({}, "f32")):
        file.write_text(json.dumps({**config, **named}))
        assert api.element_name("auto", api.open_model(tmp_path), on_gpu=True) == expected

"""Quantized checkpoints spoiled at random: their configuration, or one of their tensors. They are refused in one line, or load whole."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lamella.checkpoints import PackedSource
from lamella.errors import LamellaError
from lamella.frontends import open_model
from tests.models.quantized_files import LLAMA, Awq, Compressed, Gptq, save

FORMS = {
    "gptq": Gptq(ordered=True, symmetric=False),
    "awq": Awq(16),
    "words": Compressed(ordered=True, symmetric=False),
    "bytes": Compressed("int-quantized", 8, "group", symmetric=False),
    "float8": Compressed("float-quantized", 8, "channel"),
}
JUNK: tuple[Any, ...] = (
    *(None, 0, -1, 1, 3, 8, 24, 2**31, -(2**70), 1.5, float("nan"), True, False, "", "gptq", "re:(", "re:(.+)+x", "*", "int", "float"),
    *("block", "tensor", "channel", "group", "pack-quantized", "float-quantized", "x" * 1000, [], [None], ["Linear"], {}, {"a": 1}),
)
MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "lm_head")
ENDS = ("bias", "qweight", "weight_scale", "weight_packed", "g_idx", "input_scale", "other")
TRIALS = 40


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object or list inside a JSON value, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def spoil_config(rng: random.Random, config: dict[str, Any]) -> None:
    """Other values in quantization_config, or fewer."""
    for _ in range(rng.randint(1, 2)):
        found = list(places(config["quantization_config"]))
        if found:
            holder, key = rng.choice(found)
            if rng.random() < 0.2:
                del holder[key]
            else:
                holder[key] = rng.choice(JUNK)


def spoil_tensor(rng: random.Random, tensors: dict[str, torch.Tensor]) -> None:
    """One tensor gone, shorter, of another type, of other numbers, or one too many."""
    name = rng.choice(sorted(name for name in tensors if "proj" in name))
    tensor = tensors[name]
    match rng.randrange(5):
        case 0:
            del tensors[name]
        case 1 if tensor.dim():
            tensors[name] = tensor[:-1].clone()
        case 2:
            tensors[name] = tensor.float().to(rng.choice((torch.int8, torch.int32, torch.int64, torch.float16, torch.float32)))
        case 3 if tensor.dtype == torch.int32:
            tensors[name] = torch.randint(-(2**31), 2**31 - 1, tensor.shape).to(torch.int32)
        case _:
            tensors[f"{rng.choice(MODULES)}.{rng.choice(ENDS)}"] = torch.ones(rng.choice(((1,), (64,), (64, 1), (8, 64))))


@pytest.mark.parametrize("name", FORMS)
def test_spoiled_checkpoints(name: str, tmp_path: Path) -> None:
    sound, spoiled = tmp_path / "sound", tmp_path / "spoiled"
    save(sound, LLAMA, FORMS[name], FORMS[name].config)
    spoiled.mkdir()
    rng = random.Random(name)
    refused = 0
    for _ in range(TRIALS):
        config, tensors = json.loads((sound / "config.json").read_text()), load_file(sound / "model.safetensors")
        if rng.random() < 0.6:
            spoil_config(rng, config)
        else:
            spoil_tensor(rng, tensors)
        (spoiled / "config.json").write_text(json.dumps(config))
        save_file(tensors, spoiled / "model.safetensors")
        try:
            source = open_model(spoiled).source
            for part in source.names():
                if isinstance(source, PackedSource) and (part in source.weights or source.part(part) is not None):
                    source.load(part)
        except LamellaError as error:
            refused += 1
            assert str(error).isprintable(), error
    assert TRIALS // 4 < refused < TRIALS

"""Tiny checkpoints on disk: a Hugging Face folder with safetensors, and a GGUF file, each easy to spoil in one place."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from lamella.frontends.decoder import source_names, weight_shapes
from lamella.frontends.gguf import gguf_names
from lamella.frontends.huggingface import read_config

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write_config(folder: Path, **changes: Any) -> Path:
    """config.json in a folder, which is made; some fields changed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps({**CONFIG, **changes}))
    return file


def write_folder(folder: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> dict[str, torch.Tensor]:
    """A folder with a configuration and random weights; the tensors by their stored names, as `save` takes them."""
    config, _ = read_config(write_config(folder, **changes))
    names = source_names(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {names[n]: torch.randn(shape, generator=generator) * 0.1 for n, shape in sorted(weight_shapes(config).items())}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save(folder, tensors)
    return tensors


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Write the folder's weights again."""
    file = folder / "model.safetensors"
    save_file(tensors, file)
    return file


def write_gguf(file: Path, *, architecture: str = "llama", drop: Collection[str] = ()) -> Path:
    """A GGUF file of the same shape with tied output, in Q8_0, without the tensors called `drop`."""
    writer = gguf.GGUFWriter(file, architecture)
    keys = {
        "block_count": 1, "embedding_length": 32, "feed_forward_length": 64, "attention.head_count": 2,
        "attention.head_count_kv": 1, "context_length": 64, "rope.dimension_count": 16,
    }  # fmt: skip
    for key, value in keys.items():
        writer.add_int32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    config, _ = read_config(write_config(file.parent / "shape", intermediate_size=64, tie_word_embeddings=True))
    shapes = weight_shapes(config)
    for name, stored in gguf_names(shapes).items():
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shapes[name]) == 2 else gguf.GGMLQuantizationType.F32
        values = np.random.default_rng(len(name)).standard_normal(shapes[name]).astype(np.float32) * 0.1
        if stored not in drop:
            writer.add_tensor(stored, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file

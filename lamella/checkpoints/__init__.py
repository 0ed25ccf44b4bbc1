"""Sources of weights: safetensors folders, GGUF files and seeds enter; tensors by canonical name leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lamella.checkpoints.gguf import GgufFile, GgufSource, is_gguf, read_gguf
from lamella.checkpoints.gguf_blocks import keepable
from lamella.checkpoints.packed import PackedSource
from lamella.checkpoints.random import RandomSource
from lamella.checkpoints.safetensors import SafetensorsSource, has_safetensors
from lamella.checkpoints.source import StoredTensor, TensorSource
from lamella.errors import CheckpointError, ModelNotFoundError, nearest

__all__ = [
    "GgufFile", "GgufSource", "PackedSource", "RandomSource", "SafetensorsSource", "StoredTensor", "TensorSource", "has_safetensors", "is_gguf",
    "keepable", "open_source", "read_gguf",
]  # fmt: skip

KINDS = ("safetensors", "gguf", "random")


def open_source(description: Mapping[str, Any]) -> TensorSource:
    """
    The source that `TensorSource.describe` described. The fingerprint in the description is not enforced: compare it where a
    changed file matters. Raises ModelNotFoundError when the file has gone, CheckpointError for a malformed description.
    """
    kind = description.get("kind")
    try:
        match kind:
            case "safetensors":
                folder = Path(description["path"])
                if not has_safetensors(folder):
                    raise ModelNotFoundError("the weights are gone", where=str(folder), remedy="compile the model again")
                return SafetensorsSource.open(folder, dict(description["names"]))
            case "gguf":
                file = Path(description["path"])
                if not file.is_file():
                    raise ModelNotFoundError("the weights are gone", where=str(file), remedy="compile the model again")
                return GgufSource.open(file, dict(description["names"]))
            case "random":
                shapes = {name: tuple(shape) for name, shape in description["shapes"].items()}
                return RandomSource(shapes, int(description["seed"]), description.get("dtype", "f32"))
            case _:
                raise CheckpointError(f"unknown kind of weights {kind!r}", remedy=nearest(str(kind), KINDS))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"malformed description of {kind} weights: {error!r}") from error

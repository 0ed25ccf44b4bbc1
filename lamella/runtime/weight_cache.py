# pyright: basic
"""Transformed weights on disk: a description of how a weight is made enters; the tensor leaves, or None when it has to be made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from lamella.errors import OutputError
from lamella.runtime.manifest import WeightSpec
from lamella.semantics import DTYPES

RULE = 1
"""Version of how transforms compute: it changes when their numbers do."""
NAME = "weight"


class WeightCache:
    """A folder of safetensors files, one a weight, named by the hash of all that determines it.

    Any number of processes may use it at once: a file appears complete under its name or not at all, and whoever comes last
    replaces it by its equal. Files are never trusted: what is truncated, altered or of another weight is as good as missing.
    """

    def __init__(self, folder: str | Path, fingerprint: str) -> None:
        """`fingerprint` is that of the checkpoint. Raises OutputError where the folder cannot be made."""
        self.folder = Path(folder).expanduser()
        self.fingerprint = fingerprint
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "is a file" if isinstance(error, FileExistsError) else f"cannot be made: {error.strerror}"
            raise OutputError(f"the weight cache {why}", where=str(self.folder), expected="a folder") from error

    def key(self, spec: WeightSpec) -> str:
        """The hash of a weight's checkpoint, sources, transform and type."""
        parts = {"rule": RULE, "checkpoint": self.fingerprint, "weight": asdict(spec)}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def path(self, spec: WeightSpec) -> Path:
        """Where a weight is, or would be."""
        return self.folder / f"{self.key(spec)}.safetensors"

    def load(self, spec: WeightSpec) -> torch.Tensor | None:
        """The weight, memory-mapped, if its file is there and holds what its hash says."""
        try:
            with safe_open(str(self.path(spec)), framework="pt", device="cpu") as file:
                said = file.metadata() or {}
                weight = file.get_tensor(NAME)
        except (SafetensorError, OSError, RuntimeError):
            # torch maps the file by name a second time and says RuntimeError where another process has just removed it.
            return None
        sound = (weight.dtype, tuple(weight.shape)) == (DTYPES[spec.dtype], spec.shape) and said.get(NAME) == self.seal(spec, weight)
        return weight if sound else None

    def seal(self, spec: WeightSpec, weight: torch.Tensor) -> str:
        """What a file says of itself: the weight it is for, and the hash of its bytes."""
        return f"{self.key(spec)} {hashlib.sha256(weight.flatten().view(torch.uint8).numpy().data).hexdigest()}"

    def store(self, spec: WeightSpec, weight: torch.Tensor) -> None:
        """Writes a weight. Raises OutputError."""
        path = self.path(spec)
        work = path.with_name(f".{path.name}.{uuid4().hex}")
        held = weight.cpu().contiguous()
        try:
            save_file({NAME: held}, work, metadata={NAME: self.seal(spec, held)})
            work.replace(path)
        except (SafetensorError, OSError) as error:
            raise OutputError(f"cannot write to the weight cache: {error}", where=str(self.folder)) from error
        finally:
            work.unlink(missing_ok=True)

"""Weights made up from a seed, for experiments and benchmarks: shapes enter; the same tensors leave on every device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING

from lamella.checkpoints.source import digest, torch_dtype
from lamella.errors import TensorError, nearest

if TYPE_CHECKING:
    import torch

RULE = 1
"""Version of the rule below: it changes when the numbers do."""
CHUNK = 1 << 18
"""Elements made at a time on a CPU, so that the dozen passes over them stay in cache."""


@dataclass(frozen=True)
class RandomSource:
    """
    Tensors of the given shapes. A norm's weights are 1 + 0.05·n, biases 0.02·n, matrices n / sqrt(last axis), where n is near normal
    with variance 1: activations keep their scale through any depth and width. Every number is a pure integer function of
    (seed, name, index), so that neither load order nor device matters.
    """

    shapes: Mapping[str, tuple[int, ...]]
    seed: int
    stored: str = "f32"
    """The type `load` gives when asked for none."""

    def names(self) -> list[str]:
        return sorted(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.shapes:
            raise TensorError(f"no tensor is called {name}", remedy=nearest(name, self.shapes))
        return self.shapes[name]

    def dtype(self, name: str) -> str:
        self.shape(name)
        return self.stored

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        import torch

        shape = self.shape(name)
        target = torch_dtype(dtype or self.stored)
        mean, deviation = _moments(name, shape)
        key = int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:8], "little")
        count = prod(shape)
        flat = torch.empty(count, dtype=target, device=device)
        chunk = CHUNK if flat.device.type == "cpu" else 64 * CHUNK
        for start in range(0, count, chunk):
            end = min(start + chunk, count)
            flat[start:end] = _normal(start, end, key, flat.device).mul_(deviation).add_(mean)
        return flat.view(shape)

    def fingerprint(self) -> str:
        return digest(["random", RULE, self.seed, sorted((n, tuple(s)) for n, s in self.shapes.items())])

    def describe(self) -> dict[str, object]:
        shapes = {name: list(self.shapes[name]) for name in self.names()}
        return {"kind": "random", "seed": self.seed, "dtype": self.stored, "shapes": shapes, "fingerprint": self.fingerprint()}


def _moments(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a tensor, by its name and shape."""
    if name.endswith(".bias"):
        return 0.0, 0.02
    if len(shape) == 1:
        return 1.0, 0.05
    return 0.0, 1 / sqrt(shape[-1])


def _normal(start: int, end: int, key: int, device: torch.device) -> torch.Tensor:
    """
    float32 numbers start … end-1 of the stream `key`, mean 0, variance 1: the sum of the four bytes of a hashed counter,
    whose cumulative distribution is within 0.009 of the normal one. Integers all the way to the last multiplication: exact on every device.
    The hash is C. Wellons' 32-bit finalizer "triple32" (hash-prospector), in wrapping int32 arithmetic.
    """
    import torch

    low, high = key & 0x7FFFFFFF, key >> 33
    index = torch.arange(start, end, dtype=torch.int64, device=device)
    # Past 2^32 elements the counter wraps: its upper half then changes the key instead.
    x = (index + low + (index >> 32) * 0x1E3779B1).to(torch.int32)
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        x ^= (x >> shift) & (0xFFFFFFFF >> shift)
        x *= factor - (1 << 32) if factor >> 31 else factor
        x += high
    x ^= (x >> 14) & (0xFFFFFFFF >> 14)
    total = (x & 0x00FF00FF) + ((x >> 8) & 0x00FF00FF)
    total = (total & 0xFFFF) + (total >> 16)
    # Each byte is uniform on 0 … 255: mean 127.5, variance (256² - 1) / 12.
    return total.to(torch.float32).sub_(510.0).mul_(1 / sqrt(4 * 65535 / 12))

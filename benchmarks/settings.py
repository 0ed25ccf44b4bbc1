# pyright: basic
"""What all benchmarks are told: a configuration, a device, an element type, how long to measure, where to write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lamella.errors import DeviceError
from lamella.frontends import ModelConfig
from lamella.runtime.executor import resolve


@dataclass(frozen=True)
class Settings:
    """`dtype` as people type it: `auto`, `float32`, `float16`, `bfloat16`. `steps` launches make one of `repetitions` measurements, or fewer
    where all of them together would take longer than `seconds`.
    """

    name: str
    config: Path
    device: torch.device
    dtype: str = "auto"
    steps: int = 50
    repetitions: int = 5
    output: Path | None = None
    seconds: float = math.inf

    def facts(self, config: ModelConfig, dtype: str, **shape: int) -> Mapping[str, Any]:
        """For the report: the model's sizes, its element type and the shape of the step."""
        sizes = {k: v for k, v in asdict(config).items() if isinstance(v, int | float) and k not in ("bos",)}
        return {"config": self.name, "model": sizes, "dtype": dtype, "shape": shape}


def device_of(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as a device. Raises DeviceError."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"unknown device {name!r}", expected="auto, cpu or cuda")
    return resolve("auto", name)[1]

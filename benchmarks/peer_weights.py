# pyright: basic
"""The linears of a peer whose weights are in few bits: written in plain PyTorch, or quantized by torchao."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lamella.errors import LamellaError

GROUP = 128
"""Columns of a row that share a scale of int4."""
INDUCTOR = {"coordinate_descent_tuning": True}
"""What torch.compile is told where weights are in few bits, as torchao tells it: only so does it make one token a sum that widens bytes in registers. Without, a step of Llama-3.1-8B
in int8 took 62 ms."""


class Int8Linear(nn.Module):
    """y = (x @ W8ᵀ) · scales: int8 with a scale a row, which torch.compile reads as int8 and widens in registers."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight` [N, K]: rounded to the nearest, the largest number of a row to 127."""
        super().__init__()
        scales = weight.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / 127
        self.register_buffer("weight", (weight.float() / scales).round().to(torch.int8))
        self.register_buffer("scales", scales[:, 0].to(weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K] -> [..., N]."""
        return F.linear(x, self.weight.to(x.dtype)) * self.scales


Linear = Callable[[torch.Tensor], nn.Module]
"""From a weight [N, K] what computes x [..., K] @ weightᵀ; the weight itself is not copied."""


@dataclass(frozen=True)
class PeerWeights:
    """`kind`, as `--quantize` names it; the linears of a layer, and the one that makes the logits."""

    kind: str
    linear: Linear
    head: Linear


def plain(weight: torch.Tensor) -> nn.Linear:
    """Numbers as they are."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def _torchao(config: str, **options: Any) -> Linear:
    """torchao's own kernels and rewrites, by one of its configurations."""

    def linear(weight: torch.Tensor) -> nn.Module:
        try:
            from torchao import quantization
        except ImportError as error:
            raise LamellaError("the peer needs torchao", got=str(error), remedy="pip install torchao") from error
        made = nn.Sequential(plain(weight))
        quantization.quantize_(made, getattr(quantization, config)(set_inductor_config=False, **options))
        return made[0]

    return linear


_AO_INT8 = _torchao("Int8WeightOnlyConfig")
_AO_INT4 = _torchao("Int4WeightOnlyConfig", group_size=GROUP, int4_packing_format="tile_packed_to_4d")
_AO_FP8 = _torchao("Float8WeightOnlyConfig")
PEER_WEIGHTS: Mapping[str, PeerWeights] = {
    "": PeerWeights("none", plain, plain),
    "int8": PeerWeights("int8", Int8Linear, Int8Linear),
    "torchao-int8": PeerWeights("int8", _AO_INT8, _AO_INT8),
    # The logits come from int8, as they do here.
    "torchao-int4": PeerWeights("int4", _AO_INT4, _AO_INT8),
    "torchao-fp8": PeerWeights("fp8", _AO_FP8, _AO_FP8),
}
"""What stands behind the + of a peer's name."""

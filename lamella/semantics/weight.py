# pyright: basic
"""Weights as the kernels want them: checkpoint tensors enter, tensors of the same dtype leave. Runs at load time, once."""

from __future__ import annotations

import torch

from .table import implements, wide


@implements("transformer.pair_rows")
def pair_rows(weight: torch.Tensor, *, head_dim: int, rotary_dim: int) -> torch.Tensor:
    """weight[H·head_dim, …] -> same shape: rows j and j + rotary_dim/2 of each head become rows 2j and 2j + 1; the rest stay.

    Applied to the projections (and biases) of q and k alike it leaves every product q·k as it was, and puts both partners of a
    rotation side by side.
    """
    heads = weight.reshape(-1, head_dim, *weight.shape[1:])
    turned, rest = heads[:, :rotary_dim], heads[:, rotary_dim:]
    halves = turned.reshape(heads.shape[0], 2, rotary_dim // 2, *weight.shape[1:])
    paired = halves.transpose(1, 2).reshape(turned.shape)
    return torch.cat((paired, rest), dim=1).reshape(weight.shape)


@implements("transformer.scale_columns")
def scale_columns(weight: torch.Tensor, gamma: torch.Tensor, *, offset: float = 0.0) -> torch.Tensor:
    """weight[O, K], gamma[K] -> [O, K]: weight·(offset + gamma) in float32, rounded once to weight's dtype."""
    return (wide(weight) * (wide(gamma) + offset)).to(weight.dtype)


@implements("transformer.shift_bias")
def shift_bias(bias: torch.Tensor, weight: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """bias[O], weight[O, K], beta[K] -> [O]: bias + weight @ beta in float32, rounded once to bias's dtype."""
    return (wide(bias) + wide(weight) @ wide(beta)).to(bias.dtype)


@implements("transformer.concat_rows")
def concat_rows(*weights: torch.Tensor) -> torch.Tensor:
    """[O1, …], [O2, …], … -> [O1 + O2 + …, …]."""
    return torch.cat(weights)


@implements("transformer.transpose")
def transpose(weight: torch.Tensor) -> torch.Tensor:
    """[O, K] -> [K, O], contiguous."""
    return weight.T.contiguous()


@implements("transformer.slice_rows")
def slice_rows(weight: torch.Tensor, *, start: int, size: int, groups: int = 1) -> torch.Tensor:
    """[O, …] -> [groups·size, …], of each of the groups the rows from `start` on: a copy, so that the rest can be dropped."""
    parts = weight.reshape(groups, -1, *weight.shape[1:])[:, start : start + size]
    return parts.reshape(groups * size, *weight.shape[1:]).clone()


@implements("transformer.flatten")
def flatten(weight: torch.Tensor) -> torch.Tensor:
    """[A, B, …] -> [A·B·…]."""
    return weight.flatten()

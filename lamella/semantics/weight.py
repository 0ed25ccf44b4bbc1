# pyright: basic
"""Load-time transforms of checkpoint tensors: what the entries of a weight's `layout` (a manifest's `recipe`) mean."""

from __future__ import annotations

import torch

from .table import implements


@implements("weight.pair_rows")
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

# pyright: basic
"""Mixtures of experts on torch tensors: logits of a router enter, choices leave; tokens enter, what their experts make of them leaves."""

from __future__ import annotations

import torch

from .linear import contract
from .table import DTYPES, SCALARS, implements, wide


@implements("tile.route")
def choose(logits: torch.Tensor, *, top_k: int, normalized: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """logits[N, E] -> weights[N, k] float32, chosen[N, k] i32: softmax, then the k largest, of equals the first; as transformers' routers."""
    probabilities = torch.softmax(wide(logits), -1)
    weights, chosen = (t[:, :top_k] for t in torch.sort(probabilities, dim=-1, descending=True, stable=True))
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), chosen.to(torch.int32).contiguous()


@implements("transformer.route")
def route(logits: torch.Tensor, *, top_k: int, normalized: bool, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """As `tile.route`, the weights rounded to `dtype`."""
    weights, chosen = choose(logits, top_k=top_k, normalized=normalized)
    return weights.to(DTYPES[dtype]), chosen


@implements("tile.sort_choices")
def sort_choices(chosen: torch.Tensor) -> torch.Tensor:
    """chosen[N, k] i32 -> [N·k] i32: the numbers of the choices by expert, those of one expert in order."""
    return torch.argsort(chosen.reshape(-1), stable=True).to(torch.int32)


@implements("tile.contract_experts")
def contract_experts(
    x: torch.Tensor, weight: torch.Tensor, chosen: torch.Tensor, order: torch.Tensor | None = None, *, experts: int
) -> torch.Tensor:
    """x[M, K], weight[E·O, K], chosen[N, k] i32 -> float32 [N·k, O]: row r is x[r // (N·k / M)] @ weight[chosen[r]·O : …]ᵀ.

    The `order` in which kernels take the choices changes nothing.
    """
    flat = chosen.reshape(-1)
    repeated = x.repeat_interleave(flat.shape[0] // x.shape[0], 0)
    own = weight.view(experts, -1, weight.shape[1])
    out = torch.empty((flat.shape[0], own.shape[1]), dtype=wide(x[:0]).dtype, device=x.device)
    for expert in flat.unique().tolist():
        rows = torch.nonzero(flat == expert)[:, 0]
        out[rows] = contract(repeated[rows], own[expert])
    return out


@implements("tile.add_rows")
def add_rows(x: torch.Tensor, *, rows: int) -> torch.Tensor:
    """x[N·rows, W] -> float32 [N, W]: neighbouring rows added in order."""
    parts = wide(x).view(-1, rows, x.shape[1])
    total = parts[:, 0].clone()
    for place in range(1, rows):
        total += parts[:, place]
    return total


@implements("transformer.experts")
def run_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    *,
    experts: int,
    activation: str,
) -> torch.Tensor:
    """x[N, K], chosen[N, k], weights[N, k], gate, up [E·F, K], down[E·K, F] -> [N, K]: Σ weight · down(activation(gate x) · up x).

    Rounded to x's type after each product with a weight matrix, activation and product, as transformers' `MixtralExperts`; the sum is
    float32 in the order of the choices, rounded once.
    """
    gated, upped = (contract_experts(x, w, chosen, experts=experts).to(x.dtype) for w in (gate, up))
    active = SCALARS[activation](wide(gated)).to(x.dtype)
    inner = (wide(active) * wide(upped)).to(x.dtype)
    out = contract_experts(inner, down, chosen, experts=experts).to(x.dtype)
    weighted = (wide(out) * wide(weights).reshape(-1, 1)).to(x.dtype)
    return add_rows(weighted, rows=chosen.shape[1]).to(x.dtype)

# pyright: basic
"""Rows of tables, rows and columns of activations."""

from __future__ import annotations

import torch

from .table import DTYPES, implements


@implements("transformer.embedding")
def embedding(tokens: torch.Tensor, table: torch.Tensor, *, dtype: str | None = None) -> torch.Tensor:
    """tokens[N] i32, table[V, E] -> [N, E] of `dtype` (None: the table's). Raises IndexError for an id outside the table."""
    rows = table.index_select(0, tokens)
    return rows if dtype is None else rows.to(DTYPES[dtype])


@implements("transformer.gather_rows")
def gather_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x[N, …], rows[R] i32 -> [R, …]. Raises IndexError for a row outside x."""
    return x.index_select(0, rows)


@implements("tile.columns")
def columns(x: torch.Tensor) -> torch.Tensor:
    """x[N, C] -> i32 [N, C], each row 0 … C-1."""
    return torch.arange(x.shape[1], dtype=torch.int32, device=x.device).expand(x.shape)


@implements("transformer.gather_columns")
@implements("tile.gather_columns")
def gather_columns(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """x[N, K], columns[C] i32 -> [N, C]. Raises IndexError for a column outside x."""
    return x.index_select(1, columns)


@implements("tile.swap_pairs")
def swap_pairs(x: torch.Tensor) -> torch.Tensor:
    """x[N, C], C a multiple of 8 -> [N, C]: columns 0 1 4 5 2 3 6 7 of each eight."""
    return x.unflatten(1, (-1, 2, 2, 2)).transpose(2, 3).reshape(x.shape)

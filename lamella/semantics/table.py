# pyright: basic
"""The three tables that give ops their meaning on torch tensors, and the decorators that fill them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

Meaning: TypeAlias = Callable[..., Any]
"""A function of tensors and keyword attributes."""

IMPLEMENTATIONS: dict[str, Meaning] = {}
"""Op name (`transformer.linear`, `tile.contract`) -> function of tensors and keyword attributes."""

SCALARS: dict[str, Meaning] = {}
"""Elementwise kind (`add`, `silu`) -> function of float32 (or i32, where it makes sense) tensors that broadcasts."""

REDUCTIONS: dict[str, Meaning] = {}
"""Reduction kind (`sum`, `max`) -> function of one float32 tensor, reducing its last axis and keeping it as size 1."""

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f8": torch.float8_e4m3fn,
        "i64": torch.int64,
        "i32": torch.int32,
        "i8": torch.int8,
        "i1": torch.bool,
    }
)
"""Element names as attributes and manifests spell them -> torch dtypes."""


def wide(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32, in which arithmetic runs; float64 stays, so that an identity can be checked without rounding."""
    return x if x.dtype == torch.float64 else x.float()


def _adder(table: dict[str, Meaning], name: str) -> Callable[[Meaning], Meaning]:
    def add(function: Meaning) -> Meaning:
        if name in table:
            raise ValueError(f"{name!r} has two meanings: {table[name].__qualname__} and {function.__qualname__}")
        table[name] = function
        return function

    return add


def implements(name: str) -> Callable[[Meaning], Meaning]:
    """Decorator: the function is the meaning of the op `name`. Raises ValueError when the op has one already."""
    return _adder(IMPLEMENTATIONS, name)


def scalar(kind: str) -> Callable[[Meaning], Meaning]:
    """Decorator: the function is the elementwise `kind`. Raises ValueError when the kind is taken."""
    return _adder(SCALARS, kind)


def reduction(kind: str) -> Callable[[Meaning], Meaning]:
    """Decorator: the function reduces the last axis by `kind`. Raises ValueError when the kind is taken."""
    return _adder(REDUCTIONS, kind)

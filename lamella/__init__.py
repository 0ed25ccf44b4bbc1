"""Lamella: a compiler for LLM inference in pure Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamella.api import Generation, Model, Program, Shape, compile, load

__version__ = "0.1.0"
__all__ = ["Generation", "Model", "Program", "Shape", "__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: `lamella-opt` must start without torch."""
    if name in __all__:
        from lamella import api

        return getattr(api, name)
    raise AttributeError(f"module 'lamella' has no attribute '{name}'")

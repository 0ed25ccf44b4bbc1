"""The tiny models that several tests of this folder run, each compiled once.

Imports are inside of the fixtures: `tests/conftest.py` first has to say whether Triton interprets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.models.tiny_llama import Tiny


@pytest.fixture(scope="session")
def base() -> Tiny:
    """The tiny Llama: decode, prefill of 16 and of 80 tokens with logits for all of them, and one ragged step."""
    from lamella.program import Shape
    from tests.models.tiny_llama import BASE, Tiny

    ragged = Shape(tokens=48, sequences=5, longest_query=37, logit_rows=5)
    return Tiny.of(replace(BASE, layers=2), [Shape.decode(), Shape(16, 1, 16, 16), Shape(80, 1, 80, 80), ragged])


@pytest.fixture(scope="session")
def small() -> Tiny:
    """One that is small enough to decode many tokens in the interpreter."""
    from lamella.program import Shape
    from tests.models.tiny_llama import SMALL, Tiny

    return Tiny.of(SMALL, [Shape.decode(), Shape(16, 1, 16, 16)])

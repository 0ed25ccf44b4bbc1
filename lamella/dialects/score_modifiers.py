"""What kinds of attention do to scores and masks, as properties that the attention ops of every level share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, f64, i1, i64
from xdsl.ir import Attribute


class HasModifiers(Protocol):
    """An op with the properties of `ScoreModifiers`."""

    @property
    def window(self) -> IntegerAttr | None: ...
    @property
    def score_cap(self) -> FloatAttr | None: ...
    @property
    def alibi(self) -> FloatAttr | None: ...
    @property
    def bidirectional(self) -> IntegerAttr | None: ...


@dataclass(frozen=True)
class ScoreModifiers:
    """The modifiers of one op; the defaults change nothing, and are no properties."""

    window: int = 0
    """Positions a query sees, its own the last; 0: all up to its own."""
    score_cap: float = 0.0
    """c of c·tanh(s / c); 0: none."""
    alibi: float = 0.0
    """The exponent a of the last of 2^k heads: head h adds -2^(-a(h + 1) / 2^k) for each position between query and key (`semantics.attention.slopes`)."""
    bidirectional: bool = False
    """Whether a query sees its sequence's whole context."""

    @staticmethod
    def of(op: HasModifiers) -> ScoreModifiers:
        """Those of an op."""
        return ScoreModifiers(
            0 if op.window is None else op.window.value.data,
            0.0 if op.score_cap is None else op.score_cap.value.data,
            0.0 if op.alibi is None else op.alibi.value.data,
            op.bidirectional is not None and bool(op.bidirectional.value.data),
        )

    def properties(self) -> dict[str, Attribute | None]:
        """The properties of an op."""
        return {
            "window": IntegerAttr(self.window, i64) if self.window else None,
            "score_cap": FloatAttr(self.score_cap, f64) if self.score_cap else None,
            "alibi": FloatAttr(self.alibi, f64) if self.alibi else None,
            "bidirectional": IntegerAttr(1, i1) if self.bidirectional else None,
        }


def complaint(op: HasModifiers) -> str | None:
    """What is wrong with the modifiers of an op; None when nothing is."""
    if op.window is not None and op.window.value.data < 1:
        return f"window is {op.window.value.data}, expected a positive number of positions"
    for name, value in (("score_cap", op.score_cap), ("alibi", op.alibi)):
        if value is not None and not value.value.data > 0:
            return f"{name} is {value.value.data:g}, expected a positive number"
    one_sided = ("window", op.window), ("alibi", op.alibi)
    other = next((name for name, value in one_sided if value is not None), None)
    if op.bidirectional is not None and op.bidirectional.value.data and other is not None:
        return f"{other} looks back from the query, expected none where attention is bidirectional"
    return None

# pyright: basic
"""How well a model predicts a text: token ids enter, the mean of their negative log likelihoods leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lamella.errors import PromptError
from lamella.runtime.generate import Session

Progress = Callable[[int, int], None]
"""Called as (done, total) after each window."""


@dataclass(frozen=True)
class Perplexity:
    """`mean` negative log likelihood, in nats a token, of the `predicted` tokens of a text: all but the first of each window."""

    mean: float
    predicted: int
    windows: int

    @property
    def value(self) -> float:
        """exp of the mean."""
        return math.exp(self.mean)


def perplexity(session: Session, ids: Sequence[int], window: int, progress: Progress | None = None) -> Perplexity:
    """The perplexity of a text of `ids`, cut into windows of at most `window` tokens that know nothing of each other.

    exp(-1/n · sum of log p(token | those before it in its window)); sums are float64. A last window of one token predicts none and is
    left out. Raises PromptError for a text of fewer than two tokens, and for a window of fewer.
    """
    if len(ids) < 2:
        raise PromptError("the text is too short", expected="at least two tokens", got=str(len(ids)))
    if window < 2:
        raise PromptError("bad window", expected="at least 2 tokens", got=str(window))
    starts = [start for start in range(0, len(ids), window) if len(ids) - start > 1]
    total, predicted = 0.0, 0
    for number, start in enumerate(starts):
        part = ids[start : start + window]
        logits = session.forward_logits(part, range(len(part) - 1))
        targets = torch.tensor(part[1:])
        # log softmax row by row in float32, as the model's makers compute their loss.
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        total += float(losses.double().sum())
        predicted += len(targets)
        if progress is not None:
            progress(number + 1, len(starts))
    return Perplexity(total / predicted, predicted, len(starts))

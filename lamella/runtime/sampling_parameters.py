"""How the next token is chosen from logits: one request's wishes enter, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lamella.errors import PromptError

SEED_LIMIT = 1 << 31


@dataclass(frozen=True)
class SamplingParameters:
    """Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 keep everything. Logits of tokens that
    the text has, prompt or answer, are divided by `repetition_penalty` (negative ones multiplied); 1 changes nothing. Raises PromptError for values without meaning.

    The same seed gives the same tokens on every executor: the generator is keyed by (seed, position of the new token).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise PromptError("bad temperature", expected="a finite number of at least 0", got=str(self.temperature))
        if self.top_k < 0:
            raise PromptError("bad top_k", expected="an integer of at least 0 (0: keep all)", got=str(self.top_k))
        if not 0 < self.top_p <= 1:
            raise PromptError("bad top_p", expected="a number above 0 and at most 1", got=str(self.top_p))
        if not 0 <= self.min_p <= 1:
            raise PromptError("bad min_p", expected="a number from 0 to 1 (0: keep all)", got=str(self.min_p))
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise PromptError("bad repetition_penalty", expected="a finite number above 0", got=str(self.repetition_penalty))
        if not 0 <= self.seed < SEED_LIMIT:
            raise PromptError("bad seed", expected=f"an integer from 0 to {SEED_LIMIT - 1}", got=str(self.seed))

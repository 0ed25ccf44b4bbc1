# pyright: basic
"""Text on top of tokens: a continuation and a detokenizer enter, pieces of text leave, cut at stop strings."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lamella.errors import PromptError
from lamella.runtime.generate import GREEDY, Session, Timings
from lamella.runtime.sampling_parameters import SamplingParameters


class TextStream(Protocol):
    """An incremental decoder: tokens in, pieces of text out that never end inside a character."""

    def push(self, token: int, /) -> str:
        """The text that became certain with this token."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class Detokenizer(Protocol):
    """Makes decoders; a `lamella.tokenizer.Tokenizer` is one."""

    def stream(self) -> TextStream:
        """A decoder at the start of a text."""
        ...


@dataclass(frozen=True)
class Generation:
    """A finished generation. `stop_reason` is `eos`, `length` or `stop_string`; neither the eos token nor the stop string is in it.

    `output_ids` ends with the token that completed a stop string, `text` just before the string.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    stop_reason: str
    timings: Timings


class StopStrings:
    """Lets text through until one of the strings occurs, holding back an end that may be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The part of the text so far that is certain to stay and was not returned before; `found` turns true at the first string."""
        if self.found:
            return ""
        text = self.held + piece
        places = [i for s in self.strings if (i := text.find(s)) >= 0]
        if places:
            self.found, self.held = True, ""
            return text[: min(places)]
        keep = max((n for s in self.strings for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self.held = self.held, ""
        return held


class Completion:
    """The text of one generation, piece by piece, an iterator; `generation` holds the whole once it is exhausted."""

    def __init__(
        self,
        session: Session,
        detokenizer: Detokenizer | None,
        prompt_ids: Sequence[int],
        max_new_tokens: int | None = None,
        sampling: SamplingParameters = GREEDY,
        *,
        stop_strings: Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        ignore_eos: bool = False,
        steps_per_replay: int = 1,
    ) -> None:
        """As `Session.stream`. Without a detokenizer the text is empty. Raises PromptError."""
        if stop_strings and detokenizer is None:
            raise PromptError("stop strings need a tokenizer", remedy="use stop ids")
        if "" in stop_strings:
            raise PromptError("a stop string is empty", expected="at least one character")
        self.prompt_ids = tuple(prompt_ids)
        self.tokens = session.stream(
            prompt_ids, max_new_tokens, sampling, stop_ids=stop_ids, ignore_eos=ignore_eos, steps_per_replay=steps_per_replay
        )
        self._generation: Generation | None = None
        self._pieces = self._run(detokenizer.stream() if detokenizer else None, StopStrings(stop_strings))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The finished generation; what is not generated yet is generated now."""
        for _ in self:
            pass
        assert self._generation is not None
        return self._generation

    def close(self) -> None:
        """End it early; there will be no `generation`."""
        self._pieces.close()
        self.tokens.close()

    def _run(self, decoder: TextStream | None, stops: StopStrings) -> Generator[str, None, None]:
        ids: list[int] = []
        pieces: list[str] = []
        for token in self.tokens:
            ids.append(token)
            piece = stops.push(decoder.push(token)) if decoder else ""
            if piece:
                pieces.append(piece)
                yield piece
            if stops.found:
                break
        # Bytes that wait for a character that never came may still complete a stop string.
        rest = stops.push(decoder.flush()) + stops.flush() if decoder and not stops.found else ""
        if rest:
            pieces.append(rest)
            yield rest
        self.tokens.close()
        reason = "stop_string" if stops.found else self.tokens.stop_reason or "length"
        self._generation = Generation(self.prompt_ids, tuple(ids), "".join(pieces), reason, self.tokens.timings)

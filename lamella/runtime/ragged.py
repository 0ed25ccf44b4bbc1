"""A batch of tokens of several sequences enters; pieces that the buckets of a program hold leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from lamella.runtime.sampling_parameters import SamplingParameters


class Span(Protocol):
    """Tokens [start, end) of one sequence that some bucket runs at once."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


@dataclass(frozen=True)
class Ragged:
    """New tokens of some sequences, one sequence behind the other. Lengths: N, N, B+1, B, B rows, R, R, N."""

    tokens: Sequence[int]
    positions: Sequence[int]
    query_start: Sequence[int]
    """Where each sequence begins among the tokens, and the last one ends."""
    context_len: Sequence[int]
    """Tokens of each sequence after the step."""
    block_table: Sequence[Sequence[int]]
    logit_rows: Sequence[int]
    """The tokens after which the next one is wanted; more than once where it is drawn more than once."""
    sampling: Sequence[SamplingParameters]
    """One for each of `logit_rows`."""
    text_length: Sequence[int]
    """For each token the tokens of its sequence after the step, and not after a piece of it: some models rotate long texts otherwise."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Tokens, sequences, tokens of the longest query, and rows of logits: what a bucket has to have room for."""
        longest = max((b - a for a, b in pairwise(self.query_start)), default=0)
        return len(self.tokens), len(self.context_len), longest, len(self.logit_rows)

    def cut(self, first: int, last: int, start: int = 0, end: int | None = None) -> tuple[Ragged, list[int]]:
        """Sequences [first, last), or of a single one the tokens [start, end), and the numbers of the rows of logits it has."""
        begin = self.query_start[first] + start
        stop = self.query_start[last] if end is None else self.query_start[first] + end
        own = [i for i, row in enumerate(self.logit_rows) if begin <= row < stop]
        # Tokens of the sequence that come in a later piece are not in its context yet.
        later = self.query_start[last] - stop
        part = Ragged(
            self.tokens[begin:stop],
            self.positions[begin:stop],
            [min(max(at, begin), stop) - begin for at in self.query_start[first : last + 1]],
            [length - later for length in self.context_len[first:last]],
            self.block_table[first:last],
            [self.logit_rows[i] - begin for i in own],
            [self.sampling[i] for i in own],
            self.text_length[begin:stop],
        )
        return part, own


def pieces(
    batch: Ragged, fits: Callable[[tuple[int, int, int, int]], bool], chunks: Callable[[int, Sequence[int]], Iterable[Span]]
) -> Iterator[tuple[Ragged, list[int]]]:
    """The batch piece by piece, each with the numbers of its rows of logits: as many neighbouring sequences as `fits` says go together, and a
    sequence that does not go at all in `chunks(its tokens, those of them whose logits are wanted)`.
    """
    count, first = len(batch.context_len), 0
    while first < count:
        last = first
        while last < count and fits(batch.cut(first, last + 1)[0].sizes):
            last += 1
        if last > first:
            yield batch.cut(first, last)
            first = last
            continue
        begin, stop = batch.query_start[first : first + 2]
        wanted = sorted({row - begin for row in batch.logit_rows if begin <= row < stop})
        for span in chunks(stop - begin, wanted):
            yield batch.cut(first, first + 1, span.start, span.end)
        first += 1

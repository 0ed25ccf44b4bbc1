# pyright: basic
"""Token ids of texts enter an encoder; one float32 vector a text leaves. Texts share steps: each sees itself alone, and none is padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from lamella.errors import ManifestError, PromptError
from lamella.runtime.executor import Executor
from lamella.runtime.manifest import Bucket

POOLINGS = ("mean", "cls", "max")


class Embedder:
    """Runs texts through the buckets of an encoder. A step's keys and values are read in that step: no text owns blocks of the cache."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.manifest = executor.manifest
        room = executor.caches[0].shape[0] - 1
        needed = max(_blocks(b.tokens, b.sequences, self.manifest.cache.block) for b in self.manifest.buckets)
        if room < needed:
            raise ManifestError("the cache is too small for a step", expected=f"{needed} blocks", got=str(room), remedy="a larger cache")

    def hidden(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The hidden state of each token of each text, float32 [tokens, E] on the CPU. Raises PromptError as `embed` does."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(texts)
        for batch, states in self._steps(texts):
            for number, rows in zip(batch, states.cpu().split([len(texts[n]) for n in batch]), strict=True):
                out[number] = rows.clone()
        return out

    def embed(self, texts: Sequence[Sequence[int]], *, pooling: str = "mean", normalize: bool = False) -> torch.Tensor:
        """One vector a text, float32 [texts, E] on the CPU: the `mean` or the `max` of its hidden states, or (`cls`) the first.

        `normalize` divides by the length (1e-12 at least). Raises PromptError for an unknown pooling, and for a text that is empty,
        holds ids outside the vocabulary, or is longer than the model or than every bucket.
        """
        if pooling not in POOLINGS:
            raise PromptError("unknown pooling", expected=", ".join(POOLINGS), got=pooling)
        out = torch.empty(len(texts), self.manifest.model.hidden)
        for batch, states in self._steps(texts):
            lengths = torch.tensor([len(texts[n]) for n in batch])
            vectors = _pooled(states, lengths.to(states.device), pooling)
            if normalize:
                vectors = torch.nn.functional.normalize(vectors)
            out[torch.tensor(batch)] = vectors.cpu()
        return out

    def _steps(self, texts: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Batches of texts by number, and the hidden states of their tokens, one text behind the other, float32 on the device."""
        self._check(texts)
        for batch, bucket in self._batches([len(text) for text in texts]):
            own = [texts[number] for number in batch]
            self._fill(bucket, own)
            self.executor.launch(bucket)
            yield batch, self.executor.output(bucket, "hidden")[: sum(map(len, own))].float()

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        longest = min(self.manifest.max_context, max(min(b.tokens, b.longest_query) for b in self.manifest.buckets))
        for number, text in enumerate(texts):
            where = f"text {number + 1}"
            if not text:
                raise PromptError("the text has no tokens", where=where, expected="at least one")
            if len(text) > longest:
                raise PromptError("the text is too long", where=where, expected=f"at most {longest} tokens", got=str(len(text)))
            bad = next((i for i in text if not 0 <= i < self.manifest.model.vocabulary), None)
            if bad is not None:
                expected = f"0 to {self.manifest.model.vocabulary - 1}"
                raise PromptError("the text holds an id outside the vocabulary", where=where, expected=expected, got=str(bad))

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], Bucket]]:
        """Texts by number, the longest first, as many to a step as some bucket holds; each step in the smallest bucket that holds it."""
        order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
        while order:
            taken, bucket = 1, self._holding(lengths, order[:1])
            while taken < len(order) and (larger := self._holding(lengths, order[: taken + 1])) is not None:
                taken, bucket = taken + 1, larger
            assert bucket is not None
            yield order[:taken], bucket
            order = order[taken:]

    def _holding(self, lengths: Sequence[int], batch: Sequence[int]) -> Bucket | None:
        """The smallest bucket that holds a batch, whose first text is the longest."""
        tokens = sum(lengths[n] for n in batch)
        fitting = [
            b for b in self.manifest.buckets if b.tokens >= tokens and b.sequences >= len(batch) and b.longest_query >= lengths[batch[0]]
        ]
        return min(fitting, key=lambda b: (b.tokens, b.sequences), default=None)

    def _fill(self, bucket: Bucket, texts: Sequence[Sequence[int]]) -> None:
        """Write the inputs of a step. Each text has whole blocks of the cache; texts that pad the bucket are empty, tokens that do own none."""
        lengths = [len(text) for text in texts]
        starts = list(accumulate(lengths, initial=0))
        width, block = self.manifest.cache.blocks_per_sequence, self.manifest.cache.block
        counts = [-(-length // block) for length in lengths]
        firsts = list(accumulate(counts, initial=1))
        table = [[*range(first, first + count), *[0] * (width - count)] for first, count in zip(firsts, counts, strict=False)]
        values = {
            "tokens": [i for text in texts for i in text],
            "token_types": [],
            "positions": [p for length in lengths for p in range(length)],
            "query_start": starts + [starts[-1]] * (bucket.sequences - len(texts)),
            "context_len": lengths,
            "block_table": table,
        }
        for name, tensor in self.executor.inputs(bucket).items():
            host = torch.zeros(tensor.shape, dtype=tensor.dtype)
            if values[name]:
                host[: len(values[name])] = torch.tensor(values[name], dtype=tensor.dtype)
            tensor.copy_(host)


def cache_tokens(shapes: Sequence[tuple[int, int]], block: int) -> int:
    """Tokens that the cache must hold for steps of these (tokens, sequences)."""
    return max(_blocks(tokens, sequences, block) for tokens, sequences in shapes) * block


def _blocks(tokens: int, sequences: int, block: int) -> int:
    """The most blocks that a step's texts fill, the last of each partly."""
    return -(-tokens // block) + sequences


def _pooled(states: torch.Tensor, lengths: torch.Tensor, kind: str) -> torch.Tensor:
    """states[N, E] of texts of these lengths -> [texts, E]."""
    if kind == "cls":
        return states[lengths.cumsum(0) - lengths]
    text = torch.repeat_interleave(lengths)
    empty = states.new_zeros(lengths.shape[0], states.shape[1])
    if kind == "max":
        return empty.scatter_reduce(0, text[:, None].expand_as(states), states, "amax", include_self=False)
    return empty.index_add(0, text, states) / lengths[:, None]

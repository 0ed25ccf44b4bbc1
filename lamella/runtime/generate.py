# pyright: basic
"""Continues prompts: token ids and sampling parameters enter, token ids leave one by one. Knows no text (see `text.py`)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch

from lamella.errors import LamellaError, ManifestError, PromptError
from lamella.runtime.executor import Executor
from lamella.runtime.manifest import Bucket, Manifest
from lamella.runtime.memory import BlockAllocator
from lamella.runtime.ragged import Ragged, pieces
from lamella.runtime.sampling_parameters import SamplingParameters

GREEDY = SamplingParameters()
DRAWING: Mapping[str, str] = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed")},
    "penalty": "repetition_penalty",
}
"""The inputs that say how a row of logits is drawn from, and what SamplingParameters calls them."""
MOST_STEPS = 64
"""Decode steps in one replay; what a stop throws away grows with them, and so does the graph."""


@dataclass
class Timings:
    """Wall seconds of one generation: until the first token was known, and from there on; and how many tokens came of the latter."""

    prefill: float = 0.0
    decode: float = 0.0
    decoded: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Rate of the decode steps alone; 0 when there were none."""
        return self.decoded / self.decode if self.decode > 0 else 0.0


@dataclass
class Continuation:
    """The tokens of one generation, an iterator. `stop_reason` is `eos` or `length` once it is exhausted; the eos token is not among them.

    `close` ends it early and gives its cache blocks back; so does dropping the last reference.
    """

    tokens: Generator[int, None, str]
    timings: Timings
    stop_reason: str | None = None

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            return next(self.tokens)
        except StopIteration as end:
            self.stop_reason = self.stop_reason or end.value
            raise StopIteration from None

    def close(self) -> None:
        """End it now."""
        self.tokens.close()


@dataclass(frozen=True)
class StepResult:
    """What one ragged step computed, rows in the order of `logit_rows`: logits [R, V] float32 and next tokens [R]; both are copies."""

    logits: torch.Tensor
    next: torch.Tensor


@dataclass(frozen=True)
class Pending:
    """Tokens on their way to the host, one a step."""

    values: torch.Tensor
    ready: torch.cuda.Event | None = None

    def read(self) -> list[int]:
        """Wait for them, and only for them."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.values.tolist()


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of one sequence in one launch of `bucket`, and the rows of the prompt whose logits it gives."""

    bucket: Bucket
    start: int
    end: int
    rows: tuple[int, ...]


def token_limit(prompt_ids: Sequence[int], max_new_tokens: int | None, vocabulary: int, context: int) -> int:
    """How many tokens may follow a prompt: `max_new_tokens`, or (None) what the context leaves.

    Raises PromptError for a prompt that is empty, holds other ids than 0 to vocabulary - 1, or does not fit with the new tokens.
    """
    if len(prompt_ids) == 0:
        raise PromptError("the prompt is empty", expected="at least one token")
    bad = next((i for i in prompt_ids if not 0 <= i < vocabulary), None)
    if bad is not None:
        raise PromptError("the prompt holds an id outside the vocabulary", expected=f"0 to {vocabulary - 1}", got=str(bad))
    room = context - len(prompt_ids)
    if room < 1:
        expected, remedy = f"at most {context - 1} tokens", "shorten it, or give the model a larger max_context where it has one"
        raise PromptError("the prompt is longer than the context", expected=expected, got=str(len(prompt_ids)), remedy=remedy)
    if max_new_tokens is None:
        return room
    if max_new_tokens < 1:
        raise PromptError("bad max_new_tokens", expected="at least 1", got=str(max_new_tokens))
    if max_new_tokens > room:
        raise PromptError(
            f"{len(prompt_ids)} prompt and {max_new_tokens} new tokens are longer than the context",
            expected=f"at most {context} together",
            remedy=f"ask for at most {room} new tokens",
        )
    return max_new_tokens


def step_count(asked: int | None, default: int = 1) -> int:
    """How many decode steps run together. Raises PromptError."""
    steps = default if asked is None else asked
    if not 1 <= steps <= MOST_STEPS:
        raise PromptError("bad steps_per_replay", expected=f"1 to {MOST_STEPS}", got=str(steps))
    return steps


class Session:
    """Runs prompts through an executor, one sequence at a time. All sizes come from the manifest's buckets."""

    def __init__(self, executor: Executor, allocator: BlockAllocator | None = None) -> None:
        """`allocator` hands out the executor's cache blocks; by default a fresh one over all of them."""
        self.executor = executor
        self.manifest = executor.manifest
        self.allocator = allocator or BlockAllocator(executor.caches[0].shape[0])
        # One sequence also runs in a bucket of several, whose other sequences are empty.
        fewest = sorted(self.manifest.buckets, key=lambda b: b.sequences)
        prefill = [b for b in fewest if not b.advance]
        self.prefill_buckets = [b for b in prefill if b.sequences == prefill[0].sequences]
        self.decode_bucket = next((b for b in fewest if b.advance), None)
        self.busy = False
        self.longest_short = _longest_short(self.manifest)
        self.penalizes = any(i.name == "factors" for b in self.manifest.buckets for i in b.inputs)

    def stream(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int | None = None,
        sampling: SamplingParameters = GREEDY,
        *,
        stop_ids: Sequence[int] | None = None,
        ignore_eos: bool = False,
        steps_per_replay: int = 1,
    ) -> Continuation:
        """The tokens that follow `prompt_ids`, until one of `stop_ids`, which default to the model's eos.

        `max_new_tokens` None means up to the model's context. `ignore_eos` stops at nothing. The host waits once for each
        `steps_per_replay` tokens, which come together; they are the same for any number. Checks happen at once, work as tokens are
        asked for. Raises PromptError, also for a penalty where the program was compiled without; iterating raises OutOfMemoryError when the cache is full.
        """
        limit = self.check(prompt_ids, max_new_tokens)
        if sampling.repetition_penalty != 1 and not self.penalizes:
            raise PromptError(
                "the program was compiled without penalties",
                got=f"repetition_penalty {sampling.repetition_penalty}",
                remedy="load the model with penalties=True",
            )
        group = step_count(steps_per_replay)
        stops = frozenset(() if ignore_eos else self.manifest.model.eos if stop_ids is None else stop_ids)
        timings = Timings()
        return Continuation(self._stream(list(prompt_ids), limit, sampling, stops, timings, group), timings)

    def check(self, prompt_ids: Sequence[int], max_new_tokens: int | None) -> int:
        """How many tokens may follow. Raises PromptError for a prompt (or prompt and new tokens) that cannot be run."""
        return token_limit(prompt_ids, max_new_tokens, self.manifest.model.vocabulary, self.manifest.max_context)

    def _stream(
        self, ids: list[int], limit: int, sampling: SamplingParameters, stops: frozenset[int], timings: Timings, group: int
    ) -> Generator[int, None, str]:
        # The host reads a GPU's tokens one launch behind: the next steps are queued before these tokens are known. What overshoots
        # a stop is dropped; it wrote only to blocks of this sequence, behind all positions that anyone reads. Fewer steps than a
        # group are left at the end: they run one by one, so that none overshoots the blocks.
        lookahead = 1 if self.executor.device.type == "cuda" else 0
        with self._sequence(len(ids) + limit) as blocks:
            start = time.perf_counter()
            first = self._prefill(ids, blocks, sampling)
            pending, launched, count, made = deque([self._read(first[None])]), 1, 0, list[int]()
            decode = self._begin_decode(ids, blocks, sampling, first) if limit > 1 else None
            while count < limit:
                while decode is not None and launched < limit and len(pending) <= lookahead:
                    left = min(limit - launched, self._steps_alike(len(ids), launched, limit))
                    if left == 0 and pending:
                        break
                    if left == 0:
                        # The text outgrows its frequencies: all of it is rotated by the others, as transformers does.
                        first = self._prefill([*ids, *made], blocks, sampling)
                        pending.append(self._read(first[None]))
                        launched += 1
                        decode = self._begin_decode([*ids, *made], blocks, sampling, first)
                        continue
                    steps = group if group <= left else 1
                    pending.append(self._read(decode(steps)))
                    launched += steps
                tokens = pending.popleft().read()
                made += tokens
                now = time.perf_counter()
                if count == 0:
                    timings.prefill, start = now - start, now
                for token in tokens:
                    if count > 0:
                        timings.decode, timings.decoded = now - start, count
                    if token in stops:
                        return "eos"
                    yield token
                    count += 1
        return "length"

    def _steps_alike(self, prompt: int, launched: int, limit: int) -> int:
        """Decode steps until a text that began with `prompt` tokens is too long for the frequencies it is rotated by; `limit` where it never is."""
        beyond = None if self.longest_short is None else self.longest_short + 1 - prompt
        return limit if beyond is None or not 0 < beyond >= launched else beyond - launched

    def forward_logits(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> torch.Tensor:
        """Teacher-forced logits, float32 [len(rows), V] on the CPU: row r holds those after ids[r]. All rows when None.

        Runs the prompt in as few launches as buckets and wanted rows allow. Raises PromptError.
        """
        if len(ids) > self.manifest.max_context:
            raise PromptError(
                "the prompt is longer than the context", expected=f"at most {self.manifest.max_context} tokens", got=str(len(ids))
            )
        self.check(ids[:1], None)
        wanted = list(range(len(ids))) if rows is None else list(rows)
        found: dict[int, torch.Tensor] = {}
        with self._sequence(len(ids)) as blocks:
            for chunk in self._chunks(len(ids), sorted(set(wanted))):
                self._launch_chunk(chunk, ids, blocks, GREEDY)
                logits = self.executor.output(chunk.bucket, "logits")
                found.update({row: logits[i].to("cpu", torch.float32, copy=True) for i, row in enumerate(chunk.rows)})
        return torch.stack([found[row] for row in wanted])

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        query_start: Sequence[int],
        context_len: Sequence[int],
        block_table: Sequence[Sequence[int]],
        logit_rows: Sequence[int],
        sampling: Sequence[SamplingParameters] | None = None,
        *,
        bucket: Bucket | None = None,
    ) -> StepResult:
        """One step over a ragged batch of the caller's own sequences and blocks, padded to `bucket` (None: the smallest that fits).

        A batch that fits none runs in pieces: neighbouring sequences that go together, a long one in chunks.
        Lengths: N, N, B+1, B, B rows, R, R. Padding rows belong to no sequence. Raises ManifestError when not even one token fits, PromptError for
        a repetition penalty.
        """
        lengths = [n for n, (a, b) in zip(context_len, pairwise(query_start), strict=True) for _ in range(b - a)]
        rows = list(sampling or [GREEDY] * len(logit_rows))
        if any(row.repetition_penalty != 1 for row in rows):
            raise PromptError(
                "a step knows only its own tokens, not those of the text so far",
                got="a repetition_penalty",
                remedy="let `stream` run the sequence",
            )
        batch = Ragged(tokens, positions, query_start, context_len, block_table, logit_rows, rows, lengths)
        if bucket is not None or self._fitting(*batch.sizes):
            return self._run_step(batch, bucket or self.bucket_for(*batch.sizes))
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for part, own in pieces(batch, lambda sizes: bool(self._fitting(*sizes)), self._chunks):
            made = self._run_step(part, self.bucket_for(*part.sizes))
            found.update({i: (made.logits[k], made.next[k]) for k, i in enumerate(own)})
        if not found:
            return StepResult(torch.empty(0, self.manifest.model.vocabulary), torch.empty(0, dtype=torch.int32))
        return StepResult(torch.stack([found[i][0] for i in sorted(found)]), torch.stack([found[i][1] for i in sorted(found)]))

    def _run_step(self, batch: Ragged, bucket: Bucket) -> StepResult:
        """A batch that the bucket holds."""
        self._fill(
            bucket,
            {
                "tokens": batch.tokens,
                "positions": batch.positions,
                # Sequences that pad the bucket are empty: they start where the last real one ends.
                "query_start": [*batch.query_start, *[batch.query_start[-1]] * (bucket.sequences - len(batch.context_len))],
                "context_len": batch.context_len,
                "text_length": batch.text_length,
                "logit_rows": batch.logit_rows,
                **_drawing(batch.sampling),
            },
            batch.block_table,
        )
        self.executor.launch(bucket)
        count = len(batch.logit_rows)
        logits, following = self.executor.output(bucket, "logits"), self.executor.output(bucket, "next")
        return StepResult(logits[:count].float().clone(), following[:count].clone())

    def bucket_for(self, tokens: int, sequences: int, longest_query: int, logit_rows: int) -> Bucket:
        """The smallest bucket (a step that does not advance itself first) that holds a ragged batch. Raises ManifestError."""
        fitting = self._fitting(tokens, sequences, longest_query, logit_rows)
        if not fitting:
            asked = f"{tokens} tokens, {sequences} sequences, longest query {longest_query}, {logit_rows} logit rows"
            raise ManifestError("no bucket of the compiled program holds this batch", got=asked, remedy="compile a larger bucket")
        return min(fitting, key=lambda b: (b.tokens, b.sequences, b.logit_rows, b.advance))

    def _fitting(self, tokens: int, sequences: int, longest_query: int, logit_rows: int) -> list[Bucket]:
        """The buckets that hold a ragged batch."""
        return [
            b
            for b in self.manifest.buckets
            if b.tokens >= tokens and b.sequences >= sequences and b.longest_query >= longest_query and b.logit_rows >= logit_rows
        ]

    @contextmanager
    def _sequence(self, tokens: int) -> Iterator[list[int]]:
        """The blocks of one sequence, for as long as it runs. The static inputs of a bucket serve one sequence at a time."""
        if self.busy:
            raise LamellaError("a generation is in progress on this model", remedy="finish or close it first, or load the model twice")
        blocks = self.allocator.allocate(-(-min(tokens, self.manifest.max_context) // self.manifest.cache.block))
        self.busy = True
        try:
            yield blocks
        finally:
            self.busy = False
            self.allocator.free(blocks)

    def _prefill(self, ids: Sequence[int], blocks: list[int], sampling: SamplingParameters) -> torch.Tensor:
        """Run the whole prompt; the device tensor [R] that holds the token after it."""
        chunk = None
        for chunk in self._chunks(len(ids), [len(ids) - 1]):
            self._launch_chunk(chunk, ids, blocks, sampling)
        assert chunk is not None
        return self.executor.output(chunk.bucket, "next")

    def _chunks(self, count: int, wanted: Sequence[int]) -> Iterator[Chunk]:
        """Cut `count` tokens into launches: each time the bucket that gets furthest, a smaller one when equal.

        A launch ends at the last row whose logits it has room for.
        """
        candidates = self.prefill_buckets or ([self.decode_bucket] if self.decode_bucket else [])
        if not candidates:
            raise ManifestError("the compiled program has no buckets")
        if wanted and self.decode_bucket and self.decode_bucket not in candidates:
            candidates = [*candidates, self.decode_bucket]
        start = 0
        while start < count:

            def reach(bucket: Bucket, start: int = start) -> int:
                end = min(start + min(bucket.tokens, bucket.longest_query), count)
                ahead = [row for row in wanted if start <= row < end]
                return end if len(ahead) <= bucket.logit_rows else ahead[bucket.logit_rows - 1] + 1

            bucket = max(candidates, key=lambda b: (reach(b), -b.tokens))
            end = reach(bucket)
            yield Chunk(bucket, start, end, tuple(row for row in wanted if start <= row < end))
            start = end

    def _launch_chunk(self, chunk: Chunk, ids: Sequence[int], blocks: list[int], sampling: SamplingParameters) -> None:
        count = chunk.end - chunk.start
        rows = [row - chunk.start for row in chunk.rows] or [count - 1]
        self._fill(
            chunk.bucket,
            {
                "tokens": ids[chunk.start : chunk.end],
                "positions": range(chunk.start, chunk.end),
                "query_start": [0, *[count] * chunk.bucket.sequences],
                "context_len": [chunk.end],
                "text_length": [len(ids)] * count,
                "logit_rows": rows,
                **_drawing([sampling] * len(rows)),
            },
            [blocks],
        )
        factors = self._factors(ids[: chunk.end], sampling)
        if factors is not None:
            self.executor.inputs(chunk.bucket)["factors"][: len(rows)].copy_(factors)
        self.executor.launch(chunk.bucket)

    def _factors(self, ids: Sequence[int], sampling: SamplingParameters) -> torch.Tensor | None:
        """What logits are divided by after a text, float32 [V] on the device: its penalty for tokens of the text, else 1; None for a program without."""
        if not self.penalizes:
            return None
        made = torch.ones(self.manifest.model.vocabulary, device=self.executor.device)
        return made.index_fill_(0, torch.tensor(ids, device=made.device), sampling.repetition_penalty)

    def _begin_decode(
        self, ids: Sequence[int], blocks: list[int], sampling: SamplingParameters, first: torch.Tensor
    ) -> Callable[[int], torch.Tensor]:
        """Fill the decode bucket for the token after `ids`, which is copied from `first` on the device; returns what runs so many steps.

        Every step feeds the next: the program writes the new token, position and context length over its own inputs. Without a decode
        bucket the smallest other one runs a token at a time, filled anew for each.
        """
        bucket = self.decode_bucket or min(self.prefill_buckets, key=lambda b: b.tokens)
        position, factors = len(ids), self._factors(ids, sampling)

        def fill(position: int, following: torch.Tensor) -> None:
            self._fill(
                bucket,
                {
                    "tokens": [0],
                    "positions": [position],
                    "query_start": [0, *[1] * bucket.sequences],
                    "context_len": [position + 1],
                    "text_length": [position + 1],
                    "logit_rows": [0],
                    **_drawing([sampling]),
                },
                [blocks],
            )
            inputs = self.executor.inputs(bucket)
            inputs["tokens"][:1].copy_(following)
            if factors is not None:
                inputs["factors"][:1].copy_(factors.index_fill_(0, following.long(), sampling.repetition_penalty))

        def run(steps: int) -> torch.Tensor:
            self.executor.launch(bucket, steps)
            return self.executor.sampled(bucket, steps)

        def run_one_by_one(steps: int) -> torch.Tensor:
            made: list[torch.Tensor] = []
            for _ in range(steps):
                fill(position + len(told) - 1, told[-1])
                self.executor.launch(bucket)
                told.append(self.executor.output(bucket, "next")[:1].clone())
                made.append(told[-1])
            return torch.stack(made)

        told = [first[:1].clone()]  # the output may lie in an input of this very bucket
        if not bucket.advance:
            return run_one_by_one
        fill(position, told[0])
        return run

    def _fill(self, bucket: Bucket, values: Mapping[str, Sequence], block_table: Sequence[Sequence[int]]) -> None:
        """Write inputs (but for factors, which are left at 1), zero beyond what is given: padding tokens have id 0, padding sequences own only the null block."""
        inputs = self.executor.inputs(bucket)
        width = self.manifest.cache.blocks_per_sequence
        rows = [[*blocks, *[0] * (width - len(blocks))] for blocks in block_table]
        for name, tensor in inputs.items():
            if name == "factors":
                tensor.fill_(1.0)
                continue
            given = rows if name == "block_table" else values[name]
            host = torch.zeros(tensor.shape, dtype=tensor.dtype)
            host[: len(given)] = torch.tensor(list(given), dtype=tensor.dtype)
            tensor.copy_(host)

    def _read(self, values: torch.Tensor) -> Pending:
        """Start copying the tokens [steps, R] of row 0 to the host; the device tensor may be overwritten right after."""
        if self.executor.device.type != "cuda":
            return Pending(values[:, 0].clone())
        host = torch.empty(values.shape[0], dtype=values.dtype, pin_memory=True)
        host.copy_(values[:, 0], non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return Pending(host, ready)


def _drawing(rows: Sequence[SamplingParameters]) -> dict[str, list[float]]:
    """The inputs that say how each row of logits is drawn from."""
    return {name: [getattr(row, wish) for row in rows] for name, wish in DRAWING.items()}


def _longest_short(manifest: Manifest) -> int | None:
    """The longest text that is rotated by the first of two sets of frequencies (LongRoPE), where the program has both; else None."""
    for constant in manifest.constants.values():
        scaling = constant.attributes.get("scaling", {})
        if scaling.get("rope_type") == "longrope" and constant.shape[0] > constant.attributes["length"]:
            return int(scaling["original_max_position_embeddings"])
    return None

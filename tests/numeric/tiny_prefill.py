"""A tiny Llama compiled for decode and one prompt; what the prompt gives in its first, a middle and its last row, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from lamella.program import Program, Shape, compile_model
from lamella.runtime.executor import make_executor
from lamella.runtime.generate import Session
from lamella.runtime.memory import BlockAllocator
from lamella.runtime.weights import load_weights
from tests.models.tiny_llama import BASE, CONTEXT, POOL, Tensors, peer, text, weights_of

SHORT = replace(BASE, layers=2)
"""What a prompt meets if no test says otherwise."""
Options = Mapping[str, Mapping[str, int | float | bool | str]]


@dataclass(frozen=True)
class Prompt:
    """A prompt of `tokens` in a bucket of `bucket`, which is longer."""

    tokens: int
    bucket: int

    @property
    def rows(self) -> list[int]:
        """The positions whose logits are compared."""
        return [0, self.tokens // 2 + 1, self.tokens - 1]

    def program(self, options: Options, config: object = SHORT, dtype: str = "bf16") -> Program:
        """The tiny model for decode and the prompt."""
        shapes = [Shape.decode(), replace(Shape.prefill(self.bucket), logit_rows=3)]
        return compile_model(config, shapes, dtype=dtype, max_context=CONTEXT, verify_each=True, pass_options=options)  # type: ignore[arg-type]

    def exact(self, config: object = SHORT) -> torch.Tensor:
        """What `transformers` makes of it in float32."""
        return peer(config)(torch.tensor([text(self.tokens, 5)])).logits[0, self.rows].detach()  # type: ignore[arg-type]

    def logits(self, made: Program, level: str, config: object = SHORT) -> torch.Tensor:
        """What an executor makes of it."""
        assert made.manifest is not None
        weights = load_weights(made.manifest, Tensors(weights_of(config, peer(config))))  # type: ignore[arg-type]
        executor = make_executor(made.manifest, weights, executor=level, kernels=made.kernels, cache_tokens=POOL)
        session = Session(executor, BlockAllocator(executor.caches[0].shape[0], 1))
        n = self.tokens
        blocks, ids = session.allocator.allocate(-(-n // 16)), text(n, 5)
        bucket = next(b for b in session.manifest.buckets if b.tokens == self.bucket)
        return session.step(ids, range(n), [0, n], [n], [blocks], self.rows, bucket=bucket).logits

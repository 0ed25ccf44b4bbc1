# pyright: basic
"""A bucket of a model goes in; numbers leave with which its step does what it does in use: inputs that mean something, caches that are not zeros."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lamella.runtime.manifest import Bucket, Manifest


def step_inputs(manifest: Manifest, bucket: Bucket, context: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The inputs of a step that leaves each sequence `context` tokens long, on the CPU, in types of torch's own choice.

    Each sequence has as many of the bucket's tokens, random ones; its blocks lie scattered over the cache. What is sampled is the likeliest token.
    """
    generator = torch.Generator().manual_seed(seed)
    queries, rows, width = bucket.tokens // bucket.sequences, bucket.logit_rows, manifest.cache.blocks_per_sequence
    # Block 0 belongs to nobody. A cache for more sequences than run has its last blocks unused.
    blocks = torch.randperm(bucket.sequences * width, generator=generator) + 1
    return {
        "tokens": torch.randint(manifest.model.vocabulary, (bucket.tokens,), generator=generator),
        "positions": context - queries + torch.arange(bucket.tokens) % queries,
        "query_start": torch.arange(bucket.sequences + 1) * queries,
        "context_len": torch.full((bucket.sequences,), context),
        "block_table": blocks.view(bucket.sequences, width),
        "logit_rows": torch.arange(bucket.tokens - rows, bucket.tokens),
        "temperature": torch.zeros(rows),
        "top_k": torch.zeros(rows),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "seed": torch.zeros(rows),
        "penalty": torch.full((rows,), 1.1),
        "factors": torch.ones(()).expand(rows, manifest.model.vocabulary),
        "text_length": torch.zeros(bucket.tokens),
    }


def fill_caches(caches: Iterable[torch.Tensor], seed: int = 0) -> None:
    """Normal numbers everywhere: zeros would cost less power, and so time, than real keys do."""
    generator: torch.Generator | None = None
    for cache in caches:
        generator = generator or torch.Generator(cache.device).manual_seed(seed)
        if cache.dtype.itemsize > 1:
            cache.normal_(generator=generator)
        else:
            # There are no random numbers of eight bits.
            cache.copy_(torch.empty(cache.shape, device=cache.device).normal_(generator=generator))

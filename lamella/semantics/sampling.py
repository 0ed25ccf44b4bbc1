# pyright: basic
"""Choosing tokens: rows of logits enter with the parameters of their requests, one token id a row leaves."""

from __future__ import annotations

import torch

from .table import implements

WORD = 0xFFFFFFFF
POSITION_STEP = 0x9E3779B9
INDEX_STEP = 0x85EBCA6B
LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def mix(x: torch.Tensor) -> torch.Tensor:
    """The 32-bit finalizer lowbias32 (C. Wellons, "Prospecting for Hash Functions", 2018), on uint32 values held in int64.

    x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16, products modulo 2^32.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def uniform(seed: torch.Tensor, position: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """seed[R] i32, position[R] i32 -> float32 [R, vocabulary], in (0, 1): a counter-based generator, the same in every executor.

    In uint32 with wrap-around, for vocabulary index v:
        h = mix(mix(mix(seed) ^ (position · 0x9E3779B9)) ^ (v · 0x85EBCA6B))
        u = min(float32(h >> 8) · 2^-24 + 2^-25, 1 - 2^-24)
    The sum is rounded to float32 once (to nearest, ties to even); the minimum catches the one value that rounds up to 1, whose noise would
    be infinite.
    """
    index = torch.arange(vocabulary, dtype=torch.int64, device=seed.device)
    row = mix(mix(seed.long() & WORD) ^ ((position.long() * POSITION_STEP) & WORD))
    h = mix(row[:, None] ^ ((index * INDEX_STEP) & WORD))
    return ((h >> 8).float() * 2.0**-24 + 2.0**-25).clamp(max=LARGEST_BELOW_ONE)


def keep_top_k(z: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """z[R, V], top_k[R] -> bool [R, V]: values at least as large as the k-th largest (ties stay); k <= 0 or k >= V keeps all."""
    vocabulary = z.shape[-1]
    k = torch.where((top_k <= 0) | (top_k >= vocabulary), vocabulary, top_k).long()
    kth = z.sort(-1, descending=True).values.gather(-1, k[:, None] - 1)
    return z >= kth


def keep_top_p(z: torch.Tensor, kept: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """z[R, V], kept bool [R, V], top_p[R] -> bool [R, V]: a kept value stays while the kept probability above it is below top_p.

    "Above" counts strictly greater values only, so ties stay or go together; the largest always stays; top_p >= 1 keeps all.
    """
    ordered = z.masked_fill(~kept, float("-inf")).sort(-1, descending=True).values
    probability = ordered.softmax(-1)
    above = probability.cumsum(-1) - probability
    place = torch.arange(z.shape[-1], device=z.device).expand_as(ordered)
    starts_group = torch.ones_like(ordered, dtype=torch.bool)
    starts_group[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = place.masked_fill(~starts_group, 0).cummax(-1).values
    count = (above.gather(-1, first) < top_p[:, None]).sum(-1, keepdim=True).clamp(min=1)
    return kept & ((z >= ordered.gather(-1, count - 1)) | (top_p >= 1)[:, None])


def keep_min_p(z: torch.Tensor, kept: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """z[R, V], kept bool [R, V], min_p[R] -> bool [R, V]: a kept value stays while its probability is at least min_p times the largest.

    That is z >= max(z) + log(min_p) (Nguyen et al. 2024, arXiv 2407.01082); the largest always stays, and min_p <= 0 keeps all.
    """
    peak = z.amax(-1)
    least = torch.minimum(peak, peak + torch.log(min_p))
    return kept & ((z >= least[:, None]) | (min_p <= 0)[:, None])


@implements("transformer.sample")
def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """logits[R, V] f32, temperature[R] f32, top_k[R] i32, top_p[R] f32, min_p[R] f32, seed[R] i32, position[R] i32 (of the new token) -> [R] i32.

    NaN counts as -inf throughout. Where temperature = 0: the largest logit, ties to the smallest index. Elsewhere, in float32:
    z = logits / temperature; `keep_top_k`, then `keep_top_p` on the softmax of what that kept, then `keep_min_p` (the order of Hugging
    Face transformers); the token is the largest z - log(-log(u)) of those kept (Gumbel 1954), u from `uniform`, ties to the smallest index. Always in [0, V).
    """
    logits = logits.float()
    greedy = temperature == 0
    best = logits.argmax(-1)
    # argmax takes a NaN for the largest, so one look at what it found tells whether there is any.
    if bool(logits.gather(-1, best[:, None]).isnan().any()):
        logits = torch.where(logits.isnan(), float("-inf"), logits)
        best = logits.argmax(-1)
    if bool(greedy.all()):
        return best.to(torch.int32)
    vocabulary = logits.shape[-1]
    z = logits / torch.where(greedy, 1.0, temperature)[:, None]
    kept = torch.ones_like(z, dtype=torch.bool)
    if bool(((top_k > 0) & (top_k < vocabulary)).any()):
        kept = keep_top_k(z, top_k)
    if bool((top_p < 1).any()):
        kept = keep_top_p(z, kept, top_p)
    if bool((min_p > 0).any()):
        kept = keep_min_p(z, kept, min_p)
    noisy = z - torch.log(-torch.log(uniform(seed, position, vocabulary)))
    drawn = noisy.masked_fill(~kept, float("-inf")).argmax(-1)
    return torch.where(greedy, best, drawn).to(torch.int32)


@implements("transformer.penalize")
def penalize(logits: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """logits[R, V] f32, factors[R, V] f32 -> [R, V] f32: max(l, 0) / f + min(l, 0) · f, one of which is 0 (arXiv 1909.05858)."""
    return logits.clamp(min=0) / factors + logits.clamp(max=0) * factors


@implements("transformer.mark")
def mark(factors: torch.Tensor, tokens: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """factors[R, V] f32, tokens[R] i32, penalty[R] f32 -> [R, V] f32, the factor of each row's token being the row's penalty."""
    return factors.scatter(1, tokens.long()[:, None], penalty[:, None])


@implements("transformer.advance")
def advance(x: torch.Tensor) -> torch.Tensor:
    """x i32 -> x + 1."""
    return x + 1

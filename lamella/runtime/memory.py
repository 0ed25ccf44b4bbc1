# pyright: basic
"""Where a program's values live: a manifest and its weights enter; tensors at addresses that never move leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch

from lamella.errors import ManifestError, OutOfMemoryError
from lamella.runtime.manifest import Bucket, Manifest, Ref
from lamella.semantics import DTYPES

POISON = 0xFF
"""A byte which, repeated, is NaN in f16, bf16, f32 and f64, and -1 in the integers."""

RESERVE_BYTES = 1 << 30
"""CUDA memory left free beside the cache: graphs, compiled kernels, the caller's own tensors."""


def poison(tensor: torch.Tensor) -> None:
    """Fill a contiguous tensor with NaN (-1 for integers)."""
    tensor.view(-1).view(torch.uint8).fill_(POISON)


class BlockAllocator:
    """Hands out blocks of the cache pool. Block 0 is the null block, which takes the writes of padding rows and belongs to nobody."""

    def __init__(self, blocks: int, shuffle_seed: int | None = None) -> None:
        """`blocks` of the pool, the null block included; with a seed they are handed out in a shuffled order (for tests)."""
        self._free = list(range(blocks - 1, 0, -1))
        self._owned: set[int] = set()
        if shuffle_seed is not None:
            Random(shuffle_seed).shuffle(self._free)

    @property
    def available(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` block numbers that nobody owns. Raises OutOfMemoryError, and takes none, when there are fewer."""
        if count > len(self._free):
            raise OutOfMemoryError("the cache is full", expected=f"{count} free blocks", got=str(len(self._free)))
        blocks = [self._free.pop() for _ in range(count)]
        self._owned.update(blocks)
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back. Raises ValueError for one that was not allocated."""
        for block in blocks:
            if block not in self._owned:
                raise ValueError(f"block {block} is not allocated")
            self._owned.remove(block)
            self._free.append(block)


@dataclass(frozen=True)
class Memory:
    """Everything a launch can refer to. Nothing here is ever reallocated, so views and captured addresses stay good."""

    manifest: Manifest
    device: torch.device
    arena: torch.Tensor
    inputs: Mapping[tuple, Mapping[str, torch.Tensor]]
    weights: Mapping[str, torch.Tensor]
    constants: Mapping[str, torch.Tensor]
    caches: Sequence[torch.Tensor]

    def view(self, bucket: Bucket, ref: Ref) -> torch.Tensor:
        """The tensor a REF of `bucket` names; arena ranges become contiguous views."""
        match ref.pool:
            case "arena":
                return self.arena[ref.offset : ref.offset + ref.bytes].view(DTYPES[ref.dtype]).view(ref.shape)
            case "input":
                return self.inputs[bucket.key][ref.name]
            case "weight":
                return self.weights[ref.name]
            case "constant":
                return self.constants[ref.name]
            case "cache":
                return self.caches[ref.layer]
            case _:
                raise ManifestError(f"unknown pool {ref.pool!r}")

    def range(self, offset: int, size: int) -> torch.Tensor:
        """Bytes of the arena."""
        return self.arena[offset : offset + size]


def reserve(
    manifest: Manifest,
    weights: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor],
    device: str | torch.device = "cpu",
    *,
    cache_tokens: int | None = None,
    poisoned: bool = True,
) -> Memory:
    """Arena and inputs first, then the cache pool, sized once (`cache_blocks`). Raises OutOfMemoryError when they do not fit.

    `poisoned` fills arena and cache with NaN, otherwise they are zeroed. The null block is always zero or NaN: no query reads it.
    """
    device = torch.device(device)
    try:
        arena = torch.zeros(manifest.arena_bytes, dtype=torch.uint8, device=device)
        inputs = {b.key: {i.name: torch.zeros(i.shape, dtype=DTYPES[i.dtype], device=device) for i in b.inputs} for b in manifest.buckets}
        shape = _cache_shape(manifest, cache_blocks(manifest, device, cache_tokens))
        # One allocation for all layers: several would each be rounded up.
        pool = torch.zeros((manifest.cache.layers, *shape), dtype=DTYPES[manifest.cache.dtype], device=device)
        caches = list(pool.unbind())
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise OutOfMemoryError(f"arena and cache do not fit on {device}", remedy="a smaller max_context or cache") from error
    if poisoned:
        for tensor in (arena, *caches):
            poison(tensor)
    return Memory(manifest, device, arena, inputs, weights, constants, caches)


def cache_blocks(manifest: Manifest, device: torch.device, cache_tokens: int | None = None) -> int:
    """Blocks of the pool, the null block included.

    With `cache_tokens`: as many as hold them. On a CPU: one sequence of max_context. On CUDA: what the largest bucket's sequences can own,
    max_context each, or less where free memory minus RESERVE_BYTES holds less. Raises OutOfMemoryError when not one block fits.
    """
    spec = manifest.cache
    if cache_tokens is not None:
        return 1 + -(-cache_tokens // spec.block)
    if device.type != "cuda":
        return 1 + spec.blocks_per_sequence
    wanted = 1 + spec.blocks_per_sequence * max((b.sequences for b in manifest.buckets), default=1)
    free, _ = torch.cuda.mem_get_info(device)
    fit = (free - RESERVE_BYTES) // max(1, spec.block_bytes)
    if fit < 2:
        raise OutOfMemoryError(
            "no memory is left for the cache",
            where=str(device),
            expected=f"{2 * spec.block_bytes + RESERVE_BYTES} bytes free",
            got=str(free),
        )
    return int(min(wanted, fit))


def _cache_shape(manifest: Manifest, blocks: int) -> tuple[int, ...]:
    spec = manifest.cache
    return (blocks, 2, spec.kv_heads, spec.block, spec.head_dim)

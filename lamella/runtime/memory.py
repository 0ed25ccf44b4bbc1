# pyright: basic
"""Where a program's values live: a manifest and its weights enter; tensors at addresses that never move leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from lamella.errors import ManifestError, OutOfMemoryError, PromptError
from lamella.runtime.manifest import Bucket, CacheSpec, Manifest, Ref
from lamella.semantics import DTYPES

POISON = 0xFF
"""A byte which, repeated, is NaN in f16, bf16, f32 and f64, and -1 in the integers."""

RESERVE_BYTES = 1 << 30
"""CUDA memory left free beside the cache: graphs, compiled kernels, the caller's own tensors."""


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "size calculation overflowed")
"""How torch, CUDA and Triton say it, in errors that have no type of their own."""


def ran_out(error: BaseException) -> bool:
    """Whether an allocation failed: not so an illegal access, which is a fault of Lamella."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY))


def free_bytes(device: torch.device) -> int | None:
    """What can still be allocated, if it is known: of a GPU, or of this machine's memory and swap."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("MemAvailable:", "SwapFree:")))


def promise(device: torch.device, size: int) -> None:
    """Raises MemoryError where `size` bytes of a CPU's memory are more than there is: Linux would hand them out, and end who uses them."""
    free = free_bytes(device) if device.type == "cpu" else None
    if free is not None and size > free:
        raise MemoryError(f"{size} bytes of {free}")


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
            remedy = "ask for fewer new tokens, or load the model with more cache_tokens"
            raise OutOfMemoryError("the cache is full", expected=f"{count} free blocks", got=str(len(self._free)), remedy=remedy)
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
    scales: Sequence[torch.Tensor] = ()
    """Those of caches of float8, by layer."""

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
            case "scales":
                return self.scales[ref.layer]
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
    """Arena and inputs first, then the cache pool, sized once (`cache_blocks`). Raises OutOfMemoryError when they do not fit, PromptError
    for a cache of no tokens.

    `poisoned` fills arena and cache with NaN, otherwise they are zeroed. The null block is always zero or NaN: no query reads it.
    """
    device = torch.device(device)
    what, needed, remedy = "the arena", manifest.arena_bytes, "a smaller max_arena, or smaller buckets"
    try:
        promise(device, needed)
        arena = torch.zeros(manifest.arena_bytes, dtype=torch.uint8, device=device)
        inputs = {b.key: {i.name: torch.zeros(i.shape, dtype=DTYPES[i.dtype], device=device) for i in b.inputs} for b in manifest.buckets}
        blocks = cache_blocks(manifest, device, cache_tokens)
        what, needed, remedy = "the cache", blocks * manifest.cache.block_bytes, "a smaller max_context or cache_tokens"
        promise(device, needed)
        caches, *scales = (layers_of(manifest.cache, pool, blocks, device) for pool in manifest.cache.pools)
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        free = free_bytes(device)
        got = None if free is None else str(free)
        raise OutOfMemoryError(f"{what} does not fit on {device}", expected=f"{needed} free bytes", got=got, remedy=remedy) from error
    if poisoned:
        for tensor in (arena, *caches, *(scales[0] if scales else ())):
            poison(tensor)
    return Memory(manifest, device, arena, inputs, weights, constants, caches, scales[0] if scales else ())


def layers_of(cache: CacheSpec, pool: str, blocks: int, device: torch.device) -> list[torch.Tensor]:
    """The tensor of each layer in a pool of caches, of zeros. One allocation holds all: several would each be rounded up."""
    shape = (cache.layers, *cache.shape(pool, blocks))
    return list(torch.zeros(shape, dtype=DTYPES[cache.element(pool)], device=device).unbind())


def cache_blocks(manifest: Manifest, device: torch.device, cache_tokens: int | None = None) -> int:
    """Blocks of the pool, the null block included.

    With `cache_tokens`: as many as hold them. On a CPU: one sequence of max_context. On CUDA: what the largest bucket's sequences can own,
    max_context each, or less where free memory minus RESERVE_BYTES holds less. Raises OutOfMemoryError when not one block fits, PromptError
    for a cache of no tokens.
    """
    spec = manifest.cache
    if cache_tokens is not None and cache_tokens < 1:
        raise PromptError("bad cache_tokens", expected="at least 1", got=str(cache_tokens))
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
            remedy="end what else uses the GPU, or pack the weights: quantize",
        )
    return int(min(wanted, fit))

# pyright: basic
"""GGUF blocks of whole numbers enter; the words, scales and least values that kernels decode leave, without passing through floats.

The formulas are those of ggml-quants.c. Scales and least values keep the type that the file has them in: float16, or, where a block of 256
multiplies those of its parts by one of its own, whole numbers and float16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamella.checkpoints.gguf import GgufSource
from lamella.checkpoints.packed import PackedWeight, Packing, made_in_bands
from lamella.checkpoints.source import TensorSource, known
from lamella.errors import TensorError

if TYPE_CHECKING:
    import torch

Read = Callable[["torch.Tensor"], "torch.Tensor"]
"""From blocks u8 [rows, blocks, bytes] to numbers, scales or least values of each block: [rows, blocks, how many]."""


@dataclass(frozen=True)
class Block:
    """A type of block: `columns` numbers in `size` bytes, and how they are read."""

    packing: Packing
    columns: int
    size: int
    numbers: Read
    """u8, without sign."""
    factors: Mapping[str, Read]
    """Scales, least values and what multiplies both, by part: those of `packing`."""


@dataclass(frozen=True)
class GgufWeight(PackedWeight):
    """A weight in blocks."""

    source: GgufSource
    name: str
    block: Block

    def blocks(self, device: str, first: int = 0, last: int | None = None) -> torch.Tensor:
        """Rows of blocks, u8 [rows, blocks, bytes]."""
        stored = self.source.stored(self.name).view(self.shape[0], self.shape[1] // self.block.columns, self.block.size)
        return stored[first:last].to(device)

    def words(self, device: str) -> torch.Tensor:
        def numbers(first: int, last: int) -> torch.Tensor:
            return self.block.numbers(self.blocks(device, first, last)).flatten(1)

        return made_in_bands(self.shape, self.packing, device, numbers)

    def scales(self, device: str) -> torch.Tensor:
        return self.read("scales", device)

    def mins(self, device: str) -> torch.Tensor:
        return self.read("mins", device)

    def super_scales(self, device: str) -> torch.Tensor:
        return self.read("super_scales", device)

    def super_mins(self, device: str) -> torch.Tensor:
        return self.read("super_mins", device)

    def read(self, part: str, device: str) -> torch.Tensor:
        """Scales, least values, or what multiplies them. Raises TensorError where the blocks have none."""
        if part not in self.block.factors:
            raise TensorError(f"weight {self.name} was asked for {part}, which its blocks do not have")
        return self.block.factors[part](self.blocks(device)).reshape(self.shape[0], -1)


def keepable(source: TensorSource, names: Iterable[str]) -> dict[str, PackedWeight]:
    """The weights `names` that are stored in blocks that can stay packed."""
    if not isinstance(source, GgufSource):
        return {}
    found: dict[str, PackedWeight] = {}
    for name in names:
        tensor = known(source.tensors, name)
        block = BLOCKS.get(tensor.dtype)
        if block is not None:
            found[name] = GgufWeight(block.packing, (tensor.shape[0], tensor.shape[1]), source, name, block)
    return found


# How blocks are read


def half(at: int) -> Read:
    """The float16 at a byte of each block."""

    def read(blocks: torch.Tensor) -> torch.Tensor:
        import torch

        return blocks[..., at : at + 2].contiguous().view(torch.float16)

    return read


def nibbles(found: torch.Tensor, run: int) -> torch.Tensor:
    """Bytes as numbers of four bits: the lower halves of each `run` of bytes, then the upper ones."""
    import torch

    runs = found.unflatten(-1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), dim=-2).flatten(-3)


def single_bits(found: torch.Tensor) -> torch.Tensor:
    """Four bytes as 32 bits, the lowest of the first byte first."""
    import torch

    places = torch.arange(8, dtype=torch.uint8, device=found.device)
    return (found[..., None] >> places & 1).flatten(-2)


def four_bits(at: int) -> Read:
    """Q4_0 and Q4_1: byte j holds numbers j and j + 16."""
    return lambda blocks: nibbles(blocks[..., at:], 16)


def five_bits(at: int, shift: int) -> Read:
    """Q5_0 and Q5_1: four bytes of fifth bits, then the others as in Q4_0; `shift` is added."""
    return lambda blocks: (nibbles(blocks[..., at + 4 :], 16) | single_bits(blocks[..., at : at + 4]) << 4) + shift


def eight_bits(blocks: torch.Tensor) -> torch.Tensor:
    """Q8_0: numbers with a sign, as their distance from the least there is."""
    return blocks[..., 2:] ^ 0x80


def six_bit_pairs(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q4_K and Q5_K: eight scales and eight least values of six bits in the twelve bytes behind two float16, u8 [rows, blocks, 8]."""
    import torch

    low, least, upper = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((low & 0x3F, (upper & 15) | (low >> 2 & 0x30)), dim=-1)
    mins = torch.cat((least & 0x3F, upper >> 4 | (least >> 2 & 0x30)), dim=-1)
    return scales, mins


def negative_half(at: int) -> Read:
    """One float16 of a block, which the format subtracts and Lamella adds."""
    return lambda blocks: -half(at)(blocks)


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """Q4_K: 32 bytes hold two parts of 32 numbers."""
    return nibbles(blocks[..., 16:], 32)


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """Q5_K: bit s of 32 bytes is the fifth bit of the numbers of part s; the others are as in Q4_K."""
    import torch

    places = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    fifth = blocks[..., None, 16:48] >> places & 1
    return nibbles(blocks[..., 48:], 32) | fifth.flatten(-2) << 4


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """Q6_K: 64 bytes hold the lower four bits of 128 numbers, 32 bytes their upper two; from -32 on, here from 96 on, 128 standing for 0."""
    import torch

    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    upper = blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> places & 3
    return (nibbles(blocks[..., :128], 64) | upper.flatten(-3) << 4) + 96


def q6_k_scales(blocks: torch.Tensor) -> torch.Tensor:
    """Q6_K: sixteen scales of eight bits with a sign."""
    import torch

    return blocks[..., 192:208].contiguous().view(torch.int8)


K_FACTORS: Mapping[str, Read] = {
    "scales": lambda blocks: six_bit_pairs(blocks)[0],
    "mins": lambda blocks: six_bit_pairs(blocks)[1],
    "super_scales": half(0),
    "super_mins": negative_half(2),
}
"""Q4_K and Q5_K: scales and least values of their parts, and those of the whole block."""


BLOCKS: Mapping[str, Block] = {
    "q4_0": Block(Packing("int4", 32), 32, 18, four_bits(2), {"scales": half(0)}),
    "q4_1": Block(Packing("int4", 32, "f16", "f16"), 32, 20, four_bits(4), {"scales": half(0), "mins": half(2)}),
    "q5_0": Block(Packing("int8", 32), 32, 22, five_bits(2, 112), {"scales": half(0)}),
    "q5_1": Block(Packing("int8", 32, "f16", "f16"), 32, 24, five_bits(4, 0), {"scales": half(0), "mins": half(2)}),
    "q8_0": Block(Packing("int8", 32), 32, 34, eight_bits, {"scales": half(0)}),
    "q4_k": Block(Packing("int4", 32, "i8", "i8", super_group=256), 256, 144, q4_k, K_FACTORS),
    "q5_k": Block(Packing("int8", 32, "i8", "i8", super_group=256), 256, 176, q5_k, K_FACTORS),
    "q6_k": Block(Packing("int8", 16, "i8", super_group=256), 256, 210, q6_k, {"scales": q6_k_scales, "super_scales": half(208)}),
}
"""Block types that can stay packed. Numbers of five and six bits lie in eight."""

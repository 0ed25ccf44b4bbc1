# pyright: basic
"""GGUF blocks of whole numbers enter; the words, scales and mins that kernels decode leave, without passing through floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamella.checkpoints.source import TensorSource, known, torch_dtype

if TYPE_CHECKING:
    import torch

    from lamella.checkpoints.gguf import GgufSource

GROUP = 32
"""Numbers of a block of the types below; each block has one scale."""


@dataclass(frozen=True)
class Block:
    """How a type of block holds its 32 numbers: after the scale (and the least value), `bits` each."""

    kind: str
    """That of `#transformer.packing`."""
    bits: int
    least: bool
    """Whether a least value follows the scale."""

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return 2 + 2 * self.least + GROUP * self.bits // 8


BLOCKS: Mapping[str, Block] = {"q4_0": Block("int4", 4, False), "q4_1": Block("int4", 4, True), "q8_0": Block("int8", 8, False)}
"""Block types that can stay packed: w = d·(q - 8), d·q + m, d·q (ggml-quants.c)."""


def part_names(name: str, block: Block) -> tuple[str, ...]:
    """The tensors that a packed weight becomes: words, scales and, where there are any, mins."""
    return (f"{name}.packed", f"{name}.scales", *((f"{name}.mins",) if block.least else ()))


@dataclass(frozen=True)
class PackedSource:
    """A GGUF file whose weights `kept` (name -> block type) can also be had packed, under the names of their parts."""

    source: GgufSource
    kept: Mapping[str, str]

    @property
    def parts(self) -> dict[str, str]:
        """Name of a part -> name of its weight."""
        return {part: name for name, kind in self.kept.items() for part in part_names(name, BLOCKS[kind])}

    def names(self) -> list[str]:
        return sorted({*self.source.names(), *self.parts})

    def shape(self, name: str) -> tuple[int, ...]:
        weight = self.parts.get(name)
        if weight is None:
            return self.source.shape(name)
        rows, columns = self.source.shape(weight)
        per_word = 32 // BLOCKS[self.kept[weight]].bits
        return rows, columns // (per_word if name.endswith(".packed") else GROUP)

    def dtype(self, name: str) -> str:
        if name not in self.parts:
            return self.source.dtype(name)
        return "i32" if name.endswith(".packed") else "f16"

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        weight = self.parts.get(name)
        if weight is None:
            return self.source.load(name, dtype, device)
        import torch

        rows, columns = self.source.shape(weight)
        block = BLOCKS[self.kept[weight]]
        stored = self.source.stored(weight).view(rows, columns // GROUP, block.size)
        if name.endswith(".packed"):
            return words(stored[..., block.size - GROUP * block.bits // 8 :], block).to(device)
        at = 0 if name.endswith(".scales") else 2
        numbers = stored[..., at : at + 2].contiguous().view(torch.float16).view(rows, columns // GROUP)
        return numbers.to(device=device, dtype=torch_dtype(dtype or "f16")).contiguous()

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def describe(self) -> dict[str, object]:
        return self.source.describe()


def words(numbers: torch.Tensor, block: Block) -> torch.Tensor:
    """u8 [rows, blocks, bytes] -> words i32 [rows, columns·bits/32], number i of a word at bit bits·(i//2) + 16·(i%2).

    A byte of a 4-bit block holds numbers j and j + 16 of it. Numbers with a sign are stored as their distance from the least.
    """
    import torch

    each = torch.cat((numbers & 15, numbers >> 4), dim=-1) if block.bits == 4 else numbers ^ 0x80
    grouped = each.flatten(1).unflatten(1, (-1, 32 // block.bits))
    out = torch.zeros(grouped.shape[:2], dtype=torch.int32)
    for i in range(32 // block.bits):
        out |= grouped[..., i].to(torch.int32) << (block.bits * (i // 2) + 16 * (i % 2))
    return out


def keepable(source: TensorSource, names: Iterable[str]) -> dict[str, str]:
    """Which of the weights `names` are stored in blocks that can stay packed, with their block types."""
    from lamella.checkpoints.gguf import GgufSource

    if not isinstance(source, GgufSource):
        return {}
    return {name: known(source.tensors, name).dtype for name in names if known(source.tensors, name).dtype in BLOCKS}

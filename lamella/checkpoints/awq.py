# pyright: basic
"""AWQ checkpoints: packed integers and zero points along the outputs, eight of them interleaved in a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamella.checkpoints.packed import PackedWeight, Packing, in_sequence, made_in_bands, repeated, stored_group
from lamella.checkpoints.quantized import WORDS, Format, Part, shared_group, words_of
from lamella.checkpoints.safetensors import SafetensorsSource
from lamella.checkpoints.source import StoredTensor, known

if TYPE_CHECKING:
    import torch

BITS = 4
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which four bits of a word hold each of its eight outputs: bits 4i hold output 0, 2, 4, 6, 1, 3, 5, 7 (AutoAWQ's `gemm`)."""


@dataclass(frozen=True)
class Awq(Format):
    """What `quantization_config` says of an AWQ checkpoint of version `gemm`.

    A weight [O,K] is stored as qweight [K, O/8], qzeros [G, O/8] and scales [G, O]; w[o,k] = scales[g,o]·(q[k,o] - z[g,o]), g = k // group.
    """

    group: int
    """Inputs that share a scale; -1: all."""

    @property
    def label(self) -> str:
        return f"AWQ, 4 bits, {'whole rows' if self.group < 1 else f'groups of {self.group}'}, zero points"

    def parts(self, stem: str, stored: Mapping[str, StoredTensor], shape: tuple[int, int]) -> Mapping[str, Part] | None:
        if f"{stem}.qweight" not in stored:
            return None
        rows, columns = shape
        groups = -(-columns // stored_group(columns, self.group))
        shared_group(columns, self.group, stem)
        words_of(columns, BITS, stem)
        width = words_of(rows, BITS, f"{stem}.qweight")
        return {"qweight": Part((columns, width), WORDS), "qzeros": Part((groups, width), WORDS), "scales": Part((groups, rows))}

    def weight(self, source: SafetensorsSource, name: str, shape: tuple[int, int], order: str) -> PackedWeight:
        scales = known(source.tensors, f"{name}.scales").dtype
        return AwqWeight(Packing("int4", shared_group(shape[1], self.group, name), scales, "f32", order), shape, source, name, self)


@dataclass(frozen=True)
class AwqWeight(PackedWeight):
    """A weight of an AWQ checkpoint."""

    source: SafetensorsSource
    name: str
    form: Awq

    def words(self, device: str) -> torch.Tensor:
        stored = self.source.stored(f"{self.name}.qweight")

        def numbers(first: int, last: int) -> torch.Tensor:
            return outputs(stored[:, first // 8 : last // 8].to(device)).T

        return made_in_bands(self.shape, self.packing, device, numbers)

    def scales(self, device: str) -> torch.Tensor:
        return self.repeated(self.source.stored(f"{self.name}.scales").to(device).T)

    def mins(self, device: str) -> torch.Tensor:
        # Exact, as is scale·q + min: a float16 times a number of four bits.
        zeros = outputs(self.source.stored(f"{self.name}.qzeros").to(device))
        return self.repeated((self.source.stored(f"{self.name}.scales").to(device).float() * -zeros.float()).T)

    def repeated(self, values: torch.Tensor) -> torch.Tensor:
        """Values of groups as stored, for the groups in memory."""
        return repeated(values, self.shape[1], stored_group(self.shape[1], self.form.group), self.packing.group)


def outputs(words: torch.Tensor) -> torch.Tensor:
    """words i32 [rows, O/8] -> numbers i32 [rows, O]."""
    import torch

    return torch.stack([in_sequence(words, BITS, place) for place in PLACES], dim=-1).flatten(1)

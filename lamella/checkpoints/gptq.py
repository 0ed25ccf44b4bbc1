# pyright: basic
"""GPTQ checkpoints: packed integers along the inputs, zero points along the outputs, and the group of each input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamella.checkpoints.packed import PackedWeight, Packing, all_in_sequence, in_sequence, made_in_bands, repeated, stored_group
from lamella.checkpoints.quantized import WORDS, Format, Part, by_groups, shared_group, words_of
from lamella.checkpoints.safetensors import SafetensorsSource
from lamella.checkpoints.source import StoredTensor, known
from lamella.errors import TensorError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Gptq(Format):
    """What `quantization_config` says of a GPTQ checkpoint (AutoGPTQ, GPTQModel).

    A weight [O,K] is stored as qweight [K·bits/32, O], qzeros [G, O·bits/32], scales [G, O] and perhaps g_idx [K], the group of each input.
    Numbers of a word lie one after the other from its lowest bit. w[o,k] = scales[g,o]·(q[k,o] - z[g,o]), g = g_idx[k].
    """

    bits: int
    group: int
    """Inputs that share a scale; -1: all."""
    symmetric: bool
    """Whether all zero points are in the middle."""
    offset: int
    """What is added to a stored zero point: 1 in the first version of the format, which stores z - 1 in `bits` bits; 0 in the second."""
    ordered: bool
    """Whether inputs may lie in other groups than their neighbours, so that `g_idx` must be there."""

    @property
    def label(self) -> str:
        groups = "whole rows" if self.group < 1 else f"groups of {self.group}"
        return f"GPTQ, {self.bits} bits, {groups}{'' if self.symmetric else ', zero points'}{', ordered by activation' if self.ordered else ''}"

    def parts(self, stem: str, stored: Mapping[str, StoredTensor], shape: tuple[int, int]) -> Mapping[str, Part] | None:
        if f"{stem}.qweight" not in stored:
            return None
        rows, columns = shape
        groups = -(-columns // stored_group(columns, self.group))
        shared_group(columns, self.group, stem)
        found = {
            "qweight": Part((words_of(columns, self.bits, f"{stem}.qweight"), rows), WORDS),
            "qzeros": Part((groups, words_of(rows, self.bits, f"{stem}.qzeros")), WORDS),
            "scales": Part((groups, rows)),
        }
        if self.ordered or f"{stem}.g_idx" in stored:
            found["g_idx"] = Part((columns,), WORDS)
        return found

    def order(self, source: SafetensorsSource, name: str, shape: tuple[int, int]) -> torch.Tensor | None:
        tensor = source.tensors.get(f"{name}.g_idx")
        if tensor is None:
            return None
        return by_groups(source.stored(f"{name}.g_idx"), stored_group(shape[1], self.group), tensor)

    def weight(self, source: SafetensorsSource, name: str, shape: tuple[int, int], order: str) -> PackedWeight:
        scales = known(source.tensors, f"{name}.scales").dtype
        group = shared_group(shape[1], self.group, name)
        packing = Packing(f"int{self.bits}", group, scales, "" if self.symmetric else "f32", order)
        return GptqWeight(packing, shape, source, name, self)


@dataclass(frozen=True)
class GptqWeight(PackedWeight):
    """A weight of a GPTQ checkpoint."""

    source: SafetensorsSource
    name: str
    form: Gptq

    def columns(self) -> torch.Tensor:
        order = self.form.order(self.source, self.name, self.shape)
        assert order is not None
        return order

    def words(self, device: str) -> torch.Tensor:
        import torch

        stored, bits = self.source.stored(f"{self.name}.qweight"), self.form.bits
        order = self.columns().long().to(device) if self.packing.order else None

        def numbers(first: int, last: int) -> torch.Tensor:
            found = stored[:, first:last].to(device)
            each = torch.empty((self.shape[1], last - first), dtype=torch.uint8, device=device)
            for i in range(32 // bits):
                each[i :: 32 // bits] = in_sequence(found, bits, i)
            return (each if order is None else each[order]).T

        return made_in_bands(self.shape, self.packing, device, numbers)

    def zeros(self, device: str) -> torch.Tensor:
        """The zero points, i32 [rows, groups as stored]."""
        stored = all_in_sequence(self.source.stored(f"{self.name}.qzeros").to(device), self.form.bits)
        return ((stored + self.form.offset) & ((1 << self.form.bits) - 1)).T

    def scales(self, device: str) -> torch.Tensor:
        if not self.packing.mins and (self.zeros(device) != 1 << (self.form.bits - 1)).any():
            tensor = known(self.source.tensors, f"{self.name}.qzeros")
            what = f"tensor {tensor.name} holds zero points, and the configuration says sym: true"
            raise TensorError(what, where=str(tensor.file), expected="numbers around 0", remedy="set sym to false in quantization_config")
        return self.repeated(self.source.stored(f"{self.name}.scales").to(device).T)

    def mins(self, device: str) -> torch.Tensor:
        # A float16 times a number of 8 bits is exact in float32, and so is scale·q + min, which is scale·(q - z).
        least = self.source.stored(f"{self.name}.scales").to(device).T.float() * -self.zeros(device).float()
        return self.repeated(least)

    def repeated(self, values: torch.Tensor) -> torch.Tensor:
        """Values of groups as stored, for the groups in memory."""
        return repeated(values, self.shape[1], stored_group(self.shape[1], self.form.group), self.packing.group)

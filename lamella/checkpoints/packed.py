# pyright: basic
"""Weights that a checkpoint stores in few bits enter; the words, scales, least values and column orders that kernels decode leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamella.checkpoints.source import TensorSource, torch_dtype
from lamella.errors import TensorError

if TYPE_CHECKING:
    import torch

BITS: Mapping[str, int] = {"int4": 4, "int8": 8, "fp8": 8}
"""Bits of a number of each kind of `#transformer.packing`."""
ELEMENT_BYTES: Mapping[str, int] = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1}
"""Of scales and least values."""
SUPER = "f16"
"""Element type of what multiplies scales and least values of eight bits."""
FLOATS = ("fp8",)
"""Kinds whose numbers are floats of eight bits, each an element of memory by itself."""
BAND = 1 << 22
"""Numbers that are taken apart at a time: temporaries stay small beside a large weight."""
LEAST_GROUP = 16
"""Columns: of several groups in a row each has a power of two of them, and no fewer, since a tensor core multiplies no fewer."""


@dataclass(frozen=True)
class Packing:
    """How a weight of few bits lies in memory: as the parts `NAME.packed`, `NAME.scales` and, with `mins`, `NAME.mins`; where those are whole
    numbers of eight bits, `NAME.super_scales` and `NAME.super_mins` multiply them.

    docs/quantization.md and `#transformer.packing` say where each number lies, and what it stands for.
    """

    kind: str
    """`int4`, `int8` or `fp8`."""
    group: int
    """Columns that share a scale."""
    scales: str = "f16"
    """Their element type."""
    mins: str = ""
    """Element type of the least values; empty: there are none."""
    order: str = ""
    """Name of the columns of the weight in the order in which they are stored, i32[K]; empty: their own order."""
    super_group: int = 0
    """Columns that share a float16 which multiplies their scales (another their least values), all of type `i8`; 0: there is none."""

    @property
    def factors(self) -> Mapping[str, tuple[str, int]]:
        """Element type of scales, least values and what multiplies both, as far as there are such, and columns that share one; by part, in order."""
        own = {part: (element, self.group) for part, element in (("scales", self.scales), ("mins", self.mins)) if element}
        return own | ({f"super_{part}": (SUPER, self.super_group) for part in own} if self.super_group else {})

    @property
    def per_word(self) -> int:
        """Numbers of an element of `NAME.packed`."""
        return 1 if self.kind in FLOATS else 32 // BITS[self.kind]

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a weight in memory, without an order of columns, which several may share."""
        return rows * columns * BITS[self.kind] // 8 + sum(rows * (columns // each) * ELEMENT_BYTES[e] for e, each in self.factors.values())


@dataclass(frozen=True)
class PackedWeight(ABC):
    """One weight [rows, columns] of few bits. A format says how its parts are made of what a checkpoint stores."""

    packing: Packing
    shape: tuple[int, int]
    """[outputs, inputs]."""

    @property
    def groups(self) -> tuple[int, int]:
        """The shape of scales and least values."""
        return self.shape[0], self.shape[1] // self.packing.group

    @abstractmethod
    def words(self, device: str) -> torch.Tensor:
        """i32 [rows, columns·bits/32], or f8 [rows, columns]. Raises CheckpointError, TensorError."""

    @abstractmethod
    def scales(self, device: str) -> torch.Tensor:
        """[rows, columns/group]. Raises CheckpointError, TensorError."""

    def mins(self, device: str) -> torch.Tensor:
        """[rows, columns/group]. Raises CheckpointError, TensorError."""
        raise TensorError("a weight without least values was asked for them")

    def super_scales(self, device: str) -> torch.Tensor:
        """[rows, columns/super_group], where scales are whole numbers. Raises CheckpointError, TensorError."""
        raise TensorError("a weight of one level of scales was asked for another")

    def super_mins(self, device: str) -> torch.Tensor:
        """[rows, columns/super_group], where least values are whole numbers. Raises CheckpointError, TensorError."""
        raise TensorError("a weight of one level of least values was asked for another")

    def factor(self, part: str, device: str) -> torch.Tensor:
        """One of `Packing.factors` in its element type. Raises CheckpointError, TensorError."""
        import torch

        read = {"scales": self.scales, "mins": self.mins, "super_scales": self.super_scales, "super_mins": self.super_mins}[part]
        element = self.packing.factors[part][0]
        return read(device).to(torch.int8 if element == "i8" else torch_dtype(element))

    def whole_factor(self, part: str, device: str) -> torch.Tensor:
        """Scales or least values in float32 [rows, columns/group], multiplied where they lie in two levels. Raises CheckpointError, TensorError."""
        own = self.factor(part, device).float()
        if not self.packing.super_group:
            return own
        over = self.factor(f"super_{part}", device).float()
        return (own.unflatten(1, (over.shape[1], -1)) * over[..., None]).flatten(1)

    def columns(self) -> torch.Tensor:
        """i32 [columns]: which column is stored at each place. Raises CheckpointError, TensorError."""
        raise TensorError("a weight whose columns lie in their own order was asked for another")

    def floats(self, dtype: str, device: str) -> torch.Tensor:
        """[rows, columns] in `dtype`, columns in their own order: what the parts stand for, rounded once."""
        import torch

        words, scales = self.words(device), self.whole_factor("scales", device)
        mins = self.whole_factor("mins", device) if self.packing.mins else None
        made = torch.empty(self.shape, dtype=torch_dtype(dtype), device=device)
        columns = self.columns().long().to(device) if self.packing.order else slice(None)

        def band(first: int, last: int) -> None:
            if self.packing.kind in FLOATS:
                grouped = words[first:last].float().unflatten(1, (scales.shape[1], -1))
            else:
                grouped = (
                    unpacked(words[first:last], BITS[self.packing.kind], self.packing.group).float().unflatten(1, (scales.shape[1], -1))
                )
                grouped -= 0 if mins is not None else 1 << (BITS[self.packing.kind] - 1)
            grouped *= scales[first:last, :, None]
            if mins is not None:
                grouped += mins[first:last, :, None]
            made[first:last, columns] = grouped.flatten(1).to(made.dtype)

        in_bands(self.shape, band)
        return made


PARTS = ("packed", "scales", "mins", "super_scales", "super_mins", "columns")
"""Ends of the names of what a packed weight becomes."""


@dataclass(frozen=True)
class PackedSource:
    """A checkpoint some of whose weights can also be had packed, under the names of their parts."""

    source: TensorSource
    weights: Mapping[str, PackedWeight]
    """By canonical name."""
    whole: bool = True
    """Whether `source` has these weights as floats too."""

    def part(self, name: str) -> tuple[PackedWeight, str] | None:
        """The weight that a name is a part of, and which; None where it is no part."""
        stem, _, part = name.rpartition(".")
        weight = self.weights.get(stem) if part in PARTS else None
        if weight is None or (part == "columns" and weight.packing.order != name):
            return None
        return (weight, part) if part in ("packed", "columns", *weight.packing.factors) else None

    def names(self) -> list[str]:
        found = {*self.source.names(), *self.weights}
        found |= {name for stem in self.weights for part in PARTS if self.part(name := f"{stem}.{part}") is not None}
        return sorted(found)

    def shape(self, name: str) -> tuple[int, ...]:
        found = self.part(name)
        if found is None:
            return self.weights[name].shape if self.is_unpacked(name) else self.source.shape(name)
        weight, part = found
        rows, columns = weight.shape
        if part in weight.packing.factors:
            return rows, columns // weight.packing.factors[part][1]
        return (rows, columns // weight.packing.per_word) if part == "packed" else (columns,)

    def dtype(self, name: str) -> str:
        found = self.part(name)
        if found is None:
            return "f32" if self.is_unpacked(name) else self.source.dtype(name)
        packing = found[0].packing
        if found[1] in packing.factors:
            return packing.factors[found[1]][0]
        return "f8" if found[1] == "packed" and packing.kind in FLOATS else "i32"

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        found = self.part(name)
        if found is None:
            return self.weights[name].floats(dtype or "f32", device) if self.is_unpacked(name) else self.source.load(name, dtype, device)
        weight, part = found
        match part:
            case "packed":
                made = weight.words(device)
            case "columns":
                made = weight.columns()
            case _:
                made = weight.factor(part, device)
                made = made if dtype in (None, self.dtype(name)) else made.to(torch_dtype(dtype))
        if tuple(made.shape) != self.shape(name):
            raise TensorError(f"weight {name} has another shape", expected=str(self.shape(name)), got=str(tuple(made.shape)))
        return made.to(device).contiguous()

    def is_unpacked(self, name: str) -> bool:
        """Whether `name` is a weight that only its parts can give."""
        return name in self.weights and not self.whole

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def describe(self) -> dict[str, object]:
        return self.source.describe()


def in_bands(shape: tuple[int, int], band: Callable[[int, int], None]) -> None:
    """Calls `band` with the first row of each band of rows, and the row behind its last; bands begin at multiples of 32."""
    step = max(32, BAND // shape[1] // 32 * 32)
    for first in range(0, shape[0], step):
        band(first, min(first + step, shape[0]))


def made_in_bands(weight: tuple[int, int], packing: Packing, device: str, numbers: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    """Words i32 [rows, columns·bits/32] of a weight of that shape; `numbers(first, last)` are those of some rows, whole and without sign."""
    import torch

    bits = BITS[packing.kind]
    made = torch.empty((weight[0], weight[1] * bits // 32), dtype=torch.int32, device=device)

    def band(first: int, last: int) -> None:
        made[first:last] = laid(numbers(first, last), bits, packing.group)

    in_bands(weight, band)
    return made


def laid(numbers: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """numbers [rows, columns] without sign -> words i32, as `#transformer.packing` lays them: signed bytes, or two halves of a byte, `half` columns apart."""
    import torch

    signed = numbers.to(torch.uint8) ^ (1 << (bits - 1))
    if bits == 4:
        low, high = signed.unflatten(1, (-1, 2, half(group))).unbind(2)
        signed = (low | high << 4).flatten(1)
    return signed.contiguous().view(torch.int32)


def half(group: int) -> int:
    """Columns between the two numbers of four bits that share a byte: a power of two, at most 64, so that both are in one group."""
    return min(64, (group & -group) // 2)


def unpacked(words: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """words i32 [rows, W] as kernels read them -> numbers u8 [rows, W·32/bits], without sign."""
    import torch

    found = words.contiguous().view(torch.uint8) ^ (0x88 if bits == 4 else 0x80)
    if bits == 8:
        return found
    found = found.unflatten(1, (-1, half(group)))
    return torch.stack([found & 15, found >> 4], dim=2).flatten(1)


def in_sequence(words: torch.Tensor, bits: int, number: int) -> torch.Tensor:
    """Number `number` of words i32 whose numbers lie one after the other from the lowest bit up: i32 of the same shape."""
    return words >> bits * number & ((1 << bits) - 1)


def all_in_sequence(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words i32 [rows, W] of that kind -> numbers i32 [rows, W·32/bits]."""
    import torch

    return torch.stack([in_sequence(words, bits, i) for i in range(32 // bits)], dim=-1).flatten(1)


def stored_group(columns: int, group: int) -> int:
    """Columns that share a scale in the checkpoint, where it says `group`: below 1 for a whole row."""
    return min(group, columns) if group > 0 else columns


def device_group(columns: int, group: int) -> int:
    """Columns that share a scale in memory, where the checkpoint's groups are of `group` and the last one may be shorter; 0: there are none.

    The largest power of two that divides both: scales are repeated where groups have another size, or a row is no whole number of them.
    """
    from math import gcd

    if group <= 0 or group >= columns:
        return columns
    shared = gcd(group, columns)
    shared &= -shared
    return shared if shared >= LEAST_GROUP else 0


def repeated(values: torch.Tensor, columns: int, stored: int, group: int) -> torch.Tensor:
    """Scales [rows, ⌈columns/stored⌉] of groups of `stored` columns, as scales [rows, columns/group] of groups of `group`."""
    if values.shape[1] * group == columns:
        return values
    return values[:, [first // stored for first in range(0, columns, group)]]

# pyright: basic
"""Lamella's own quantized checkpoints: parts of weights as kernels decode them enter and leave safetensors files, without a change.

A weight `NAME.weight` is stored as `NAME.packed`, `NAME.scales` and perhaps `NAME.mins`; headers say the rest: the element type of the
numbers, how many a word holds, how many columns share a scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lamella.checkpoints.packed import BITS, PackedWeight, Packing
from lamella.checkpoints.quantized import WORDS, Format, Part
from lamella.checkpoints.safetensors import INDEX, SINGLE, SafetensorsSource
from lamella.checkpoints.source import LOADABLE, StoredTensor
from lamella.errors import TensorError

if TYPE_CHECKING:
    import torch

METHOD = "lamella"
"""The `quant_method` of such a checkpoint."""
FLOAT8 = ("F8_E4M3",)
ELEMENTS: Mapping[str, tuple[str, int]] = {
    "f32": ("F32", 4),
    "f16": ("F16", 2),
    "bf16": ("BF16", 2),
    "i32": ("I32", 4),
    "f8": ("F8_E4M3", 1),
}
"""Element types as safetensors spells them, and their bytes."""
MOST = 4 << 30
"""Bytes of a file, unless one tensor alone has more."""


@dataclass(frozen=True)
class OwnFormat(Format):
    """The format of this module."""

    @property
    def label(self) -> str:
        return "lamella quantize"

    def parts(self, stem: str, stored: Mapping[str, StoredTensor], shape: tuple[int, int]) -> Mapping[str, Part] | None:
        if f"{stem}.packed" not in stored:
            return None
        packing = self.packing(stem, stored, shape)
        rows, columns = shape
        groups = (rows, columns // packing.group)
        elements = FLOAT8 if packing.kind == "fp8" else WORDS
        found = {"packed": Part((rows, columns // packing.per_word), elements), "scales": Part(groups, LOADABLE)}
        return {**found, "mins": Part(groups, LOADABLE)} if packing.mins else found

    def packing(self, stem: str, stored: Mapping[str, StoredTensor], shape: tuple[int, int]) -> Packing:
        """How a weight is packed, as the headers of its parts say. Raises TensorError."""
        words, scales, mins = (stored.get(f"{stem}.{part}") for part in ("packed", "scales", "mins"))
        assert words is not None
        where, (rows, columns) = str(words.file), shape
        if scales is None or len(scales.shape) != 2 or not scales.shape[1] or columns % scales.shape[1]:
            got = "none" if scales is None else str(scales.shape)
            raise TensorError(f"tensor {stem}.scales divides no row of {columns}", where=where, expected="a scale for each group", got=got)
        group = columns // scales.shape[1]
        if words.dtype in FLOAT8:
            kind = "fp8"
        else:
            width = words.shape[1] if len(words.shape) == 2 else 0
            kind = next((kind for kind in ("int4", "int8") if width * 32 == columns * BITS[kind]), "")
        if not kind or (kind == "fp8" and group != columns) or group % (1 if kind == "fp8" else 32 // BITS[kind]):
            expected = f"words of 8 or 4 of {rows, columns} numbers, in whole groups of {group}"
            raise TensorError(f"tensor {stem}.packed has the wrong shape", where=where, expected=expected, got=str(words.shape))
        return Packing(kind, group, scales.dtype, "" if mins is None else mins.dtype)

    def weight(self, source: SafetensorsSource, name: str, shape: tuple[int, int], order: str) -> PackedWeight:
        return OwnWeight(self.packing(name, source.tensors, shape), shape, source, name)


@dataclass(frozen=True)
class OwnWeight(PackedWeight):
    """A weight whose parts lie in the file as they are wanted."""

    source: SafetensorsSource
    name: str

    def words(self, device: str) -> torch.Tensor:
        return self.source.stored(f"{self.name}.packed").to(device)

    def scales(self, device: str) -> torch.Tensor:
        return self.source.stored(f"{self.name}.scales").to(device)

    def mins(self, device: str) -> torch.Tensor:
        return self.source.stored(f"{self.name}.mins").to(device)


@dataclass
class ShardWriter:
    """Writes `model.safetensors`, or shards and their index, into a folder: of `tensors` (name -> element type and shape) each in its place as
    it is handed over, in any order, so that none has to wait in memory for another. A context, which closes the files. Raises OSError."""

    folder: Path
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    most: int = MOST
    _places: dict[str, tuple[Path, int]] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)
    _open: dict[Path, BinaryIO] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shards: list[list[str]] = [[]]
        size = 0
        for name in self.tensors:
            if shards[-1] and size + self.bytes(name) > self.most:
                shards.append([])
                size = 0
            shards[-1].append(name)
            size += self.bytes(name)
        files = [SINGLE] if len(shards) == 1 else [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
        for file, names in zip(files, shards, strict=True):
            self._begin(self.folder / file, names)
        self._left = set(self.tensors)
        if len(files) > 1:
            total = sum(map(self.bytes, self.tensors))
            index = {"metadata": {"total_size": total}, "weight_map": {name: path.name for name, (path, _) in self._places.items()}}
            (self.folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")

    def bytes(self, name: str) -> int:
        """Size of a tensor in its file."""
        element, shape = self.tensors[name]
        return prod(shape) * ELEMENTS[element][1]

    def _begin(self, path: Path, names: list[str]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in names:
            element, shape = self.tensors[name]
            header[name] = {"dtype": ELEMENTS[element][0], "shape": list(shape), "data_offsets": [at, at + self.bytes(name)]}
            at += self.bytes(name)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file = path.open("wb")
        self._open[path] = file
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
        for name in names:
            self._places[name] = (path, 8 + len(text) + header[name]["data_offsets"][0])

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Puts a tensor into its place. Raises ValueError for one of another shape or type than announced, or that is there already."""
        import torch

        element, shape = self.tensors[name]
        raw = tensor.detach().contiguous().flatten().view(torch.uint8)
        if name not in self._left or tuple(tensor.shape) != shape or raw.numel() != self.bytes(name):
            raise ValueError(f"tensor {name}: {tensor.dtype} {tuple(tensor.shape)}, announced once as {element} {shape}")
        path, at = self._places[name]
        self._open[path].seek(at)
        self._open[path].write(raw.numpy().data)
        self._left.remove(name)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        for file in self._open.values():
            file.close()

    def check(self) -> None:
        """Raises ValueError where a tensor was not written."""
        if self._left:
            raise ValueError(f"tensor {min(self._left)} was not written")

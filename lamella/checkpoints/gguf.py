"""Tensors of a GGUF file: the file enters, its header is checked against its size; torch tensors leave, blocks dequantized."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamella.checkpoints.source import LOADABLE, StoredTensor, file_identity, known, match_tensors, torch_dtype
from lamella.errors import CheckpointError

if TYPE_CHECKING:
    import torch

# The header is read here and not by `gguf.GGUFReader`: that one keeps an array object for every token of the vocabulary
# (seconds for 128,000 tokens) and answers a truncated file with an IndexError. Block types and their sizes are the package's.

MAGIC = b"GGUF"
AGAIN = "download the file again"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Metadata types by the format's number, as `struct` spells them."""
STRING, ARRAY = 8, 9
LONGEST_LIST = 4096
"""Longer lists are vocabularies, which the tokenizer reads for itself, as it does longer texts than LONGEST_TEXT."""
LONGEST_NAME = (1 << 16) - 1
LONGEST_TEXT = 1 << 20
"""Bytes."""
LONGEST_END = 1 << 25
"""Bytes of a header that tell files apart."""
MOST_ENTRIES = 1 << 20
"""Metadata, and tensors, of one file; of a vocabulary four times as many texts. Larger counts would take long before they were found to lie."""
CHUNK = 1 << 22
"""Elements dequantized at a time: the float32 temporaries stay small beside the result."""


@dataclass(frozen=True)
class GgufTensor(StoredTensor):
    """`shape` is outermost axis first; `dtype` is lower case: `f32`, `q4_1`."""

    block: int
    """The format's number of the block type."""
    offset: int
    """Of the data, in bytes from the start of the file."""
    size: int
    """In bytes."""


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file's header."""

    path: Path
    metadata: Mapping[str, Any]
    """Scalars, strings and short lists of numbers; vocabularies are left out."""
    tensors: Mapping[str, GgufTensor]
    """By the file's names."""
    identity: str


@dataclass(frozen=True)
class GgufSource:
    """The tensors of one file. Make it with `open`."""

    file: Path
    tensors: Mapping[str, GgufTensor]
    """By canonical name."""
    identity: str

    @classmethod
    def open(
        cls,
        file: Path | GgufFile,
        names: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        harmless: Callable[[str], bool] = lambda name: False,
    ) -> GgufSource:
        """
        `names` maps canonical names to the file's, `shapes` canonical names to what the configuration implies; `harmless` tells
        tensors that no model needs. Raises CheckpointError for a corrupt or truncated file, TensorError and DtypeError as `match_tensors`.
        """
        header = file if isinstance(file, GgufFile) else read_gguf(file)
        loadable = {t.dtype: t.dtype in LOADABLE or can_dequantize(t.block) for t in header.tensors.values()}
        matched = match_tensors(header.tensors, names, shapes, where=header.path, loadable=loadable.__getitem__, harmless=harmless)
        return cls(header.path, matched, header.identity)

    def names(self) -> list[str]:
        return sorted(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return known(self.tensors, name).shape

    def dtype(self, name: str) -> str:
        return known(self.tensors, name).dtype

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        import torch

        tensor = known(self.tensors, name)
        plain = tensor.dtype in LOADABLE
        target = torch_dtype(dtype or (tensor.dtype if plain else "f32"))
        stored = _mapped(tensor)
        if plain:
            values = _as_tensor(stored).view(torch_dtype(tensor.dtype)).view(tensor.shape)
            return values.to(device=device, dtype=target).contiguous()
        rows, width = prod(tensor.shape[:-1]), tensor.shape[-1]
        blocks = stored.reshape(rows, tensor.size // rows)
        values = torch.empty((rows, width), dtype=target)
        step = max(1, CHUNK // width)
        for start in range(0, rows, step):
            values[start : start + step] = _as_tensor(dequantize(blocks[start : start + step], tensor.block))
        return values.view(tensor.shape).to(device)

    def stored(self, name: str) -> torch.Tensor:
        """The bytes of a tensor as they lie in the file, a private memory map. Raises TensorError, CheckpointError."""
        return _as_tensor(_mapped(known(self.tensors, name)))

    def fingerprint(self) -> str:
        return self.identity

    def describe(self) -> dict[str, object]:
        names = {canonical: self.tensors[canonical].name for canonical in self.names()}
        return {"kind": "gguf", "path": str(self.file.resolve()), "names": names, "fingerprint": self.identity}


def _mapped(tensor: GgufTensor) -> Any:
    """A tensor's bytes as a numpy array."""
    import numpy

    try:
        # Mode "c" maps copy-on-write: the file is never written, and torch gets the writable memory it wants.
        return numpy.memmap(tensor.file, dtype=numpy.uint8, mode="c", offset=tensor.offset, shape=(tensor.size,))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(tensor.file)) from error


def _as_tensor(array: Any) -> torch.Tensor:
    """The numpy array's memory as a tensor."""
    import torch

    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]


def dequantize(blocks: Any, block: int) -> Any:
    """float32 [rows, width] of uint8 [rows, bytes]: the meaning of a block type is that of the gguf package."""
    import gguf
    import numpy

    # A scale may be infinite or NaN: what the file holds is then not warned about, but computed.
    with numpy.errstate(all="ignore"):
        return gguf.dequantize(blocks, gguf.GGMLQuantizationType(block))


@cache
def can_dequantize(block: int) -> bool:
    """Whether the gguf package knows how, found out on one block of zeros."""
    import gguf
    import numpy

    kind = gguf.GGMLQuantizationType(block)
    try:
        with numpy.errstate(all="ignore"):
            gguf.dequantize(numpy.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=numpy.uint8), kind)
    except NotImplementedError:
        return False
    return True


class _Reader:
    """A cursor over the file that answers any read past the end with one CheckpointError."""

    def __init__(self, path: Path, data: Any) -> None:
        self.path, self.data, self.at = path, data, 0

    def error(self, what: str, expected: str | None = None, got: str | None = None) -> CheckpointError:
        return CheckpointError(what, where=str(self.path), expected=expected, got=got, remedy=AGAIN)

    def skip(self, count: int) -> int:
        """Steps over `count` bytes and returns where they begin."""
        start = self.at
        if count > len(self.data) - start:
            raise self.error("truncated GGUF header", f"{start + count} bytes or more", f"{len(self.data)} bytes")
        self.at = start + count
        return start

    def number(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.skip(struct.calcsize("<" + code)))[0]

    def count(self, what: str, most: int = MOST_ENTRIES) -> int:
        """How many there are of something."""
        found = self.number("Q")
        if found > most:
            raise self.error(f"corrupt GGUF header: too many {what}", f"at most {most}", str(found))
        return found

    def name(self) -> str:
        return self.text(self.count("bytes in a name", LONGEST_NAME))

    def text(self, length: int) -> str:
        start = self.skip(length)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"corrupt GGUF header: text at byte {start} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        """A metadata value; None for a list of texts, a list longer than LONGEST_LIST and a text longer than LONGEST_TEXT."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            length = self.number("Q")
            if length <= LONGEST_TEXT:
                return self.text(length)
            self.skip(length)
            return None
        if kind != ARRAY:
            raise self.error(f"corrupt GGUF header: metadata type {kind} before byte {self.at} does not exist")
        element, at = self.number("I"), self.at
        count = self.number("Q")
        if element in SCALARS:
            code = f"<{count}{SCALARS[element]}" if count <= LONGEST_LIST else None
            start = self.skip(count * struct.calcsize("<" + SCALARS[element]))
            return list(struct.unpack_from(code, self.data, start)) if code else None
        if element != STRING:
            raise self.error(f"corrupt GGUF header: a list of metadata type {element} before byte {self.at}")
        self.at = at
        for _ in range(self.count("texts in a list", 4 * MOST_ENTRIES)):
            self.skip(self.number("Q"))
        return None


def is_gguf(path: Path) -> bool:
    """Whether the file begins as a GGUF file does."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GgufFile:
    """
    Reads a GGUF file's header (versions 2 and 3, little-endian). Raises CheckpointError when the file is not GGUF, is truncated
    anywhere (header or data), or contradicts itself.
    """
    import mmap

    try:
        with path.open("rb") as stream:
            if stream.read(4) != MAGIC:
                got = f"{path.stat().st_size} bytes that begin otherwise"
                raise CheckpointError("not a GGUF file", where=str(path), expected="the bytes GGUF at its start", got=got)
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(path)) from error
    with data:
        reader = _Reader(path, data)
        reader.skip(len(MAGIC))
        version = reader.number("I")
        if version not in (2, 3):
            got = "a big-endian file" if version & 0xFFFF == 0 else f"version {version}"
            raise CheckpointError("unsupported GGUF version", where=str(path), expected="version 2 or 3, little-endian", got=got)
        tensor_count, value_count = reader.count("tensors"), reader.count("metadata")
        metadata: dict[str, Any] = {}
        for _ in range(value_count):
            key = reader.name()
            value = reader.value(reader.number("I"))
            if key in metadata:
                raise reader.error(f"corrupt GGUF header: metadata {key} is given twice")
            metadata[key] = value
        entries = [_entry(reader) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise reader.error("corrupt GGUF header: general.alignment", "a power of two", str(alignment))
        base = -(-reader.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, block, offset in entries:
            if name in tensors:
                raise reader.error(f"corrupt GGUF header: tensor {name} is given twice")
            tensors[name] = _tensor(reader, name, shape, block, base + offset)
        # All of it, unless it holds more than any vocabulary: then its ends, of which the second lists the tensors.
        identity = file_identity(path, data[: min(reader.at, LONGEST_END)] + data[max(0, reader.at - LONGEST_END) : reader.at])
    return GgufFile(path, {k: v for k, v in metadata.items() if v is not None}, tensors, identity)


def _entry(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """One tensor's name, shape (outermost first), block type and offset, as the header gives them."""
    name, rank = reader.name(), reader.number("I")
    if not 1 <= rank <= 4:
        raise reader.error(f"corrupt GGUF header: tensor {name} has rank {rank}", "1 to 4")
    shape = tuple(reader.number("Q") for _ in range(rank))
    return name, shape[::-1], reader.number("I"), reader.number("Q")


def _tensor(reader: _Reader, name: str, shape: tuple[int, ...], block: int, offset: int) -> GgufTensor:
    """The checked tensor: its type is known, rows are whole blocks, and its data lie inside the file."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(block)
    except ValueError as error:
        raise reader.error(f"tensor {name} has block type {block}, which the gguf package does not know") from error
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if prod(shape) == 0 or shape[-1] % elements:
        raise reader.error(f"corrupt GGUF header: tensor {name} of {kind.name}", f"rows of whole blocks of {elements}", f"shape {shape}")
    total = prod(shape) // elements * size
    if offset + total > len(reader.data):
        raise reader.error(
            f"truncated GGUF file: tensor {name} ends past the end", f"{offset + total} bytes or more", f"{len(reader.data)} bytes"
        )
    return GgufTensor(reader.path, name, shape, kind.name.lower(), block, offset, total)

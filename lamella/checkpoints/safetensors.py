"""Tensors of a Hugging Face folder: `model.safetensors`, or shards and their index, enter; memory-mapped torch tensors leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, cast

from lamella.checkpoints.source import LOADABLE, StoredTensor, digest, file_identity, known, match_tensors, torch_dtype
from lamella.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
AGAIN = "download the file again"
HEADER_LIMIT = 25_000_000
"""Bytes of a header or an index: some 200,000 tensors. JSON of empty lists takes thirty times its size once it is read."""

# Sizes in bytes of the format's element types; a type that is not here (sub-byte ones) has no size to check.
TYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


def has_safetensors(folder: Path) -> bool:
    """Whether the folder holds weights that `SafetensorsSource.open` reads."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


BUFFERS = ("rotary_emb.inv_freq", ".attention.masked_bias")
"""Ends of the names of tensors that old exporters wrote and no model needs."""


@dataclass(frozen=True)
class SafetensorsSource:
    """The tensors of one folder. Make it with `open`, which reads and checks every header and no data."""

    folder: Path
    tensors: Mapping[str, StoredTensor]
    """By canonical name."""
    identity: str
    _files: dict[Path, Any] = field(default_factory=dict[Path, Any], repr=False, compare=False)

    @classmethod
    def open(
        cls,
        folder: Path,
        names: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        buffers: tuple[str, ...] = (),
        prefix: str = "",
        elements: tuple[str, ...] = LOADABLE,
        headers: tuple[Mapping[str, StoredTensor], Sequence[str]] | None = None,
    ) -> SafetensorsSource:
        """
        `names` maps canonical names to those in the files, `shapes` canonical names to what the configuration implies. Tensors whose names
        end like one of `buffers` are no surprise. Where no stored name starts with `prefix`, none is expected to. `elements` are the types
        that tensors may have; what `load` cannot read, `stored` can. `headers` is what `stored_tensors` says of the folder, where it was asked.
        Raises CheckpointError for corrupt, truncated or missing files, TensorError and DtypeError as `match_tensors` says.
        """
        found, identities = stored_tensors(folder) if headers is None else headers
        if prefix and not any(name.startswith(prefix) for name in found):
            names = {canonical: name.removeprefix(prefix) for canonical, name in names.items()}
        harmless = (*BUFFERS, *buffers)
        matched = match_tensors(
            found, names, shapes, where=folder, loadable=elements.__contains__, harmless=lambda name: name.endswith(harmless)
        )
        return cls(folder, matched, digest(identities))

    def names(self) -> list[str]:
        return sorted(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return known(self.tensors, name).shape

    def dtype(self, name: str) -> str:
        return known(self.tensors, name).dtype

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        tensor = known(self.tensors, name)
        target = torch_dtype(dtype or tensor.dtype)
        # safe_open maps the file and hands out views; moving to a device reads through the map once.
        return self._open(tensor.file).get_tensor(tensor.name).to(device=device, dtype=target).contiguous()

    def stored(self, name: str) -> torch.Tensor:
        """A tensor as the file has it, of any element type, a private memory map. Raises TensorError, CheckpointError."""
        tensor = known(self.tensors, name)
        return self._open(tensor.file).get_tensor(tensor.name)

    def fingerprint(self) -> str:
        return self.identity

    def describe(self) -> dict[str, object]:
        names = {canonical: self.tensors[canonical].name for canonical in self.names()}
        return {"kind": "safetensors", "path": str(self.folder.resolve()), "names": names, "fingerprint": self.identity}

    def _open(self, file: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._files:
            try:
                self._files[file] = safe_open(str(file), framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"cannot be read: {error}", where=str(file)) from error
        return self._files[file]


def stored_tensors(folder: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """
    Every tensor of a folder by its stored name, and the identities of its files: headers are read and checked, no data.
    Raises CheckpointError for corrupt, truncated or missing files.
    """
    files, index = _files_of(folder)
    stored: dict[str, StoredTensor] = {}
    identities: list[str] = []
    for file in files:
        tensors, header = read_header(file)
        for name, tensor in tensors.items():
            if name in stored:
                raise CheckpointError(f"tensor {name} is stored twice", where=str(file), got=f"another in {stored[name].file.name}")
            stored[name] = tensor
        identities.append(file_identity(file, header))
    for name, file in index.items():
        if name not in stored or stored[name].file != file:
            raise CheckpointError(f"the index places tensor {name} in {file.name}, which does not hold it", where=str(folder / INDEX))
    return stored, identities


def read_header(file: Path) -> tuple[dict[str, StoredTensor], bytes]:
    """
    The tensors that one file's header lists, by the file's names, and the header's bytes. The format: an eight-byte little-endian
    length, that many bytes of JSON, then the data. Raises CheckpointError when header and file size do not agree.
    """
    where = str(file)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            header = stream.read(length) if len(prefix) == 8 and length <= min(HEADER_LIMIT, size) else b""
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=where) from error
    if len(prefix) == 8 and not (header.startswith(b"{") or size < 8 + length <= HEADER_LIMIT):
        raise CheckpointError("not a safetensors file", where=where, expected="a JSON header", remedy=AGAIN)
    if len(prefix) < 8 or len(header) < length:
        expected = f"{8 + length if len(prefix) == 8 else 8} bytes or more"
        raise CheckpointError("truncated safetensors header", where=where, expected=expected, got=f"{size} bytes", remedy=AGAIN)
    try:
        entries = json.loads(header, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"corrupt safetensors header: {error}", where=where, remedy=AGAIN) from error
    tensors: dict[str, StoredTensor] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in cast(dict[str, Any], entries).items():
        if name != "__metadata__":
            tensors[name], begin, end = _stored(file, name, entry)
            places.append((begin, end, name))
    end = 0
    for begin, after, name in sorted(places):
        if begin != end:
            what = f"corrupt safetensors header: tensor {name} {'overlaps the one before it' if begin < end else 'leaves a gap before it'}"
            raise CheckpointError(what, where=where, expected=f"data from byte {end} on", got=str(begin), remedy=AGAIN)
        end = after
    if 8 + length + end != size:
        what = "truncated safetensors file" if size < 8 + length + end else "safetensors file with bytes its header does not name"
        raise CheckpointError(what, where=where, expected=f"{8 + length + end} bytes", got=f"{size} bytes", remedy=AGAIN)
    return tensors, header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError for a name given twice, of which readers keep either."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = value
    return found


def _is_file(path: Path) -> bool:
    """Whether there is such a file; there is none whose name is too long for one."""
    try:
        return path.is_file()
    except OSError:
        return False


def _stored(file: Path, name: str, entry: Any) -> tuple[StoredTensor, int, int]:
    """One header entry and the offsets between which its data lie, or CheckpointError."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        sound = whole and isinstance(dtype, str) and begin <= end
        sound = sound and (dtype not in TYPE_BYTES or prod(shape) * TYPE_BYTES[dtype] == end - begin)
    except (TypeError, KeyError, ValueError):
        sound = False
        dtype, shape, begin, end = "", (), 0, 0
    if not sound:
        what = f"corrupt safetensors header: tensor {name} has no consistent type, shape and place"
        raise CheckpointError(what, where=str(file), remedy=AGAIN)
    short = dtype.lower() if dtype in ("F32", "F16", "BF16") else dtype
    return StoredTensor(file, name, tuple(shape), short), begin, end


def _files_of(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The folder's tensor files, and where its index (if any) places each tensor."""
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        return [single], {}
    where = str(index)
    try:
        with index.open("rb") as stream:
            text = stream.read(HEADER_LIMIT + 1)
        if len(text) > HEADER_LIMIT:
            raise CheckpointError("the index is too large", where=where, expected=f"at most {HEADER_LIMIT} bytes", remedy=AGAIN)
        content = json.loads(text)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"malformed index: {error}", where=where, remedy=AGAIN) from error
    places = cast(dict[str, Any], content).get("weight_map") if isinstance(content, dict) else None
    files = cast(dict[str, Any], places).items() if isinstance(places, dict) else ()
    if not files or not all(isinstance(file, str) for _, file in files):
        raise CheckpointError("malformed index", where=where, expected="a weight_map from tensor names to file names", remedy=AGAIN)
    placed: dict[str, Path] = {}
    for name, file in files:
        # Only the spelling is judged: the hub's cache keeps symbolic links to a folder beside this one.
        parts = PureWindowsPath(file).parts
        if PurePosixPath(file).is_absolute() or PureWindowsPath(file).drive or PureWindowsPath(file).root or ".." in parts or not parts:
            raise CheckpointError(f"the index places tensor {name} outside the folder", where=where, expected="a file name", got=file)
        placed[name] = folder / file
    shards = sorted(set(placed.values()))
    for shard in shards:
        if not _is_file(shard):
            raise CheckpointError("a file that the index names is missing", where=where, expected=shard.name, remedy=AGAIN)
    return shards, placed

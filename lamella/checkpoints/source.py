"""What every source of weights offers: a canonical tensor name enters, a torch tensor leaves; and the checks they share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from lamella.errors import DtypeError, TensorError, nearest

if TYPE_CHECKING:
    import torch

# torch is imported where a tensor is first made, not here: a bad path or a truncated file should be reported in a
# tenth of a second, and reading a header needs no tensor library.

LOADABLE = ("f32", "f16", "bf16")
"""Element types `TensorSource.load` can produce."""


class TensorSource(Protocol):
    """A read-only collection of named tensors. Names are canonical (`layers.3.attn.q_proj`), whatever the file calls them."""

    def names(self) -> list[str]:
        """Canonical names, sorted."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in elements, outermost axis first. Raises TensorError for an unknown name."""
        ...

    def dtype(self, name: str) -> str:
        """How the tensor is stored: `f32`, `f16`, `bf16`, or a lower-case GGUF block type such as `q4_1`."""
        ...

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        """
        The contiguous tensor in `dtype` (`f32 f16 bf16`; None: as stored, f32 for quantized blocks) on `device`.
        It may be a private memory map of the file when nothing needs converting. Raises TensorError, DtypeError, CheckpointError.
        """
        ...

    def fingerprint(self) -> str:
        """A cheap identity of the content: equal fingerprints mean equal tensors, without reading them."""
        ...

    def describe(self) -> dict[str, object]:
        """JSON from which `open_source` makes this source again."""
        ...


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as a file's header describes it."""

    file: Path
    name: str
    """The file's own name for it."""
    shape: tuple[int, ...]
    dtype: str
    """An element of LOADABLE, or the format's own name of another type."""


Stored = TypeVar("Stored", bound=StoredTensor)


def match_tensors(
    stored: Mapping[str, Stored],
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]] | None,
    *,
    where: Path,
    loadable: Callable[[str], bool],
    harmless: Callable[[str], bool],
) -> dict[str, Stored]:
    """
    Pairs each canonical name with its stored tensor: `names` maps canonical to stored names, `shapes` gives expected shapes.
    Without `shapes` (weights of a compiled package) neither shapes nor unexpected tensors are checked.
    Raises TensorError for a missing, misshapen or unexpected tensor, DtypeError for an element type `loadable` refuses.
    """
    matched: dict[str, Stored] = {}
    for canonical, name in names.items():
        if name not in stored:
            raise TensorError(f"tensor {name} ({canonical}) is missing", where=str(where), remedy=_hint(name, stored))
        matched[canonical] = stored[name]
    # Element types come before shapes: a quantized checkpoint is then called that, not misshapen.
    for tensor in matched.values():
        if not loadable(tensor.dtype):
            raise DtypeError(
                f"tensor {tensor.name} has an element type that cannot be read",
                where=str(tensor.file),
                expected="f32, f16, bf16 or GGUF blocks",
                got=tensor.dtype,
                remedy="convert the checkpoint to bfloat16 first",
            )
    if shapes is None:
        return matched
    for canonical, tensor in matched.items():
        if tensor.shape != shapes[canonical]:
            raise TensorError(
                f"tensor {tensor.name} ({canonical}) has the wrong shape",
                where=str(tensor.file),
                expected=str(shapes[canonical]),
                got=str(tensor.shape),
                remedy="the configuration and the weights are of different models",
            )
    wanted = set(names.values())
    for name, tensor in stored.items():
        if name not in wanted and not harmless(name):
            raise TensorError(
                f"unexpected tensor {name}",
                where=str(tensor.file),
                expected=f"the {len(wanted)} tensors its configuration implies",
                remedy="a model with more parts than its architecture has is not supported",
            )
    return matched


def known(tensors: Mapping[str, Stored], name: str) -> Stored:
    """The tensor of a canonical name. Raises TensorError that names the nearest ones."""
    if name not in tensors:
        raise TensorError(f"no tensor is called {name}", remedy=nearest(name, tensors))
    return tensors[name]


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of `f32`, `f16` or `bf16`. Raises DtypeError for any other."""
    import torch

    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    if name not in types:
        raise DtypeError("weights cannot be loaded in this element type", expected=", ".join(LOADABLE), got=name)
    return types[name]


def digest(parts: Iterable[object]) -> str:
    """A short stable hash of the texts of `parts`, which must not depend on the order of a set or on `id()`."""
    text = "\0".join(p.hex() if isinstance(p, bytes) else str(p) for p in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_identity(file: Path, header: bytes) -> str:
    """The identity of one file: path, size, time of change, and the hash of its header."""
    status = file.stat()
    return digest([file.resolve(), status.st_size, status.st_mtime_ns, hashlib.sha256(header).digest()])


def _hint(name: str, stored: Mapping[str, StoredTensor]) -> str:
    if not stored:
        return "the file holds no tensors"
    # All names of a big checkpoint would not be one clear line.
    hint = nearest(name, stored)
    return hint if hint.startswith("nearest") else f"the file holds {len(stored)} tensors, e.g. {min(stored)}"

"""A compiled program as plain data: `manifest.json` enters or leaves as frozen dataclasses (no torch, no compiler).

`docs/architecture.md` fixes the schema. `lowering/manifest.py` builds these classes (or the JSON), the executors read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from lamella.errors import ManifestError, nearest

FORMAT = 1
FILE_NAME = "manifest.json"
POOLS = ("arena", "input", "weight", "constant", "cache", "scales")
LAYERED = ("cache", "scales")
"""Pools that have a tensor for each layer: caches, and scales of caches of float8."""
DTYPE_BYTES: Mapping[str, int] = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8": 1, "i64": 8, "i32": 4, "i8": 1, "i1": 1}

T = TypeVar("T")


@dataclass(frozen=True)
class Ref:
    """Where an argument lives: a range of the arena, or a named input, weight, constant or the cache (or its scales) of one layer."""

    pool: str
    name: str = ""
    offset: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    layer: int = 0

    @property
    def bytes(self) -> int:
        """Size of an arena range in bytes."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """Only the fields that mean something in this pool."""
        if self.pool == "arena":
            return {"pool": "arena", "offset": self.offset, "dtype": self.dtype, "shape": list(self.shape)}
        return {"pool": self.pool, "layer": self.layer} if self.pool in LAYERED else {"pool": self.pool, "name": self.name}


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `args` are the region's inputs, then one out per yielded value; `dead` are arena ranges it is the last to use.

    An `ordered` launch starts when all before it have ended, whatever its kernel could do earlier.
    """

    kernel: str
    grid: tuple[int, ...]
    args: tuple[Ref, ...]
    loc: str = ""
    dead: tuple[tuple[int, int], ...] = ()
    ordered: bool = False


DESCRIBED = ("bf16", "f16", "f8", "i8", "i32")
"""Element types of what is read through descriptors; of words (i32) the bytes are."""
LIBRARY_OPERANDS = ("x", "weight", "residual", "bias")
"""What a call of a library of matrix products takes: x @ weightᵀ, and at most one of the others, added before the sums are rounded."""


@dataclass(frozen=True)
class Descriptor:
    """An argument that a kernel reads through a tensor descriptor, in blocks of so many rows and columns: a matrix where its REF says."""

    argument: int
    block: tuple[int, int]


@dataclass(frozen=True)
class Kernel:
    """One distinct region: its printed file (relative to the manifest), how to launch it, and its body as a list of ops.

    Where `library` is not empty the region has no file: it is one call of a library of matrix products, of which `library` says which input is what.
    """

    file: str
    inputs: int
    body: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 1
    max_registers: int = 0
    """That a thread may take; 0: any number."""
    sources: tuple[str, ...] = ()
    library: Mapping[str, int] = field(default_factory=dict[str, int])
    descriptors: tuple[Descriptor, ...] = ()


@dataclass(frozen=True)
class Input:
    """A tensor the host fills before a step."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """A named result of a step and where it lies."""

    name: str
    ref: Ref


@dataclass(frozen=True)
class Bucket:
    """One specialization: its key (tokens, sequences, longest query, logit rows), memory sizes in bytes, and its launches in order."""

    tokens: int
    sequences: int
    longest_query: int
    logit_rows: int
    arena_bytes: int
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    launches: tuple[Launch, ...]
    advance: bool = False
    buffer_bytes: int = 0
    max_live_bytes: int = 0

    @property
    def key(self) -> tuple[int, int, int, int, bool]:
        """What distinguishes the bucket from all others of the manifest."""
        return (self.tokens, self.sequences, self.longest_query, self.logit_rows, self.advance)

    @cached_property
    def refs(self) -> Mapping[str, Ref]:
        """Output name -> where it lies."""
        return {o.name: o.ref for o in self.outputs}


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of the model, for checks and reports."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    eos: tuple[int, ...] = ()


@dataclass(frozen=True)
class CacheSpec:
    """The paged cache: per layer `[blocks, 2, kv_heads, block, head_dim]`; `paired` leading dimensions of a head lie in paired order.

    `scales`: the element type of `[blocks, 2, kv_heads, block, 1]` beside it, which a cache of float8 has; empty: there are none.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block: int
    dtype: str
    blocks_per_sequence: int
    paired: int = 0
    scales: str = ""

    def shape(self, pool: str, blocks: int) -> tuple[int, int, int, int, int]:
        """Of a layer's tensor in one of the pools LAYERED."""
        return blocks, 2, self.kv_heads, self.block, self.head_dim if pool == "cache" else 1

    def element(self, pool: str) -> str:
        """The element type of that."""
        return self.dtype if pool == "cache" else self.scales

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools LAYERED that there are."""
        return LAYERED if self.scales else LAYERED[:1]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers, scales included."""
        return self.layers * sum(prod(self.shape(pool, 1)) * DTYPE_BYTES[self.element(pool)] for pool in self.pools)


@dataclass(frozen=True)
class SourceSpec:
    """A checkpoint tensor that a transform reads, by its canonical name; `dtype` is what it is loaded in."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightSpec:
    """A weight: the checkpoint's tensor of its name, or (with `sources`) what the body `transform` yields for them, once, at load time."""

    dtype: str
    shape: tuple[int, ...]
    sources: tuple[SourceSpec, ...] = ()
    transform: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class ConstantSpec:
    """A tensor computed once at load time by an op without operands."""

    dtype: str
    shape: tuple[int, ...]
    op: str
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Manifest:
    """A whole compiled program: everything an executor needs, except kernel files and weights."""

    target: str
    dtype: str
    max_context: int
    model: ModelSpec
    cache: CacheSpec
    weights: Mapping[str, WeightSpec]
    constants: Mapping[str, ConstantSpec]
    kernels: Mapping[str, Kernel]
    buckets: tuple[Bucket, ...]
    format: int = FORMAT

    @property
    def uses_library(self) -> bool:
        """Whether some region is a call of a library of matrix products."""
        return any(kernel.library for kernel in self.kernels.values())

    @property
    def arena_bytes(self) -> int:
        """Size of the one arena all buckets share."""
        return max((b.arena_bytes for b in self.buckets), default=0)

    def to_json(self) -> dict[str, Any]:
        """The dictionary `json.dump` writes; `from_json` is its inverse."""
        out = _encode(self)
        return {"format": out.pop("format"), **out}

    @staticmethod
    def from_json(data: Any) -> Manifest:
        """The manifest in parsed JSON. Raises ManifestError when it is incomplete, of another format, or refers to what it lacks."""
        fields_ = _object(data, FILE_NAME)
        if fields_.get("format") != FORMAT:
            got = str(fields_.get("format", "none"))
            raise ManifestError("is of another format", where=FILE_NAME, expected=str(FORMAT), got=got, remedy="compile again")
        manifest: Manifest = _decode(Manifest, fields_, FILE_NAME)
        for name, kernel in manifest.kernels.items():
            _check_body(kernel.body, kernel.inputs, f"{FILE_NAME}: kernels.{name}.body")
            _check_library(kernel, f"{FILE_NAME}: kernels.{name}.library")
            _check_descriptors(kernel, f"{FILE_NAME}: kernels.{name}.descriptors")
        for name, weight in manifest.weights.items():
            if weight.sources or weight.transform:
                _check_body(weight.transform, len(weight.sources), f"{FILE_NAME}: weights.{name}.transform")
        for i, bucket in enumerate(manifest.buckets):
            _check_bucket(manifest, bucket, f"{FILE_NAME}: buckets[{i}]")
        return manifest

    def save(self, folder: str | Path) -> Path:
        """Writes `manifest.json` into `folder`, which exists; returns its path."""
        path = Path(folder) / FILE_NAME
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        return path


def load(folder: str | Path) -> Manifest:
    """The manifest of a compiled package. Raises ManifestError when the file is missing or malformed."""
    path = Path(folder) / FILE_NAME
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ManifestError("cannot be read", where=str(path), got=error.strerror, remedy="lamella compile MODEL -o DIR") from error
    except ValueError as error:
        raise ManifestError("is not JSON", where=str(path), got=str(error)) from error
    manifest = Manifest.from_json(data)
    for name, kernel in manifest.kernels.items():
        if kernel.file and not (Path(folder) / kernel.file).is_file():
            raise ManifestError(f"kernel {name!r} has no file", where=str(path), expected=kernel.file)
    return manifest


def _check_body(body: Mapping[str, Any], args: int, where: str) -> None:
    missing = [k for k in ("args", "ops", "yields") if k not in body]
    if missing:
        raise ManifestError(f"field {missing[0]!r} is missing", where=where)
    if body["args"] != args:
        raise ManifestError("wrong number of args", where=where, expected=str(args), got=str(body["args"]))


def _check_library(kernel: Kernel, where: str) -> None:
    if not kernel.library:
        return
    if not {"x", "weight"} <= kernel.library.keys() <= {*LIBRARY_OPERANDS} or len(kernel.library) > 3:
        expected, got = "x, weight and at most one of residual, bias", ", ".join(kernel.library)
        raise ManifestError("no call of a library", where=where, expected=expected, got=got)
    if kernel.file or len(kernel.body["yields"]) != 1 or not all(0 <= i < kernel.inputs for i in kernel.library.values()):
        raise ManifestError("no call of a library", where=where, expected=f"no file, one result and inputs below {kernel.inputs}")


def _check_descriptors(kernel: Kernel, where: str) -> None:
    arguments = [descriptor.argument for descriptor in kernel.descriptors]
    if len(set(arguments)) < len(arguments) or not all(0 <= i < kernel.inputs for i in arguments):
        raise ManifestError("a descriptor of no input", where=where, expected=f"different ones below {kernel.inputs}", got=str(arguments))
    odd = next((d.block for d in kernel.descriptors if any(n < 1 or n & (n - 1) for n in d.block)), None)
    if odd is not None:
        raise ManifestError("a descriptor of odd blocks", where=where, expected="powers of two", got=str(list(odd)))


def _check_described(manifest: Manifest, bucket: Bucket, launch: Launch, where: str) -> None:
    """What descriptors refer to: matrices of numbers of 16 or 8 bits, or of words of bytes, whose rows begin at multiples of 16 bytes."""
    for descriptor in manifest.kernels[launch.kernel].descriptors:
        ref = launch.args[descriptor.argument]
        given = {i.name: i for i in bucket.inputs}
        named = {"input": given, "weight": manifest.weights, "constant": manifest.constants}.get(ref.pool, {})
        dtype, shape = (named[ref.name].dtype, named[ref.name].shape) if ref.name in named else (ref.dtype, ref.shape)
        if dtype not in DESCRIBED or len(shape) != 2 or shape[1] * DTYPE_BYTES[dtype] % 16 or ref.offset % 16:
            expected, got = (
                f"a matrix in {', '.join(DESCRIBED)} whose rows begin at multiples of 16 bytes",
                f"{list(shape)} {dtype} at {ref.offset}",
            )
            raise ManifestError("no descriptor can be made", where=f"{where}.args[{descriptor.argument}]", expected=expected, got=got)


def _check_bucket(manifest: Manifest, bucket: Bucket, where: str) -> None:
    inputs = {i.name for i in bucket.inputs}
    for output in bucket.outputs:
        _check_ref(manifest, bucket, inputs, output.ref, f"{where}.outputs[{output.name}]")
    for i, launch in enumerate(bucket.launches):
        here = f"{where}.launches[{i}]"
        kernel = manifest.kernels.get(launch.kernel)
        if kernel is None:
            raise ManifestError(f"unknown kernel {launch.kernel!r}", where=here, remedy=nearest(launch.kernel, manifest.kernels))
        if kernel.library and bucket.advance:
            raise ManifestError("a decode step calls no library", where=here, got=launch.kernel)
        expected, got = kernel.inputs + len(kernel.body["yields"]), len(launch.args)
        if got != expected:
            raise ManifestError(f"wrong number of args for {launch.kernel!r}", where=here, expected=str(expected), got=str(got))
        for j, ref in enumerate(launch.args):
            _check_ref(manifest, bucket, inputs, ref, f"{here}.args[{j}]")
        _check_described(manifest, bucket, launch, here)
        for offset, size in launch.dead:
            if offset < 0 or offset + size > bucket.arena_bytes:
                raise ManifestError("dead range lies outside the arena", where=here, expected=f"within {bucket.arena_bytes} bytes")


def _check_ref(manifest: Manifest, bucket: Bucket, inputs: set[str], ref: Ref, where: str) -> None:
    if ref.pool not in POOLS:
        raise ManifestError(f"unknown pool {ref.pool!r}", where=where, remedy=nearest(ref.pool, POOLS))
    if ref.pool in LAYERED:
        if ref.pool not in manifest.cache.pools:
            raise ManifestError("a cache without scales has none to refer to", where=where)
        if not 0 <= ref.layer < manifest.cache.layers:
            raise ManifestError("no such cache layer", where=where, expected=f"below {manifest.cache.layers}", got=str(ref.layer))
        return
    if ref.pool == "arena":
        if ref.dtype not in DTYPE_BYTES:
            raise ManifestError("unknown dtype", where=where, expected="/".join(DTYPE_BYTES), got=repr(ref.dtype))
        if ref.offset < 0 or ref.offset % DTYPE_BYTES[ref.dtype] or ref.offset + ref.bytes > bucket.arena_bytes:
            raise ManifestError("range is misaligned or outside the arena", where=where, expected=f"within {bucket.arena_bytes} bytes")
        return
    known = {"input": inputs, "weight": manifest.weights, "constant": manifest.constants}[ref.pool]
    if ref.name not in known:
        raise ManifestError(f"unknown {ref.pool} {ref.name!r}", where=where, remedy=nearest(ref.name, known))


def _encode(value: Any) -> Any:
    if isinstance(value, Ref):
        return value.to_json()
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _encode(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encode(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _decode(type_: Any, value: Any, where: str) -> Any:
    """`value` (parsed JSON) as an instance of the annotation `type_`; every mismatch is a ManifestError that says where."""
    origin, parameters = get_origin(type_), get_args(type_)
    if type_ is Any:
        return value
    if isinstance(type_, type) and is_dataclass(type_):
        return _decode_object(type_, value, where)
    if origin is tuple:
        return _decode_tuple(parameters, value, where)
    if origin is not None:  # Mapping[str, X]
        return {k: _decode(parameters[1], v, f"{where}.{k}") for k, v in _object(value, where).items()}
    kind = cast("type[object]", type_)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ManifestError("wrong type", where=where, expected=kind.__name__, got=type(value).__name__)
    return value  # pyright: ignore[reportUnknownVariableType]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ManifestError("wrong type", where=where, expected="an object", got=type(value).__name__)
    return cast("dict[str, Any]", value)


def _decode_tuple(parameters: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ManifestError("wrong type", where=where, expected="a list", got=type(value).__name__)
    items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    if parameters[-1] is Ellipsis:
        return tuple(_decode(parameters[0], v, f"{where}[{i}]") for i, v in enumerate(items))
    if len(items) != len(parameters):
        raise ManifestError("wrong length", where=where, expected=str(len(parameters)), got=str(len(items)))
    return tuple(_decode(p, v, f"{where}[{i}]") for i, (p, v) in enumerate(zip(parameters, items, strict=True)))


def _decode_object(cls: type[T], value: Any, where: str) -> T:
    data = _object(value, where)
    separator = ": " if where == FILE_NAME else "."
    declared = {f.name: f for f in fields(cls)}  # pyright: ignore[reportArgumentType]
    for name in data:
        if name not in declared:
            raise ManifestError(f"unknown field {name!r}", where=where, remedy=nearest(name, declared))
    for name, f in declared.items():
        if name not in data and f.default is MISSING and f.default_factory is MISSING:
            raise ManifestError(f"field {name!r} is missing", where=where)
    hints = _hints(cls)
    return cls(**{name: _decode(hints[name], v, f"{where}{separator}{name}") for name, v in data.items()})

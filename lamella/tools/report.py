"""A manifest goes in; tables of memory, kernels, weights, cache and compile time leave."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from lamella.runtime.manifest import DTYPE_BYTES, Bucket, Manifest
from lamella.tools.explain import byte_size
from lamella.tools.text_table import TextTable

if TYPE_CHECKING:
    from lamella.tools.cross_compile import KernelResources


def as_manifest(value: Any) -> Manifest:
    """A manifest, parsed if it is still JSON. Raises ManifestError."""
    return value if isinstance(value, Manifest) else Manifest.from_json(value)


def bucket_name(bucket: Bucket) -> str:
    """`1 token`, or `64 tokens of 4, 1 row`: the bucket's key for people."""
    tokens = f"{bucket.tokens} token{'s' * (bucket.tokens != 1)}"
    if bucket.sequences != 1:
        tokens += f" of {bucket.sequences} sequences"
    return f"{tokens}{' (decode)' if bucket.advance else ''}"


def model_line(manifest: Manifest) -> str:
    """What was compiled, in one line."""
    m = manifest.model
    heads = f"{m.heads} heads" if m.heads == m.kv_heads else f"{m.heads} heads on {m.kv_heads} of keys and values"
    shape = f"{m.layers} layers, hidden {m.hidden}, {heads} of {m.head_dim}, ffn {m.ffn}, vocabulary {m.vocabulary}"
    return f"{m.family}: {shape}; {manifest.dtype}, contexts up to {manifest.max_context}, kernels for {manifest.target}"


def memory_table(manifest: Manifest) -> TextTable:
    """Per bucket: launches, arena bytes, and what they compare with."""
    header = ("bucket", "launches", "arena", "sum of buffers", "arena / sum", "max live", "arena / max live")
    rows: list[list[str]] = []
    for bucket in manifest.buckets:
        sizes = (byte_size(bucket.arena_bytes), byte_size(bucket.buffer_bytes), _ratio(bucket.arena_bytes, bucket.buffer_bytes))
        bound = (byte_size(bucket.max_live_bytes), _ratio(bucket.arena_bytes, bucket.max_live_bytes))
        rows.append([bucket_name(bucket), str(len(bucket.launches)), *sizes, *bound])
    return TextTable("Memory of a step (no arena can be smaller than what is alive at once, max live)", header, rows, frozenset(header[1:]))


def storage_table(manifest: Manifest) -> TextTable:
    """Bytes of weights, constants, arena and cache."""
    rows = [[f"weights, {dtype}", byte_size(size)] for dtype, size in sorted(weight_bytes(manifest).items())]
    constants = sum(prod(c.shape) * DTYPE_BYTES[c.dtype] for c in manifest.constants.values())
    per_token = manifest.cache.block_bytes // manifest.cache.block
    rows += [
        ["constants", byte_size(constants)],
        ["arena, shared by all buckets", byte_size(manifest.arena_bytes)],
        [f"cache, {manifest.cache.dtype}, a token", byte_size(per_token)],
        [f"cache, {manifest.cache.dtype}, a sequence of {manifest.max_context} tokens", byte_size(per_token * manifest.max_context)],
    ]
    return TextTable("Memory that stays", ("what", "size"), rows, frozenset({"size"}))


SCALES = "scales"
"""What scales and least values of packed weights are called."""


def weight_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes of the weights as they lie in memory: floats by dtype, packed ones by kind (`int4`), scales and least values together."""
    packed, sums = packed_weights(manifest), Counter[str]()
    for name, weight in manifest.weights.items():
        sums[packed.get(name, weight.dtype)] += prod(weight.shape) * DTYPE_BYTES[weight.dtype]
    return dict(sums)


def packed_weights(manifest: Manifest) -> dict[str, str]:
    """The weights that some kernel unpacks, whole or rows of them, by name: the kind of words, SCALES for what stands beside them."""
    found: dict[str, str] = {}
    for bucket in manifest.buckets:
        for launch in bucket.launches:
            kernel = manifest.kernels[launch.kernel]
            tables: dict[int, int] = {}
            for op, operands, attributes, results in kernel.body["ops"]:
                if op == "tile.gather":
                    tables[int(results[0])] = int(operands[0])
                if op != "tile.dequantize":
                    continue
                for place, operand in enumerate(tables.get(int(each), int(each)) for each in operands):
                    ref = launch.args[operand] if operand < kernel.inputs else None
                    if ref is not None and ref.pool == "weight":
                        found[ref.name] = SCALES if place else str(attributes["packing"]["kind"])
    return found


def kernel_table(manifest: Manifest, figures: Mapping[str, KernelResources] | None = None) -> TextTable:
    """Per kernel: launches a step (`30+30` where two buckets share it), warps, what it was made of, and (with `figures` of a
    cross-compilation) registers and spilled bytes of a thread and shared memory of a program."""
    numbers = ("launches", "warps", *(("registers", "spills", "shared memory") if figures is not None else ()))
    counts = [Counter(launch.kernel for launch in bucket.launches) for bucket in manifest.buckets]
    rows: list[list[str]] = []
    for name, kernel in sorted(manifest.kernels.items(), key=lambda item: _natural(item[0])):
        row = [name, "+".join(str(count[name]) for count in counts if count[name]), "library" if kernel.library else str(kernel.num_warps)]
        if figures is not None and kernel.library:
            row += ["", "", ""]
        elif figures is not None:
            figure = figures[name]
            row += [str(figure.registers), f"{figure.spills} B", byte_size(figure.shared_memory)]
        rows.append([*row, made_of(kernel.sources)])
    return TextTable("Kernels", ("kernel", *numbers, "made of"), rows, frozenset(numbers))


def _natural(name: str) -> list[tuple[str, int]]:
    """A key that puts t16 after t1 and before t128."""
    return [(word, int(number or 0)) for word, number in re.findall(r"([^0-9]*)([0-9]*)", name)]


def made_of(sources: tuple[str, ...]) -> str:
    """The ops of a region in order, repeats counted: `rms_norm, linear x3`."""
    counts = Counter(sources)
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.items())


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else ""


def timing_table(timings: Sequence[tuple[str, float]]) -> TextTable:
    """Seconds of each pass, runs for several buckets added up, the slowest first."""
    sums: dict[str, float] = {}
    for name, seconds in timings:
        sums[name] = sums.get(name, 0.0) + seconds
    rows = [[name, f"{seconds:.3f}"] for name, seconds in sorted(sums.items(), key=lambda item: -item[1])]
    return TextTable("Passes", ("pass", "seconds"), [*rows, ["all", f"{sum(sums.values()):.3f}"]], frozenset({"seconds"}))

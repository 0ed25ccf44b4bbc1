"""A manifest goes in; tables of memory, kernels, weights and cache leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from lamella.runtime.manifest import DTYPE_BYTES, Bucket, Manifest
from lamella.tools.explain import byte_size

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


def memory_table(manifest: Manifest) -> Table:
    """Per bucket: launches, arena bytes, and what they compare with."""
    table = Table(title="Memory of a step", title_justify="left")
    table.add_column("bucket")
    for column in ("launches", "arena", "sum of buffers", "arena / sum", "max live (lower bound)", "arena / bound"):
        table.add_column(column, justify="right")
    for bucket in manifest.buckets:
        sizes = (byte_size(bucket.arena_bytes), byte_size(bucket.buffer_bytes), _ratio(bucket.arena_bytes, bucket.buffer_bytes))
        bound = (byte_size(bucket.max_live_bytes), _ratio(bucket.arena_bytes, bucket.max_live_bytes))
        table.add_row(bucket_name(bucket), str(len(bucket.launches)), *sizes, *bound)
    return table


def storage_table(manifest: Manifest) -> Table:
    """Bytes of weights, constants, arena and cache."""
    table = Table(title="Memory that stays", title_justify="left")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for dtype, size in sorted(weight_bytes(manifest).items()):
        table.add_row(f"weights, {dtype}", byte_size(size))
    constants = sum(prod(c.shape) * DTYPE_BYTES[c.dtype] for c in manifest.constants.values())
    table.add_row("constants", byte_size(constants))
    table.add_row("arena, shared by all buckets", byte_size(manifest.arena_bytes))
    per_token = manifest.cache.block_bytes // manifest.cache.block
    table.add_row(f"cache, a token ({manifest.cache.dtype})", byte_size(per_token))
    table.add_row(f"cache, a sequence of {manifest.max_context} tokens", byte_size(per_token * manifest.max_context))
    return table


def weight_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes of the weights by dtype, as they lie in memory."""
    sums: Counter[str] = Counter()
    for weight in manifest.weights.values():
        sums[weight.dtype] += prod(weight.shape) * DTYPE_BYTES[weight.dtype]
    return dict(sums)


def kernel_table(manifest: Manifest, figures: Mapping[str, KernelResources] | None = None) -> Table:
    """Per kernel: launches a step in each bucket, what it was made of, and (with `figures` of a cross-compilation) its registers,
    spills in bytes and shared memory in bytes."""
    table = Table(title="Kernels", title_justify="left")
    table.add_column("kernel")
    for bucket in manifest.buckets:
        table.add_column(f"launches, {bucket_name(bucket)}", justify="right")
    table.add_column("warps", justify="right")
    for column in ("registers", "spills", "shared") if figures is not None else ():
        table.add_column(column, justify="right")
    table.add_column("made of")
    counts = [Counter(launch.kernel for launch in bucket.launches) for bucket in manifest.buckets]
    for name, kernel in sorted(manifest.kernels.items()):
        row = [escape(name), *(str(count[name] or "") for count in counts), str(kernel.num_warps)]
        if figures is not None:
            figure = figures[name]
            row += [str(figure.registers), str(figure.spills), str(figure.shared_memory)]
        table.add_row(*row, escape(made_of(kernel.sources)))
    return table


def made_of(sources: tuple[str, ...]) -> str:
    """The ops of a region in order, repeats counted: `rms_norm, linear x3`."""
    counts = Counter(sources)
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.items())


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else ""

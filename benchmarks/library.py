# pyright: basic
"""A launch enters; what cuBLAS, or torch's attention, takes for a product or an attention of the same shape leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.peers import capture
from benchmarks.timing import measure
from lamella.runtime.manifest import Bucket, Launch, Manifest
from lamella.semantics import DTYPES
from lamella.tools.costs import infer, operand

LAUNCHES = 64
"""At most so many calls make one timed graph."""
COLD = 1 << 28
"""Bytes that the calls of one graph touch at least, each with operands of its own, so that none lie in a cache."""
LEAST_MILLISECONDS = 2.0
"""Of a graph, or as many as LAUNCHES calls take."""
MOST_SECONDS = 0.3
"""One measurement, all repetitions of it."""
CONTRACTIONS = ("tile.contract", "tile.contract_partial")
ATTENTIONS = ("tile.attend", "tile.attend_partial")
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


@dataclass(frozen=True)
class Product:
    """x[rows, columns] @ weight[outputs, columns]ᵀ: all of a kernel that share x as one."""

    rows: int
    columns: int
    outputs: int
    dtype: str

    @property
    def name(self) -> str:
        """`cuBLAS 1x4096 @ 4096x6144`."""
        return f"cuBLAS {self.rows}x{self.columns} @ {self.columns}x{self.outputs}"


@dataclass(frozen=True)
class Attention:
    """Causal attention of `queries` tokens of each sequence over a contiguous cache of `context`."""

    sequences: int
    queries: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def name(self) -> str:
        """`SDPA 32x128, 1 of 1000`."""
        many = f"{self.sequences} x " if self.sequences > 1 else ""
        return f"SDPA {many}{self.heads}x{self.head_dim}, {self.queries} of {self.context}"


def counterpart(manifest: Manifest, bucket: Bucket, launch: Launch, context: int) -> Product | Attention | None:
    """What a library would be asked for in the place of a launch: a product, or attention; None for all else, such as packed weights.

    What is fused with it (norms, activations, rotations, residuals, cache writes) a library does not do, and its time leaves out.
    """
    kernel = manifest.kernels[launch.kernel]
    values = infer(kernel.body, [operand(manifest, bucket, ref) for ref in launch.args[: kernel.inputs]])
    names = {name for name, *_ in kernel.body["ops"]}
    if "tile.dequantize" in names or "tile.contract_experts" in names:
        return None
    products: list[tuple[int, tuple[int, ...], tuple[int, ...], str]] = []
    for name, ids, attributes, _ in kernel.body["ops"]:
        if name in ATTENTIONS:
            queries = bucket.tokens // bucket.sequences
            seen = context if queries == 1 else queries
            plain = not any(attributes.get(each) for each in ("window", "score_cap", "alibi", "bidirectional")) and len(ids) == 5
            sizes = (attributes["heads"], attributes["kv_heads"], attributes["head_dim"])
            return Attention(bucket.sequences, queries, seen, *sizes, manifest.cache.dtype) if plain else None
        if name in CONTRACTIONS:
            products.append((ids[0], values[ids[0]][1], values[ids[1]][1], values[ids[1]][0]))
    if not products or len({(x, dtype) for x, _, _, dtype in products}) > 1:
        return None
    _, (rows, columns), _, dtype = products[0]
    return Product(rows, columns, sum(weight[0] for _, _, weight, _ in products), dtype)


def microseconds(wanted: Product | Attention, device: torch.device, repetitions: int) -> dict[str, float | str]:
    """Of one call: `cublas_us`, or of each of torch's attentions `sdpa_flash_us`, `sdpa_cudnn_us`, …, or the reason why it does not run.

    The operands are normal numbers; a graph holds so many calls on operands of their own that they come from memory.
    """
    if isinstance(wanted, Product):
        return {"cublas_us": _product(wanted, device, repetitions)}
    found: dict[str, float | str] = {}
    for name, backend in BACKENDS.items() if device.type == "cuda" else [("math", SDPBackend.MATH)]:
        try:
            with sdpa_kernel(backend):
                found[f"sdpa_{name}_us"] = _attention(wanted, device, repetitions)
        except RuntimeError as error:  # most often one that does not take the shape
            found[f"sdpa_{name}_error"] = str(error).strip().splitlines()[0][:200]
    return found


def _product(wanted: Product, device: torch.device, repetitions: int) -> float:
    dtype = DTYPES[wanted.dtype]
    size = (wanted.rows * wanted.columns + wanted.columns * wanted.outputs) * dtype.itemsize
    pairs = [
        (
            torch.randn(wanted.rows, wanted.columns, device=device, dtype=dtype),
            torch.randn(wanted.outputs, wanted.columns, device=device, dtype=dtype).t(),
        )
        for _ in range(_copies(size, device))
    ]
    out = torch.empty(wanted.rows, wanted.outputs, device=device, dtype=dtype)
    return _each([lambda x=x, w=w: torch.mm(x, w, out=out) for x, w in pairs], device, repetitions)


def _attention(wanted: Attention, device: torch.device, repetitions: int) -> float:
    dtype = DTYPES[wanted.dtype]
    query = (wanted.sequences, wanted.heads, wanted.queries, wanted.head_dim)
    key = (wanted.sequences, wanted.kv_heads, wanted.context, wanted.head_dim)
    size = (prod(query) + 2 * prod(key)) * dtype.itemsize
    given = [tuple(torch.randn(shape, device=device, dtype=dtype) for shape in (query, key, key)) for _ in range(_copies(size, device))]
    causal = wanted.queries > 1
    calls = [lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True) for q, k, v in given]
    return _each(calls, device, repetitions)


def _copies(size: int, device: torch.device) -> int:
    return max(1, min(LAUNCHES, -(-COLD // size))) if device.type == "cuda" else 1


def _each(calls: list[Callable[[], object]], device: torch.device, repetitions: int) -> float:
    """Microseconds of one of several calls, all of which run in turn, so often that a graph of them takes LEAST_MILLISECONDS."""
    with torch.no_grad():
        once = measure(calls[0], device, launches=1, repetitions=1).milliseconds
        calls = calls * max(1, min(LAUNCHES, int(LEAST_MILLISECONDS / once)) // len(calls))

        def run() -> torch.Tensor:
            for call in calls:
                result = call()
            assert isinstance(result, torch.Tensor)
            return result

        step = capture(run) if device.type == "cuda" else run
        timing = measure(step, device, launches=20, repetitions=repetitions, seconds=MOST_SECONDS)
    return timing.milliseconds * 1e3 / len(calls)

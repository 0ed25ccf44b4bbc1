# pyright: basic
"""A manifest enters; the bytes and operations that a step, or a launch, cannot do without leave."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lamella.runtime.manifest import DTYPE_BYTES, Bucket, Launch, Manifest, Ref


@dataclass(frozen=True)
class Traffic:
    """Bytes that one step moves: weights read, cache read and written, logits written."""

    weights: float
    cache: float
    logits: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.weights + self.cache + self.logits


def step_traffic(manifest: Manifest, bucket: Bucket, context: float) -> Traffic:
    """Of a step in which each sequence ends up `context` tokens long.

    Weights are read once, save that of an embedding table that is not the head too, only the tokens' rows are. Every sequence reads the
    keys and values of its context once and writes those of its new tokens. Activations, which stay in the L2 cache, do not count.
    """
    weights = 0.0
    for name in manifest.weights:
        if name == "embed" and "lm_head" in manifest.weights:
            weights += bucket.tokens * row_bytes(manifest, Ref("weight", name))
        else:
            weights += ref_bytes(manifest, bucket, Ref("weight", name))
    cached = manifest.cache.block_bytes / manifest.cache.block
    return Traffic(weights, cached * (bucket.sequences * context + bucket.tokens), bucket.logit_rows * manifest.model.vocabulary * 4.0)


def step_flops(manifest: Manifest, bucket: Bucket) -> float:
    """Floating-point operations of the matrix products of a step over fresh sequences: projections, head and causal attention."""
    model = manifest.model
    head = "lm_head" if "lm_head" in manifest.weights else "embed"
    projections = sum(prod(w.shape) for n, w in manifest.weights.items() if len(w.shape) == 2 and n not in ("embed", "lm_head"))
    pairs = bucket.sequences * bucket.longest_query * (bucket.longest_query + 1) / 2
    attention = 4.0 * model.layers * model.heads * model.head_dim * pairs
    return 2.0 * projections * bucket.tokens + 2.0 * prod(manifest.weights[head].shape) * bucket.logit_rows + attention


def launch_traffic(manifest: Manifest, bucket: Bucket, launch: Launch, context: float) -> float:
    """Bytes one launch reads and writes: its operands and results, but only the gathered rows of a table, only the context's part of a
    cache that is attended to, and only the new tokens' part of one that is written."""
    kernel = manifest.kernels[launch.kernel]
    whole = {i for name, ids, *_ in kernel.body["ops"] for i in (ids[1:] if name == "tile.gather" else ids)} | set(kernel.body["yields"])
    gathered = {ids[0]: ids[1] for name, ids, *_ in kernel.body["ops"] if name == "tile.gather"}
    attends = any(name.startswith("tile.attend") for name, *_ in kernel.body["ops"])
    token = manifest.cache.block_bytes / manifest.cache.block / manifest.cache.layers
    total = 0.0
    for i, ref in enumerate(launch.args):
        is_input = i < kernel.inputs
        if ref.pool == "cache":
            # A written cache is among the operands and the results; it moves once, when it is written.
            total += token * (bucket.sequences * context if attends and is_input else 0 if is_input else bucket.tokens)
        elif is_input and i in gathered and i not in whole:
            index = gathered[i]
            rows = _shape(manifest, bucket, launch.args[index])[0] if index < kernel.inputs else bucket.tokens
            total += rows * row_bytes(manifest, ref, bucket)
        else:
            total += ref_bytes(manifest, bucket, ref)
    return total


def ref_bytes(manifest: Manifest, bucket: Bucket, ref: Ref) -> int:
    """Bytes of all a reference names; no cache."""
    return prod(_shape(manifest, bucket, ref)) * DTYPE_BYTES[ref_dtype(manifest, bucket, ref)]


def row_bytes(manifest: Manifest, ref: Ref, bucket: Bucket | None = None) -> int:
    """Bytes of one row of a table."""
    bucket = bucket or manifest.buckets[0]
    return ref_bytes(manifest, bucket, ref) // _shape(manifest, bucket, ref)[0]


def ref_dtype(manifest: Manifest, bucket: Bucket, ref: Ref) -> str:
    """The element type of what a reference names."""
    match ref.pool:
        case "arena":
            return ref.dtype
        case "cache":
            return manifest.cache.dtype
        case "input":
            return next(i.dtype for i in bucket.inputs if i.name == ref.name)
        case "weight":
            return manifest.weights[ref.name].dtype
        case _:
            return manifest.constants[ref.name].dtype


def _shape(manifest: Manifest, bucket: Bucket, ref: Ref) -> tuple[int, ...]:
    match ref.pool:
        case "arena":
            return ref.shape
        case "input":
            return next(i.shape for i in bucket.inputs if i.name == ref.name)
        case "weight":
            return manifest.weights[ref.name].shape
        case _:
            return manifest.constants[ref.name].shape

# pyright: basic
"""A manifest enters; the bytes and operations that a step, or a launch, cannot do without leave, as `lamella report` counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamella.runtime.manifest import Bucket, Launch, Manifest, Ref
from lamella.tools.costs import Cost, context_of, launch_cost, operand, size_of, step_cost


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
    """Of a step in which each sequence ends up `context` tokens long. Activations, which stay in the L2 cache, do not count."""
    cost = step_cost(manifest, bucket, context)
    return Traffic(cost.weights, cost.cache, bucket.logit_rows * manifest.model.vocabulary * 4.0)


def step_flops(manifest: Manifest, bucket: Bucket) -> float:
    """Floating-point operations of the matrix products of a step over fresh sequences: projections, head and causal attention."""
    return float(sum(step_cost(manifest, bucket, context_of(bucket, 1)).flops.values()))


def launch_traffic(manifest: Manifest, bucket: Bucket, launch: Launch, context: float) -> float:
    """Bytes one launch reads and writes."""
    return float(launch_cost(manifest, bucket, launch, context).bytes)


def launch_reads(manifest: Manifest, bucket: Bucket, launch: Launch, context: float) -> Cost:
    """What one launch reads, by where it lies: the cost of the same kernel if it stored nothing."""
    kernel = manifest.kernels[launch.kernel]
    silent = replace(kernel, body={**kernel.body, "yields": []})
    alone = replace(manifest, kernels={launch.kernel: silent})
    return launch_cost(alone, bucket, replace(launch, args=launch.args[: kernel.inputs]), context)


def launch_flops(manifest: Manifest, bucket: Bucket, launch: Launch, context: float) -> float:
    """Floating-point operations of the matrix products of one launch."""
    return float(sum(launch_cost(manifest, bucket, launch, context).flops.values()))


def ref_bytes(manifest: Manifest, bucket: Bucket, ref: Ref) -> int:
    """Bytes of all a reference names; no cache."""
    return size_of(operand(manifest, bucket, ref))

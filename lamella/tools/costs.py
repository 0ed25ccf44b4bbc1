"""A manifest goes in; the bytes and operations that a launch, or a step, cannot do without leave, and the memory a model takes.

What counts: every distinct input once and every output once. A gather reads only the rows it is asked for, attention only the context
of each sequence, a scatter writes only its rows. Operations are those of matrix products; elementwise work is never the bound of a kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from lamella.errors import ManifestError, nearest
from lamella.runtime.manifest import DTYPE_BYTES, Bucket, Launch, Manifest, Ref

Operand = tuple[str, tuple[int, ...]]
"""Element type and shape of a value."""


@dataclass(frozen=True)
class Cost:
    """Bytes by where they lie, and operations by the element type of the units that do them (`f32`: no tensor cores)."""

    weights: int = 0
    constants: int = 0
    inputs: int = 0
    activations: int = 0
    cache: int = 0
    flops: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def bytes(self) -> int:
        """All bytes moved."""
        return self.weights + self.constants + self.inputs + self.activations + self.cache

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.weights + other.weights,
            self.constants + other.constants,
            self.inputs + other.inputs,
            self.activations + other.activations,
            self.cache + other.cache,
            dict(Counter(self.flops) + Counter(other.flops)),
        )


POOL_FIELD: Mapping[str, str] = {
    "weight": "weights",
    "constant": "constants",
    "input": "inputs",
    "arena": "activations",
    "cache": "cache",
    "scales": "cache",
}
"""Which field of a Cost counts the bytes of a pool."""


def context_of(bucket: Bucket, context: int) -> int:
    """Tokens in the cache of each sequence after a step: `context` for a decode step, while a longer one starts its sequences."""
    return context if bucket.longest_query == 1 else max(1, bucket.tokens // bucket.sequences)


def step_cost(manifest: Manifest, bucket: Bucket, context: float) -> Cost:
    """The sum over the launches of a step after which each sequence has `context` tokens in the cache."""
    return sum((launch_cost(manifest, bucket, launch, context) for launch in bucket.launches), Cost())


def launch_cost(manifest: Manifest, bucket: Bucket, launch: Launch, context: float) -> Cost:
    """One launch of a step after which each sequence has `context` tokens in the cache. Raises ManifestError for an op without a rule."""
    kernel = manifest.kernels[launch.kernel]
    refs = launch.args[: kernel.inputs]
    values = infer(kernel.body, [operand(manifest, bucket, ref) for ref in refs])
    ops = [(str(name), [int(i) for i in ids], attributes) for name, ids, attributes, _ in kernel.body["ops"]]
    read: dict[Ref, int] = {}
    unpacked = experts_unpacked(kernel.body)
    for index, ref in enumerate(refs):
        # One storage given twice is read once.
        read[ref] = max(read.get(ref, 0), _read(manifest, bucket, ops, values, index, context, unpacked.get(index, index)))
    moved: Counter[str] = Counter()
    for ref, size in read.items():
        moved[POOL_FIELD[ref.pool]] += size
    scatters = {int(result): (name, ids) for (name, ids, _), (*_, (result, *_)) in zip(ops, kernel.body["ops"], strict=True)}
    for value, ref in zip(kernel.body["yields"], launch.args[kernel.inputs :], strict=True):
        moved[POOL_FIELD[ref.pool]] += _written(values, scatters, int(value))
    return Cost(**moved, flops=flops(kernel.body, values, bucket, context))


def operand(manifest: Manifest, bucket: Bucket, ref: Ref) -> Operand:
    """Element type and shape of what a reference names; a cache is one block long."""
    match ref.pool:
        case "arena":
            return ref.dtype, ref.shape
        case "input":
            found = next(i for i in bucket.inputs if i.name == ref.name)
        case "weight":
            found = manifest.weights[ref.name]
        case "constant":
            found = manifest.constants[ref.name]
        case _:
            return manifest.cache.element(ref.pool), manifest.cache.shape(ref.pool, 1)
    return found.dtype, found.shape


def size_of(value: Operand) -> int:
    """Bytes of a value."""
    return prod(value[1]) * DTYPE_BYTES[value[0]]


def infer(body: Mapping[str, Any], arguments: Sequence[Operand]) -> dict[int, Operand]:
    """Element type and shape of every value of a region, by its number. Raises ManifestError for an op without a rule."""
    values: dict[int, Operand] = dict(enumerate(arguments))
    for name, ids, attributes, results in body["ops"]:
        rule = SHAPES.get(name)
        if rule is None:
            raise ManifestError(f"no rule says what {name} makes", where="costs", remedy=nearest(name, SHAPES))
        values.update(zip(results, rule([values[i] for i in ids], attributes), strict=True))
    return values


def flops(body: Mapping[str, Any], values: Mapping[int, Operand], bucket: Bucket, context: float) -> dict[str, int]:
    """Operations of a region's matrix products by the units that do them: one row of x never goes to the tensor cores."""
    out: Counter[str] = Counter()
    for name, ids, attributes, _ in body["ops"]:
        if name == "tile.contract":
            dtype, (rows, columns) = values[ids[0]]
            out["f32" if rows == 1 else dtype] += 2 * rows * columns * values[ids[1]][1][0]
        elif name == "tile.contract_experts":
            rows, width = prod(values[ids[2]][1]), values[ids[1]][1][0] // attributes["experts"]
            out["f32" if values[ids[2]][1][0] == 1 else values[ids[0]][0]] += 2 * rows * width * values[ids[0]][1][1]
        elif name in ("tile.attend", "tile.attend_partial"):
            seen = round(bucket.tokens * context) if attributes.get("bidirectional") else pairs(bucket, context)
            out[values[ids[0]][0]] += 4 * attributes["heads"] * attributes["head_dim"] * seen
    return dict(out)


def pairs(bucket: Bucket, context: float) -> int:
    """Query and key pairs that causal attention looks at, if all sequences have as many tokens in the step."""
    queries = bucket.tokens / bucket.sequences
    return round(bucket.tokens * (context - queries + (queries + 1) / 2))


def pools(manifest: Manifest, cache_tokens: int, graph_bytes: int = 0, library_bytes: int = 0) -> dict[str, int]:
    """Bytes of each pool of a loaded model: weights, constants, arena, inputs of all buckets, a cache that holds `cache_tokens`, what
    the driver takes for CUDA graphs (`Device.graph_bytes`), and where a library computes something its workspaces (`Device.library_bytes`).

    The cache has one block more, the null block, as `runtime.memory.cache_blocks` counts.
    """
    spec = manifest.cache
    return {
        "weights": sum(size_of((w.dtype, w.shape)) for w in manifest.weights.values()),
        "constants": sum(size_of((c.dtype, c.shape)) for c in manifest.constants.values()),
        "arena": manifest.arena_bytes,
        "inputs": sum(size_of((i.dtype, i.shape)) for b in manifest.buckets for i in b.inputs),
        "cache": (1 + -(-cache_tokens // spec.block)) * spec.block_bytes,
        "graphs": graph_bytes,
        **({"library": library_bytes} if manifest.uses_library else {}),
    }


def experts_unpacked(body: Mapping[str, Any]) -> dict[int, int]:
    """Words, scales and least values of a region's experts -> the weight that is unpacked from them, all by the numbers of values."""
    weights = {ids[1] for name, ids, _, _ in body["ops"] if name == "tile.contract_experts"}
    made = [(ids, results[0]) for name, ids, _, results in body["ops"] if name == "tile.dequantize"]
    return {int(value): int(result) for ids, result in made if result in weights for value in ids}


def _read(
    manifest: Manifest,
    bucket: Bucket,
    ops: Iterable[tuple[str, Sequence[int], Mapping[str, Any]]],
    values: Mapping[int, Operand],
    index: int,
    context: float,
    weight: int,
) -> int:
    """Bytes that a region reads of its argument `index`; `weight` is what of experts is unpacked from it, or `index` itself."""
    dtype, shape = values[index]
    whole = size_of(values[index])
    spec = manifest.cache
    total = 0
    for name, ids, attributes in ops:
        for place, used in enumerate(ids):
            if used not in (index, weight):
                continue
            match name, place:
                case "tile.gather", 0:
                    total += prod(values[ids[1]][1]) * whole // max(1, shape[0])
                case "tile.slots", 2:
                    total += prod(values[ids[0]][1]) * DTYPE_BYTES[dtype]
                case "tile.contract_experts", 1:
                    # Of the experts only those that some token chose, at most as many as there are choices.
                    experts = attributes["experts"]
                    total += min(experts, prod(values[ids[2]][1])) * whole // experts
                case "tile.dequantize", _ if weight != index:
                    pass
                case (("tile.attend" | "tile.attend_partial"), _) if len(shape) == len(spec.shape("cache", 1)):
                    # Of the cache, or its scales, `whole` is a block.
                    return int(bucket.sequences * context * whole / spec.block)
                case (("tile.attend" | "tile.attend_partial"), 2):
                    total += bucket.sequences * ceil(context / spec.block) * DTYPE_BYTES[dtype]
                case ("tile.scatter", 1) | ("tile.attend_merge", 3):
                    # Rows of a cache are only written, and counters are a few bytes.
                    pass
                case _:
                    return whole
    return min(total, whole)


def _written(values: Mapping[int, Operand], makers: Mapping[int, tuple[str, Sequence[int]]], value: int) -> int:
    """Bytes that storing a yielded value writes: of a cache, what the scatters put into it."""
    total = 0
    while value in makers and makers[value][0] == "tile.scatter":
        scattered, cache, _ = makers[value][1]
        total += prod(values[scattered][1]) * DTYPE_BYTES[values[cache][0]]
        value = cache
    return total or size_of(values[value])


def _broadcast(operands: Sequence[Operand]) -> tuple[int, ...]:
    rank = max(len(shape) for _, shape in operands)
    padded = [(1,) * (rank - len(shape)) + shape for _, shape in operands]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


Rule = Callable[[Sequence[Operand], Mapping[str, Any]], Sequence[Operand]]


def _partial(operands: Sequence[Operand], attributes: Mapping[str, Any]) -> Sequence[Operand]:
    sizes = (operands[0][1][0], attributes["heads"], attributes["splits"])
    return [("f32", (*sizes, attributes["head_dim"])), ("f32", sizes), ("f32", sizes)]


SHAPES: Mapping[str, Rule] = {
    "tile.constant": lambda x, a: [("i32" if isinstance(a["value"], int) else "f32", ())],
    "tile.map": lambda x, a: [(x[0][0], _broadcast(x))],
    "tile.cast": lambda x, a: [(a["dtype"], x[0][1])],
    "tile.reduce": lambda x, a: [(x[0][0], (*x[0][1][:-1], 1))],
    "tile.add_columns": lambda x, a: [("f32", (x[0][1][0], x[0][1][1] // a["columns"]))],
    "tile.gather": lambda x, a: [(x[0][0], (*x[1][1], *x[0][1][1:]))],
    "tile.gather_columns": lambda x, a: [(x[0][0], (x[0][1][0], *x[1][1]))],
    "tile.columns": lambda x, a: [("i32", x[0][1])],
    "tile.swap_pairs": lambda x, a: [x[0]],
    "tile.reshape": lambda x, a: [(x[0][0], tuple(a["sizes"]))],
    "tile.slots": lambda x, a: [("i32", x[0][1])],
    "tile.scatter": lambda x, a: [x[1]],
    "tile.rotate": lambda x, a: [x[0]],
    "tile.dequantize": lambda x, a: [
        ("f32", (x[0][1][0], (x[1][1][0] * a["by_group"] if a.get("by_group") else x[1][1][1]) * a["packing"]["group"]))
    ],
    "tile.contract": lambda x, a: [("f32", (x[0][1][0], x[1][1][0]))],
    "tile.contract_partial": lambda x, a: [("f32", (a["splits"], x[0][1][0], x[1][1][0]))],
    "tile.contract_merge": lambda x, a: [("f32", x[0][1][1:])],
    "tile.contract_experts": lambda x, a: [("f32", (prod(x[2][1]), x[1][1][0] // a["experts"]))],
    "tile.sort_choices": lambda x, a: [("i32", (prod(x[0][1]),))],
    "tile.route": lambda x, a: [("f32", (x[0][1][0], a["top_k"])), ("i32", (x[0][1][0], a["top_k"]))],
    "tile.add_rows": lambda x, a: [("f32", (x[0][1][0] // a["rows"], x[0][1][1]))],
    "tile.attend": lambda x, a: [("f32", x[0][1])],
    "tile.attend_partial": _partial,
    "tile.arrivals": lambda x, a: [("i32", (a["counters"],))],
    "tile.attend_merge": lambda x, a: [("f32", (x[0][1][0], x[0][1][1] * x[0][1][3]))],
    "tile.sample": lambda x, a: [("i32", x[0][1][:1])],
    "tile.top_partial": lambda x, a: [("f32", (x[0][1][0], a["splits"])), ("i32", (x[0][1][0], a["splits"]))],
    "tile.sample_top": lambda x, a: [("i32", x[0][1][:1])],
}
"""What each op of level 2 makes of its operands; a test holds that none is missing."""

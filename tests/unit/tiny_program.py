"""A hand-written compiled program: one attention layer over a paged cache, planned by hand, for tests of the runtime alone.

x = embed[token]; k, v = x @ Wkᵀ, x @ Wvᵀ into the cache; y = x + attention; logits = y @ Woᵀ; next = sample(logits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS, VOCABULARY = 2, 1, 4, 4, 8, 11
HIDDEN = HEADS * DIM
SCALE = 0.5
EOS = 7
ATTENTION = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "scale": SCALE}
SHAPES = {"embed": (VOCABULARY, HIDDEN), "k": (KV_HEADS * DIM, HIDDEN), "v": (KV_HEADS * DIM, HIDDEN), "out": (VOCABULARY, HIDDEN)}
REQUEST = ("temperature", "top_k", "top_p", "min_p", "seed")
FLOATS = ("temperature", "top_p", "min_p")
BUCKETS = ((8, 1, 8, 1, False), (3, 1, 3, 1, False), (1, 1, 1, 1, True), (12, 4, 8, 4, False))


class FixedSource:
    """A tensor source over a dictionary of float32 tensors."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def names(self) -> list[str]:
        return sorted(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> str:
        return "f32"

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        return self.tensors[name].to(device)

    def fingerprint(self) -> str:
        return "fixed"

    def describe(self) -> dict[str, object]:
        return {}


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights, large enough that greedy choices are clear."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def kernels() -> dict[str, Any]:
    """The regions, each with its body in JSON form."""

    def kernel(name: str, inputs: int, ops: list[Any], yields: list[int]) -> dict[str, Any]:
        body = {"args": inputs, "ops": ops, "yields": yields}
        return {
            "file": f"kernels/{name}.py",
            "inputs": inputs,
            "num_warps": 4,
            "num_stages": 1,
            "max_registers": 0,
            "body": body,
            "sources": [name],
            "library": {},
            "descriptors": [],
        }

    write = [
        ["tile.contract", [0, 1], {}, [7]],
        ["tile.contract", [0, 2], {}, [8]],
        ["tile.slots", [3, 4, 5], {"block": BLOCK}, [9]],
        ["tile.scatter", [7, 6, 9], {"part": 0}, [10]],
        ["tile.scatter", [8, 10, 9], {"part": 1}, [11]],
    ]
    attend = [["tile.attend", [0, 1, 2, 3, 4], ATTENTION, [5]], ["tile.map", [5, 0], {"kind": "add"}, [6]]]
    sample = [
        ["tile.constant", [], {"value": 1}, [8]],
        ["tile.gather", [6, 7], {}, [9]],
        ["tile.map", [9, 8], {"kind": "add"}, [10]],
        ["tile.sample", [0, 1, 2, 3, 4, 5, 10], {}, [11]],
    ]
    advance = [*sample, ["tile.map", [6, 8], {"kind": "add"}, [12]], ["tile.map", [13, 8], {"kind": "add"}, [14]]]
    # In `advance` the context length is the last argument: ids shift by one.
    advance = [
        [name, [_shift(i) for i in operands], attributes, [_shift(i) for i in results]] for name, operands, attributes, results in advance
    ]
    return {
        "embed": kernel("embed", 2, [["tile.gather", [1, 0], {}, [2]]], [2]),
        "write": kernel("write", 7, write, [11]),
        "attend": kernel("attend", 5, attend, [6]),
        "head": kernel("head", 3, [["tile.gather", [0, 1], {}, [3]], ["tile.contract", [3, 2], {}, [4]]], [4]),
        "sample": kernel("sample", 8, sample, [11]),
        "advance": kernel("advance", 9, advance, [_shift(11), _shift(12), _shift(14)]),
    }


def _shift(i: int) -> int:
    return 8 if i == 13 else i if i < 8 else i + 1


def bucket(tokens: int, sequences: int, longest: int, rows: int, advance: bool) -> dict[str, Any]:
    """One bucket, planned: x, y, logits and next side by side."""
    shapes = {
        "tokens": [tokens],
        "positions": [tokens],
        "query_start": [sequences + 1],
        "context_len": [sequences],
        "block_table": [sequences, BLOCKS],
        "logit_rows": [rows],
        **{name: [rows] for name in REQUEST},
    }
    hidden_bytes = tokens * HIDDEN * 4
    after = 2 * hidden_bytes + rows * VOCABULARY * 4
    x = {"pool": "arena", "offset": 0, "dtype": "f32", "shape": [tokens, HIDDEN]}
    y = {"pool": "arena", "offset": hidden_bytes, "dtype": "f32", "shape": [tokens, HIDDEN]}
    logits = {"pool": "arena", "offset": 2 * hidden_bytes, "dtype": "f32", "shape": [rows, VOCABULARY]}
    following = given("tokens") if advance else {"pool": "arena", "offset": after, "dtype": "i32", "shape": [rows]}
    cache = {"pool": "cache", "layer": 0}
    paged = [given(name) for name in ("block_table", "query_start", "context_len")]

    def launch(kernel: str, args: list[Any], dead: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
        return {"kernel": kernel, "grid": [1, 1, 1], "args": args, "loc": kernel, "dead": [list(d) for d in dead], "ordered": False}

    request = [logits, *[given(name) for name in REQUEST], given("positions"), given("logit_rows")]
    places = [given(name) for name in ("positions", "query_start", "block_table")]
    last = (
        launch("advance", [*request, given("context_len"), following, given("positions"), given("context_len")])
        if advance
        else launch("sample", [*request, following])
    )
    outputs = {"logits": logits, "next": following}
    return {
        "tokens": tokens,
        "sequences": sequences,
        "longest_query": longest,
        "logit_rows": rows,
        "advance": advance,
        "arena_bytes": after + rows * 4,
        "buffer_bytes": after + rows * 4,
        "max_live_bytes": after,
        "inputs": [{"name": n, "dtype": "f32" if n in FLOATS else "i32", "shape": s} for n, s in shapes.items()],
        "outputs": [{"name": name, "ref": ref} for name, ref in outputs.items()],
        "launches": [
            launch("embed", [given("tokens"), weight("embed"), x]),
            launch("write", [x, weight("k"), weight("v"), *places, cache, cache]),
            launch("attend", [x, cache, *paged, y], [(0, hidden_bytes)]),
            launch("head", [y, given("logit_rows"), weight("out"), logits], [(hidden_bytes, hidden_bytes)]),
            last,
        ],
    }


def given(name: str) -> dict[str, Any]:
    """The REF of an input."""
    return {"pool": "input", "name": name}


def weight(name: str) -> dict[str, Any]:
    """The REF of a weight."""
    return {"pool": "weight", "name": name}


def manifest(buckets: Sequence[tuple[int, int, int, int, bool]] = BUCKETS) -> dict[str, Any]:
    """The whole manifest as JSON."""
    return {
        "format": 1,
        "target": "none",
        "dtype": "f32",
        "max_context": BLOCK * BLOCKS,
        "model": {
            "family": "llama",
            "layers": 1,
            "hidden": HIDDEN,
            "heads": HEADS,
            "kv_heads": KV_HEADS,
            "head_dim": DIM,
            "ffn": HIDDEN,
            "vocabulary": VOCABULARY,
            "eos": [EOS],
        },
        "cache": {
            "layers": 1,
            "kv_heads": KV_HEADS,
            "head_dim": DIM,
            "block": BLOCK,
            "dtype": "f32",
            "blocks_per_sequence": BLOCKS,
            "paired": 0,
            "scales": "",
        },
        "weights": {name: {"dtype": "f32", "shape": list(shape), "sources": [], "transform": {}} for name, shape in SHAPES.items()},
        "constants": {},
        "kernels": kernels(),
        "buckets": [bucket(*key) for key in buckets],
    }


def logits_of(ids: Sequence[int], w: dict[str, torch.Tensor]) -> torch.Tensor:
    """float64 logits [len(ids), V] of the same model, written without a cache."""
    w = {name: tensor.double() for name, tensor in w.items()}
    x = w["embed"][list(ids)]
    k, v, q = x @ w["k"].T, x @ w["v"].T, x.reshape(len(ids), HEADS, DIM)
    scores = torch.einsum("nhd,td->hnt", q, k) * SCALE
    hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return (x + mixed.transpose(0, 1).reshape(len(ids), HIDDEN)) @ w["out"].T

"""Attention with a window, a soft-cap and both, whole and in chunks, as interpreted Triton and by the meaning of the ops; and that meaning against a loop."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import f32

from lamella.semantics.attention import attend
from tests.numeric.harness import agree, compile_function
from tests.numeric.test_schedules_attention import Batch

KINDS = {
    "window": {"window": 5},
    "window of one": {"window": 1},
    "window longer than some contexts": {"window": 60},
    "soft-cap": {"score_cap": 0.7},
    "both": {"window": 21, "score_cap": 2.0},
}
LENGTHS = [(13, 13), (1, 200), (0, 0), (7, 40), (1, 1)]


def batch(kind: str, lengths: list[tuple[int, int]], block: int = 16) -> Batch:
    """A ragged batch of 4 query and 2 key/value heads of 20, with `kind` of attention."""
    made = Batch(lengths, heads=4, kv_heads=2, dim=20, block=block, blocks=256 // block, padding=2)
    made.sizes |= KINDS[kind]
    return made


def by_hand(made: Batch) -> torch.Tensor:
    """softmax(modified scores)·v of each query over the positions it sees, one query and head at a time."""
    given, sizes = made.given, made.sizes
    q = given["q"].view(-1, sizes["heads"], sizes["head_dim"])
    block = given["cache.0"].shape[3]
    out = torch.zeros(q.shape)
    for b, context in enumerate(given["context_len"].tolist()):
        start, end = given["query_start"][b : b + 2].tolist()
        used = given["block_table"][b, : -(-context // block)].long()
        keys, values = given["cache.0"][used].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]
        for row in range(start, end):
            last = context - (end - row)
            first = max(0, last - sizes.get("window", context) + 1)
            for head in range(sizes["heads"]):
                kv = head // (sizes["heads"] // sizes["kv_heads"])
                scores = keys[kv, first : last + 1] @ q[row, head] * sizes["scale"]
                if "score_cap" in sizes:
                    scores = torch.tanh(scores / sizes["score_cap"]) * sizes["score_cap"]
                out[row, head] = scores.softmax(-1) @ values[kv, first : last + 1]
    return out.flatten(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [4, 16])
def test_the_meaning_is_that_of_a_loop(kind: str, block: int) -> None:
    made = batch(kind, LENGTHS, block)
    given = [made.given[name] for name in ("q", "cache.0", "block_table", "query_start", "context_len")]
    torch.testing.assert_close(attend(*given, **made.sizes)[: made.real], by_hand(made)[: made.real])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [False, True])
def test_kernels_of_ragged_batches(kind: str, split: bool) -> None:
    """Prefill that fills several tiles, a chunk of a longer context, decodes, an empty sequence and rows of padding."""
    made = batch(kind, LENGTHS)
    tiles = {"queries": 8, "rows": 16, **({} if split else {"tile": 32, "splits": 1})}
    function = made.g.returns(made.g.cast(made.attend(), f32))
    compiled = compile_function(function, longest_query=made.longest, schedules={"attend": tiles})
    agree(compiled, made.given, rows=made.real)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_decode(kind: str) -> None:
    """One query a sequence, its context in chunks of which a window leaves the first ones empty."""
    made = batch(kind, [(1, 200), (1, 1), (1, 77)])
    compiled = compile_function(made.g.returns(made.attend()), longest_query=1)
    agree(compiled, made.given, rows=made.real)

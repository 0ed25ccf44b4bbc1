"""Attention with windows, soft-caps, ALiBi, sinks, of both directions, whole and in chunks, as interpreted Triton and by the meaning of the ops; and that meaning against a loop."""

from __future__ import annotations

import pytest
import torch
from transformers import BloomConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from xdsl.dialects.builtin import f32

from lamella.dialects.tile import AttendPartialOp
from lamella.pipeline import PassOptions
from lamella.semantics.attention import attend, slopes
from tests.numeric.harness import agree, compile_function
from tests.numeric.test_schedules_attention import Batch

KINDS = {
    "window": {"window": 5},
    "window of one": {"window": 1},
    "window longer than some contexts": {"window": 60},
    "soft-cap": {"score_cap": 0.7},
    "both": {"window": 21, "score_cap": 2.0},
    "bidirectional": {"bidirectional": True},
    "bidirectional, soft-cap": {"bidirectional": True, "score_cap": 0.7},
    "ALiBi": {"alibi": 8.0},
    "ALiBi, window": {"alibi": 3.0, "window": 21},
    "sinks": {"sinks": True},
    "sinks, window": {"sinks": True, "window": 5},
    "sinks, all at once": {"sinks": True, "window": 60, "score_cap": 2.0, "alibi": 8.0},
}
LENGTHS = [(13, 13), (1, 200), (0, 0), (7, 40), (1, 1)]


def batch(kind: str, lengths: list[tuple[int, int]], block: int = 16, heads: int = 4) -> Batch:
    """A ragged batch of 4 query and 2 key/value heads of 20, with `kind` of attention."""
    made = Batch(lengths, heads=heads, kv_heads=2, dim=20, block=block, blocks=256 // block, padding=2, sinks="sinks" in kind)
    made.sizes |= {name: value for name, value in KINDS[kind].items() if name != "sinks"}
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
            own = context - (end - row)
            last = context - 1 if "bidirectional" in sizes else own
            first = max(0, last - sizes.get("window", context) + 1)
            for head in range(sizes["heads"]):
                kv = head // (sizes["heads"] // sizes["kv_heads"])
                scores = keys[kv, first : last + 1] @ q[row, head] * sizes["scale"]
                if "score_cap" in sizes:
                    scores = torch.tanh(scores / sizes["score_cap"]) * sizes["score_cap"]
                if "alibi" in sizes:
                    scores += 2.0 ** (-sizes["alibi"] * (head + 1) / sizes["heads"]) * (torch.arange(first, last + 1) - own)
                if "sinks" in given:
                    scores = torch.cat([scores, given["sinks"][head : head + 1]])
                out[row, head] = scores.softmax(-1)[: last + 1 - first] @ values[kv, first : last + 1]
    return out.flatten(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [4, 16])
def test_the_meaning_is_that_of_a_loop(kind: str, block: int) -> None:
    made = batch(kind, LENGTHS, block)
    names = ("q", "cache.0", "block_table", "query_start", "context_len", *(["sinks"] if "sinks" in made.given else []))
    given = [made.given[name] for name in names]
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("splits", [2, 4])
def test_chunks_take_turns(kind: str, splits: int) -> None:
    """Contexts of several turns, of which some chunks have one less; of a window, tiles of later queries begin at another chunk than the first."""
    made = batch(kind, [(40, 250), (1, 200), (3, 70), (1, 129)])
    tiles = {"queries": 8, "rows": 16, "tile": 16, "splits": splits}
    function = made.g.returns(made.g.cast(made.attend(), f32))
    whole: PassOptions = {"choose-schedule": {"split-attention": False}}
    compiled = compile_function(function, longest_query=made.longest, schedules={"attend": tiles}, pass_options=whole)
    assert [op.splits.value.data for region in compiled.regions for op in region.walk() if isinstance(op, AttendPartialOp)] == [splits]
    agree(compiled, made.given, rows=made.real)


@pytest.mark.parametrize("heads", [6, 10, 12, 2])
def test_slopes_of_any_number_of_heads(heads: int) -> None:
    """Heads that are no power of 2: the models' own slopes, and the kernel's."""
    config = BloomConfig(hidden_size=heads, n_head=heads)
    positions = build_alibi_tensor(torch.ones(1, 3), config.n_head, torch.float32)
    torch.testing.assert_close(slopes(heads, 8.0), positions[:, 0, 1])
    made = batch("ALiBi", [(9, 50), (1, 77)], heads=heads)
    compiled = compile_function(made.g.returns(made.attend()), longest_query=made.longest)
    agree(compiled, made.given, rows=made.real)

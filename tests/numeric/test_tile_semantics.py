"""Each `tile` op against plain loops in float64, on odd sizes, with NaN wherever nothing may be read."""

import math

import pytest
import torch

from lamella.semantics import IMPLEMENTATIONS, REDUCTIONS, SCALARS, reduction, scalar

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 5, 3
SIZES = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "scale": 0.37}
NAN = float("nan")


def i32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Batch:
    """Ragged sequences [(queries, context)] with a shuffled block table, padding rows of NaN, and NaN in every slot without a token."""

    def __init__(self, lengths: list[tuple[int, int]], padding: int = 0, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(seed)
        self.lengths = lengths
        width = max(1, *(-(-context // BLOCK) for _, context in lengths)) + 1
        order = (1 + torch.randperm(width * len(lengths) + 2)).tolist()
        self.cache = torch.full((len(order) + 1, 2, KV_HEADS, BLOCK, DIM), NAN, dtype=dtype)
        self.keys = [torch.randn(context, KV_HEADS, DIM).to(dtype) for _, context in lengths]
        self.values = [torch.randn(context, KV_HEADS, DIM).to(dtype) for _, context in lengths]
        table = []
        for b, (_, context) in enumerate(lengths):
            owned = [order.pop() for _ in range(-(-context // BLOCK))]
            table.append([*owned, *[0] * (width - len(owned))])
            for t in range(context):
                self.cache[owned[t // BLOCK], 0, :, t % BLOCK] = self.keys[b][t]
                self.cache[owned[t // BLOCK], 1, :, t % BLOCK] = self.values[b][t]
        starts = [sum(q for q, _ in lengths[:b]) for b in range(len(lengths) + 1)]
        self.q = torch.randn(starts[-1] + padding, HEADS * DIM).to(dtype)
        self.q[starts[-1] :] = NAN
        self.block_table, self.query_start, self.context_len = i32(table), i32(starts), i32([c for _, c in lengths])

    @property
    def operands(self) -> list[torch.Tensor]:
        return [self.q, self.cache, self.block_table, self.query_start, self.context_len]

    def scores(self, b: int, i: int, head: int) -> torch.Tensor:
        """float64 [visible]: scores of query i of sequence b."""
        queries, context = self.lengths[b]
        row = int(self.query_start[b]) + i
        q = self.q[row, head * DIM : (head + 1) * DIM].double()
        visible = context - queries + i + 1
        return self.keys[b][:visible, head // (HEADS // KV_HEADS)].double() @ q * SIZES["scale"]

    def expected(self, b: int, i: int, head: int) -> torch.Tensor:
        """float64 [D]: the attention output."""
        weights = self.scores(b, i, head).softmax(-1)
        return weights @ self.values[b][: len(weights), head // (HEADS // KV_HEADS)].double()


BATCHES = {
    "one token": ([(1, 1)], 0),
    "decodes": ([(1, 7), (1, 1), (1, 23)], 0),
    "prefill": ([(13, 13)], 3),
    "ragged": ([(1, 17), (1, 2), (5, 11), (1, 9)], 4),
    "an idle sequence": ([(1, 4), (0, 0), (2, 8)], 2),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("splits", [0, 1, 3, 8])
def test_attention_whole_and_in_chunks(name: str, splits: int) -> None:
    batch = Batch(*BATCHES[name])
    if splits:
        partial = IMPLEMENTATIONS["tile.attend_partial"](*batch.operands, **SIZES, splits=splits, tile=2)
        out = IMPLEMENTATIONS["tile.attend_merge"](*partial)
    else:
        out = IMPLEMENTATIONS["tile.attend"](*batch.operands, **SIZES)
    assert out.dtype == torch.float32
    out = out.reshape(-1, HEADS, DIM)
    for b, (queries, _) in enumerate(batch.lengths):
        for i in range(queries):
            for head in range(HEADS):
                row = int(batch.query_start[b]) + i
                torch.testing.assert_close(out[row, head].double(), batch.expected(b, i, head), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("splits", "tile"), [(1, 1), (3, 2), (4, 1), (5, 4)])
def test_partials_cover_their_chunks(splits: int, tile: int) -> None:
    batch = Batch(*BATCHES["ragged"])
    acc, largest, total = IMPLEMENTATIONS["tile.attend_partial"](*batch.operands, **SIZES, splits=splits, tile=tile)
    tokens = batch.q.shape[0]
    assert acc.shape == (tokens, HEADS, splits, DIM)
    assert largest.shape == total.shape == (tokens, HEADS, splits)
    for b, (queries, _) in enumerate(batch.lengths):
        for i in range(queries):
            row = int(batch.query_start[b]) + i
            for head in range(HEADS):
                scores = batch.scores(b, i, head)
                values = batch.values[b][:, head // (HEADS // KV_HEADS)].double()
                for p in range(splits):
                    mine = torch.arange(len(scores)) // tile % splits == p
                    chunk = scores[mine]
                    if len(chunk) == 0:
                        assert largest[row, head, p] == -math.inf
                        assert total[row, head, p] == 0
                        assert (acc[row, head, p] == 0).all()
                        continue
                    weights = torch.exp(chunk - chunk.max())
                    torch.testing.assert_close(largest[row, head, p].double(), chunk.max(), rtol=1e-5, atol=1e-6)
                    torch.testing.assert_close(total[row, head, p].double(), weights.sum(), rtol=1e-5, atol=1e-6)
                    part = weights @ values[: len(scores)][mine]
                    torch.testing.assert_close(acc[row, head, p].double(), part, rtol=1e-5, atol=1e-5)


def test_chunks_of_padding_tokens_are_empty() -> None:
    batch = Batch(*BATCHES["ragged"])
    acc, largest, total = IMPLEMENTATIONS["tile.attend_partial"](*batch.operands, **SIZES, splits=3, tile=2)
    padding = slice(int(batch.query_start[-1]), None)
    assert (largest[padding] == -math.inf).all()
    assert (total[padding] == 0).all()
    assert (acc[padding] == 0).all()
    assert (IMPLEMENTATIONS["tile.attend_merge"](acc, largest, total)[padding] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_widens_narrow_operands(dtype: torch.dtype) -> None:
    batch = Batch(*BATCHES["decodes"], dtype=dtype)
    out = IMPLEMENTATIONS["tile.attend"](*batch.operands, **SIZES).reshape(-1, HEADS, DIM)
    partial = IMPLEMENTATIONS["tile.attend_partial"](*batch.operands, **SIZES, splits=2, tile=4)
    merged = IMPLEMENTATIONS["tile.attend_merge"](*partial).reshape(-1, HEADS, DIM)
    for b in range(len(batch.lengths)):
        torch.testing.assert_close(out[b, 1].double(), batch.expected(b, 0, 1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(merged[b, 1].double(), batch.expected(b, 0, 1), rtol=1e-5, atol=1e-6)


def test_slots_follow_the_block_table_and_padding_goes_to_slot_zero() -> None:
    positions = i32([4, 0, 1, 2, 9, -1, 1 << 30])
    query_start = i32([0, 1, 1, 4, 5])  # sequences of 1, 0, 3 and 1 tokens, two padding rows
    block_table = i32([[7, 5, 0, 0], [0, 0, 0, 0], [2, 0, 0, 0], [9, 8, 6, 4]])
    slots = IMPLEMENTATIONS["tile.slots"](positions, query_start, block_table, block=3)
    assert slots.dtype == torch.int32
    assert slots.tolist() == [5 * 3 + 1, 2 * 3, 2 * 3 + 1, 2 * 3 + 2, 4 * 3, 0, 0]


@pytest.mark.parametrize("part", [0, 1])
def test_scatter_writes_one_row_a_slot_in_place(part: int) -> None:
    cache = torch.full((4, 2, KV_HEADS, BLOCK, DIM), NAN)
    values = torch.randn(4, KV_HEADS * DIM)
    values[3] = NAN
    out = IMPLEMENTATIONS["tile.scatter"](values, cache, i32([10, 4, 3, 0]), part=part)
    assert out is cache
    expected = torch.full_like(cache, NAN)
    for row, slot in enumerate([10, 4, 3]):
        for head in range(KV_HEADS):
            expected[slot // BLOCK, part, head, slot % BLOCK] = values[row, head * DIM : (head + 1) * DIM]
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("style", "rotary"), [("half", 6), ("paired", 6), ("half", 4), ("paired", 4)])
def test_rotate_turns_pairs(style: str, rotary: int) -> None:
    heads, dim, tokens = 3, 6, 5
    x, angles = torch.randn(tokens, heads * dim), torch.randn(tokens, rotary // 2)
    rows = torch.cat((angles.cos(), angles.sin()), -1)
    out = IMPLEMENTATIONS["tile.rotate"](x, rows, heads=heads, head_dim=dim, rotary_dim=rotary, style=style)
    expected = x.double().clone()
    for n in range(tokens):
        for head in range(heads):
            for j in range(rotary // 2):
                first, second = (j, j + rotary // 2) if style == "half" else (2 * j, 2 * j + 1)
                a, b = x[n, head * dim + first].double(), x[n, head * dim + second].double()
                cos, sin = rows[n, j].double(), rows[n, rotary // 2 + j].double()
                expected[n, head * dim + first] = a * cos - b * sin
                expected[n, head * dim + second] = b * cos + a * sin
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 4])
def test_contract_accumulates_in_float32_and_keeps_rows_apart(dtype: torch.dtype, rows: int) -> None:
    x, w = torch.randn(rows, 37).to(dtype), torch.randn(11, 37).to(dtype)
    x = torch.cat((x, torch.full((1, 37), NAN, dtype=dtype)))
    out = IMPLEMENTATIONS["tile.contract"](x, w)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[:rows].double(), x[:rows].double() @ w.double().T, rtol=1e-5, atol=1e-5)
    assert out[rows].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [1, 4, 11, 12])
def test_contract_of_a_single_row(outputs: int, dtype: torch.dtype) -> None:
    x, w = torch.randn(3, 37).to(dtype), torch.randn(outputs, 37).to(dtype)
    for row in (x[:1], x[1:2]):
        out = IMPLEMENTATIONS["tile.contract"](row, w)
        assert out.shape == (1, outputs)
        torch.testing.assert_close(out.double(), row.double() @ w.double().T, rtol=1e-5, atol=1e-5)


def test_map_broadcasts_size_one_axes_and_scalars() -> None:
    apply = IMPLEMENTATIONS["tile.map"]
    x, column, row, two = torch.randn(3, 5), torch.randn(3, 1), torch.randn(1, 5), torch.tensor(2.0)
    assert torch.equal(apply(x, column, kind="mul"), torch.stack([x[i] * column[i] for i in range(3)]))
    assert torch.equal(apply(x, row, kind="sub"), torch.stack([x[i] - row[0] for i in range(3)]))
    assert torch.equal(apply(x, two, kind="div"), x / 2)
    assert apply(i32([1, 2]), i32(1), kind="add").tolist() == [2, 3]


def test_a_kind_defined_elsewhere_is_found_by_map_and_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALARS, "probe", None)
    monkeypatch.setitem(REDUCTIONS, "probe", None)
    del SCALARS["probe"], REDUCTIONS["probe"]
    scalar("probe")(lambda a, b: a * 10 + b)
    reduction("probe")(lambda x: x[..., :1])
    assert IMPLEMENTATIONS["tile.map"](torch.tensor(2.0), torch.tensor(3.0), kind="probe") == 23
    assert IMPLEMENTATIONS["tile.reduce"](torch.tensor([[4.0, 5.0]]), kind="probe").tolist() == [[4.0]]


@pytest.mark.parametrize("kind", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("size", [1, 7])
def test_reduce_keeps_the_last_axis(kind: str, size: int) -> None:
    x = torch.randn(3, size)
    table = {"sum": math.fsum, "max": max, "min": min, "mean": lambda row: math.fsum(row) / len(row)}
    out = IMPLEMENTATIONS["tile.reduce"](x, kind=kind)
    expected = torch.tensor([[table[kind](row)] for row in x.double().tolist()], dtype=torch.float64)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


def test_cast_rounds_to_nearest_even_and_is_free_where_it_changes_nothing() -> None:
    cast = IMPLEMENTATIONS["tile.cast"]
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20])
    assert cast(x, dtype="bf16").tolist() == [1.0, 1 + 2.0**-6, 1 + 2.0**-7]
    assert cast(x, dtype="f32") is x


def test_constants_and_gathers() -> None:
    constant, gather = IMPLEMENTATIONS["tile.constant"], IMPLEMENTATIONS["tile.gather"]
    assert (constant(value=1.5).dtype, constant(value=3).dtype) == (torch.float32, torch.int32)
    assert constant(value=-math.inf) == -math.inf
    table = torch.randn(5, 3)
    assert torch.equal(gather(table, i32([4, 0, 4])), torch.stack([table[4], table[0], table[4]]))
    with pytest.raises(IndexError):
        gather(table, i32([-1]))

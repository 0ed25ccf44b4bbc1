"""The meaning of the `transformer` ops, against plain loops in float64 and simple references."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import RepetitionPenaltyLogitsProcessor

from lamella.semantics import IMPLEMENTATIONS, REDUCTIONS, SCALARS
from lamella.semantics.attention import attend, sequence_of, slots
from lamella.semantics.rope import inverse_frequencies
from lamella.semantics.sampling import keep_min_p, keep_top_k, keep_top_p, uniform

BLOCK, KV_HEADS, GROUP, HEAD_DIM = 4, 2, 3, 8
HEADS = KV_HEADS * GROUP
SIZES = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "scale": HEAD_DIM**-0.5}

# Lengths of (query, context) of each sequence, and rows of padding after them.
BATCHES = {
    "one token": ([(1, 1)], 0),
    "prefill": ([(13, 13)], 0),
    "prefill past one tile": ([(150, 150)], 2),
    "decode": ([(1, 1), (1, 9), (1, 33)], 0),
    "ragged": ([(1, 5), (1, 17), (37, 41), (1, 12)], 5),
    "idle sequences": ([(2, 6), (0, 9), (1, 7), (0, 0)], 3),
    "chunks past one tile": ([(70, 90), (1, 3), (65, 65)], 1),
}


def paged_batch(lengths, padding, seed=0):
    """Inputs of a ragged step whose caches hold NaN wherever no sequence has a token, and the keys and values in order."""
    generator = torch.Generator().manual_seed(seed)
    width = max(1, *(-(-context // BLOCK) for _, context in lengths))
    owned = [-(-context // BLOCK) for _, context in lengths]
    order = 1 + torch.randperm(sum(owned) + 3, generator=generator)
    cache = torch.full((len(order) + 1, 2, KV_HEADS, BLOCK, HEAD_DIM), math.nan)
    table = torch.zeros(len(lengths), width, dtype=torch.int32)
    contents, free = [], iter(order.tolist())
    for row, (_, context) in enumerate(lengths):
        kv = torch.randn(2, KV_HEADS, context, HEAD_DIM, generator=generator)
        for i in range(owned[row]):
            table[row, i] = next(free)
        for t in range(context):
            cache[table[row, t // BLOCK], :, :, t % BLOCK] = kv[:, :, t]
        contents.append(kv)
    # Entries past a sequence's blocks may hold anything: here, a block of another sequence or of nobody.
    for row in range(len(lengths)):
        table[row, owned[row] :] = int(order[-1])
    counts = torch.tensor([q for q, _ in lengths], dtype=torch.int32)
    query_start = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)))
    q = torch.randn(int(counts.sum()) + padding, HEADS * HEAD_DIM, generator=generator)
    q[int(counts.sum()) :] = math.nan
    context_len = torch.tensor([c for _, c in lengths], dtype=torch.int32)
    return q, cache, table, query_start, context_len, contents


def plain_attention(q, query_start, context_len, contents):
    """One query and head at a time, in float64."""
    out = torch.zeros(int(query_start[-1]), HEADS, HEAD_DIM, dtype=torch.float64)
    for b, kv in enumerate(contents):
        first, last = int(query_start[b]), int(query_start[b + 1])
        for n in range(first, last):
            seen = int(context_len[b]) - (last - first) + (n - first) + 1
            for h in range(HEADS):
                keys, values = kv[:, h // GROUP, :seen].double()
                weights = (keys @ q[n].view(HEADS, HEAD_DIM)[h].double() * SIZES["scale"]).softmax(0)
                out[n, h] = weights @ values
    return out.reshape(-1, HEADS * HEAD_DIM)


@pytest.mark.parametrize("name", BATCHES)
def test_attention_equals_a_loop_over_sequences(name):
    q, cache, table, query_start, context_len, contents = paged_batch(*BATCHES[name])
    before = cache.clone()
    got = IMPLEMENTATIONS["transformer.attention"](q, cache, table, query_start, context_len, **SIZES)
    expected = plain_attention(q, query_start, context_len, contents)
    torch.testing.assert_close(got[: expected.shape[0]].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(cache.isnan(), before.isnan())


def test_attention_of_no_real_token_is_zero():
    q, cache, table, query_start, context_len, _ = paged_batch([(0, 3), (0, 0)], 2)
    assert torch.equal(attend(q, cache, table, query_start, context_len, **SIZES), torch.zeros_like(q))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_rounds_once(dtype):
    q, cache, table, query_start, context_len, _ = paged_batch(*BATCHES["ragged"])
    real = int(query_start[-1])
    q, cache = q[:real].to(dtype), cache.to(dtype)
    got = IMPLEMENTATIONS["transformer.attention"](q, cache, table, query_start, context_len, **SIZES)
    wide = attend(q.float(), cache.float(), table, query_start, context_len, **SIZES)
    assert got.dtype == dtype
    assert torch.equal(got, wide.to(dtype))


def test_cache_write_fills_the_slots_of_real_tokens_only():
    lengths, padding = BATCHES["ragged"]
    q, cache, table, query_start, _context_len, contents = paged_batch(lengths, padding)
    tokens, real = q.shape[0], int(query_start[-1])
    positions = torch.full((tokens,), 10_000, dtype=torch.int32)
    k, v = (torch.full((tokens, KV_HEADS * HEAD_DIM), math.nan) for _ in range(2))
    for b, (queries, context) in enumerate(lengths):
        rows = slice(int(query_start[b]), int(query_start[b + 1]))
        positions[rows] = torch.arange(context - queries, context, dtype=torch.int32)
        k[rows], v[rows] = contents[b][:, :, context - queries :].transpose(1, 2).reshape(2, queries, -1)
    expected = cache.clone()
    for b, (queries, context) in enumerate(lengths):
        for t in range(context - queries, context):
            cache[table[b, t // BLOCK], :, :, t % BLOCK] = -1.0
    written = IMPLEMENTATIONS["transformer.cache_write"](cache, k, v, positions, query_start, table)
    assert written is cache
    assert torch.equal(cache[1:].nan_to_num(7.0), expected[1:].nan_to_num(7.0))
    places = slots(positions, query_start, table, block=BLOCK)
    assert places.dtype == torch.int32
    assert (places[real:] == 0).all()
    assert (places[:real] >= BLOCK).all()


def test_a_position_past_the_block_table_is_an_error():
    table, starts = torch.ones(1, 2, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(IndexError):
        slots(torch.tensor([2 * BLOCK], dtype=torch.int32), starts, table, block=BLOCK)


def test_sequence_of_skips_empty_sequences():
    starts = torch.tensor([0, 2, 2, 5, 5], dtype=torch.int32)
    assert sequence_of(starts, 7).tolist() == [0, 0, 2, 2, 2, 4, 4]


@pytest.mark.parametrize("rotary_dim", [16, 8, 2])
def test_paired_rope_is_half_split_rope_of_paired_rows(rotary_dim):
    heads, head_dim, hidden = 3, 16, 20
    weight, bias, x = torch.randn(heads * head_dim, hidden), torch.randn(heads * head_dim), torch.randn(5, hidden)
    positions = torch.tensor([0, 1, 7, 1000, 3], dtype=torch.int32)
    pair = {"head_dim": head_dim, "rotary_dim": rotary_dim}
    options = {"heads": heads, "theta": 10000.0, "scaling": {}, **pair}
    linear, rope = IMPLEMENTATIONS["transformer.linear"], IMPLEMENTATIONS["transformer.rope"]
    pair_rows = IMPLEMENTATIONS["transformer.pair_rows"]
    half = rope(linear(x, weight, bias, dtype="f32"), positions, style="half", **options)
    paired = rope(linear(x, pair_rows(weight, **pair), pair_rows(bias, **pair), dtype="f32"), positions, style="paired", **options)
    torch.testing.assert_close(paired, pair_rows(half.T, **pair).T)
    assert not torch.equal(paired, half) or rotary_dim == 2
    table = IMPLEMENTATIONS["transformer.rope_table"](length=1001, rotary_dim=rotary_dim, theta=10000.0, scaling={})
    assert table.shape == (1001, rotary_dim)
    rotated = IMPLEMENTATIONS["transformer.rotate"](
        linear(x, weight, bias, dtype="f32"), positions, table, heads=heads, style="half", **pair
    )
    assert torch.equal(rotated, half)


def test_rope_turns_pairs_by_position_times_frequency():
    x = torch.randn(4, 2 * 6, dtype=torch.float64).float()
    positions = torch.tensor([0, 3, 50, 9], dtype=torch.int32)
    got = IMPLEMENTATIONS["transformer.rope"](x, positions, heads=2, head_dim=6, rotary_dim=4, theta=100.0, scaling={}, style="half").view(
        4, 2, 6
    )
    heads = x.view(4, 2, 6).double()
    for n, p in enumerate(positions.tolist()):
        for h in range(2):
            for j in range(2):
                turn = torch.complex(heads[n, h, j], heads[n, h, j + 2]) * torch.polar(
                    torch.tensor(1.0, dtype=torch.float64), torch.tensor(p * 100.0 ** (-2 * j / 4), dtype=torch.float64)
                )
                assert abs(got[n, h, j] - turn.real) < 1e-5
                assert abs(got[n, h, j + 2] - turn.imag) < 1e-5
    assert torch.equal(got[..., 4:], x.view(4, 2, 6)[..., 4:])


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    ],
)
def test_inverse_frequencies_are_those_of_transformers(scaling):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_theta": 500000.0, "rope_type": "default", **scaling}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=rope, max_position_embeddings=131072)
    assert torch.equal(inverse_frequencies(64, 500000.0, scaling), LlamaRotaryEmbedding(config).inv_freq)


def test_an_unknown_scaling_is_named():
    with pytest.raises(ValueError, match="yarm"):
        inverse_frequencies(64, 10000.0, {"rope_type": "yarm", "factor": 2.0})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7])
def test_rms_norm(dtype, rows):
    x, weight = torch.randn(rows, 33).to(dtype), torch.randn(33).to(dtype)
    normal = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    got = IMPLEMENTATIONS["transformer.rms_norm"](x, weight, eps=1e-5)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(got.double(), normal.to(dtype).double() * weight.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_without_weights_and_with_offsets_round_once(dtype):
    x, weight, bias = torch.randn(7, 33).to(dtype), torch.randn(33).to(dtype), torch.randn(33).to(dtype)
    rms, layer = IMPLEMENTATIONS["transformer.rms_norm"], IMPLEMENTATIONS["transformer.layer_norm"]
    normal = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    cases = [
        (rms(x, eps=1e-5), normal),
        (rms(x, weight, eps=1e-5, offset=1.0), normal * (1 + weight.double())),
        (layer(x, eps=1e-5), F.layer_norm(x.double(), (33,), eps=1e-5)),
        (layer(x, weight, eps=1e-5), F.layer_norm(x.double(), (33,), weight.double(), eps=1e-5)),
        (layer(x, weight, bias, eps=1e-5), F.layer_norm(x.double(), (33,), weight.double(), bias.double(), 1e-5)),
    ]
    relative, absolute = (1e-5, 1e-5) if dtype == torch.float32 else (2**-8, 1e-5)
    for got, exact in cases:
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), exact, rtol=relative, atol=absolute)


def test_weight_transforms():
    weight, gamma, bias = torch.randn(6, 5).bfloat16(), torch.randn(5).bfloat16(), torch.randn(6).bfloat16()
    scaled = IMPLEMENTATIONS["transformer.scale_columns"](weight, gamma)
    assert torch.equal(scaled, (weight.double() * gamma.double()).bfloat16())
    gemma = IMPLEMENTATIONS["transformer.scale_columns"](weight, gamma, offset=1.0)
    torch.testing.assert_close(gemma.double(), weight.double() * (1 + gamma.double()), rtol=2**-8, atol=1e-6)
    shifted = IMPLEMENTATIONS["transformer.shift_bias"](bias, weight, gamma)
    assert shifted.dtype == torch.bfloat16
    torch.testing.assert_close(shifted.double(), bias.double() + weight.double() @ gamma.double(), rtol=2**-8, atol=1e-6)
    joined = IMPLEMENTATIONS["transformer.concat_rows"](weight, scaled[:2])
    assert torch.equal(joined[6:], scaled[:2])
    turned = IMPLEMENTATIONS["transformer.transpose"](joined)
    assert (turned.shape, turned.is_contiguous()) == ((5, 8), True)
    assert torch.equal(turned[:, 3], weight[3])


def test_linear_accumulates_in_float32_and_rounds_once():
    x, weight, bias = torch.randn(3, 500).bfloat16(), torch.randn(40, 500).bfloat16(), torch.randn(40).bfloat16()
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(IMPLEMENTATIONS["transformer.linear"](x, weight, bias, dtype="f32").double(), exact, rtol=1e-4, atol=1e-4)
    rounded = IMPLEMENTATIONS["transformer.linear"](x, weight, bias, dtype="bf16")
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), exact, rtol=2**-8, atol=1e-3)


def test_rows_are_gathered():
    table, rows = torch.randn(9, 4), torch.tensor([8, 0, 8], dtype=torch.int32)
    assert torch.equal(IMPLEMENTATIONS["transformer.embedding"](rows, table), table[[8, 0, 8]])
    assert torch.equal(IMPLEMENTATIONS["transformer.gather_rows"](rows, torch.tensor([1], dtype=torch.int32)), rows[1:2])
    assert IMPLEMENTATIONS["transformer.advance"](rows).tolist() == [9, 1, 9]
    with pytest.raises(IndexError):
        IMPLEMENTATIONS["transformer.embedding"](rows + 1, table)


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "maximum"])
def test_binary_kinds_round_once(kind):
    x, y = torch.randn(50).bfloat16(), torch.randn(50).bfloat16()
    expected = SCALARS[kind](x.double(), y.double()).bfloat16()
    assert torch.equal(IMPLEMENTATIONS[f"transformer.{kind}"](x, y), expected)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "tanh", "sigmoid", "exp", "sqrt", "neg"])
def test_unary_kinds_are_computed_wide(kind):
    x = torch.randn(50).abs().bfloat16()
    got = IMPLEMENTATIONS[f"transformer.{kind}"](x)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, SCALARS[kind](x.float()).bfloat16())


def test_scalars_against_their_formulas():
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    torch.testing.assert_close(SCALARS["silu"](x), x / (1 + (-x).exp()))
    torch.testing.assert_close(SCALARS["gelu"](x), x * 0.5 * (1 + torch.erf(x / math.sqrt(2))))
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    torch.testing.assert_close(SCALARS["gelu_tanh"](x), 0.5 * x * (1 + tanh))
    torch.testing.assert_close(SCALARS["rsqrt"](x.abs() + 1), (x.abs() + 1) ** -0.5)
    assert SCALARS["add"](torch.tensor([1, 2], dtype=torch.int32), torch.tensor(3, dtype=torch.int32)).tolist() == [4, 5]
    for kind, expected in {"sum": 0.0, "mean": 0.0, "max": 4.0, "min": -4.0}.items():
        torch.testing.assert_close(REDUCTIONS[kind](x[None]), torch.tensor([[expected]], dtype=torch.float64))


def sample(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0):
    rows = logits.shape[0]
    fill = {"dtype": torch.int32}
    return IMPLEMENTATIONS["transformer.sample"](
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, **fill),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.full((rows,), seed, **fill) if isinstance(seed, int) else seed.int(),
        torch.full((rows,), position, **fill) if isinstance(position, int) else position.int(),
    )


def kept_by_loop(z, top_k, top_p):
    """The indices that may be drawn, one value at a time."""
    kept = list(range(len(z)))
    if 0 < top_k < len(z):
        smallest = sorted(z, reverse=True)[top_k - 1]
        kept = [i for i in kept if z[i] >= smallest]
    if top_p < 1:
        total = sum(math.exp(z[i]) for i in kept)
        above = {i: sum(math.exp(z[j]) for j in kept if z[j] > z[i]) / total for i in kept}
        largest = max(z[i] for i in kept)
        kept = [i for i in kept if above[i] < top_p or z[i] == largest]
    return kept


@pytest.mark.parametrize("top_k", [0, 1, 3, 10, 40, 100])
@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.93, 1.0])
def test_top_k_then_top_p(top_k, top_p):
    generator = torch.Generator().manual_seed(top_k)
    z = (torch.randn(6, 40, generator=generator) * 4).round() / 2
    kept = keep_top_k(z, torch.full((6,), top_k))
    kept = keep_top_p(z, kept, torch.full((6,), top_p))
    assert [row.nonzero().flatten().tolist() for row in kept] == [kept_by_loop(row, top_k, top_p) for row in z.double().tolist()]
    drawn = sample(z, top_k=top_k, top_p=top_p, seed=11)
    assert all(kept[r, token] for r, token in enumerate(drawn.tolist()))


@pytest.mark.parametrize("min_p", [0.0, 1e-6, 0.03, 0.5, 1.0])
def test_min_p_keeps_a_share_of_the_likeliest(min_p):
    """As its definition says: of those kept before, whose probability is at least min_p times the largest."""
    z = torch.randn(6, 40, generator=torch.Generator().manual_seed(7)) * 3
    before = keep_top_k(z, torch.full((6,), 30))
    kept = keep_min_p(z, before, torch.full((6,), min_p))
    probability = z.double().masked_fill(~before, -math.inf).softmax(-1)
    assert torch.equal(kept, before & (probability >= min_p * probability.amax(-1, keepdim=True)))
    assert kept.any(-1).all()
    drawn = sample(z, top_k=30, min_p=min_p, seed=5)
    assert all(kept[r, token] for r, token in enumerate(drawn.tolist()))


def test_min_p_of_infinite_logits():
    logits = torch.tensor([[0.0, math.inf, math.inf], [-math.inf] * 3, [math.nan, 1.0, -math.inf]])
    assert {sample(logits, min_p=0.1, seed=seed)[0].item() for seed in range(20)} <= {1, 2}
    assert sample(logits, min_p=0.1)[2].item() == 1


def test_penalties_are_those_of_transformers():
    """Logits of both signs, infinite and NaN, of tokens that a text has and of others; a factor of 1 changes no bit."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 50, generator=generator) * 4
    logits[0, :4] = torch.tensor([math.inf, -math.inf, 0.0, -0.0])
    texts, penalty = torch.randint(0, 50, (3, 20), generator=generator), 1.7
    factors = torch.ones(3, 50)
    for column in texts.T:
        factors = IMPLEMENTATIONS["transformer.mark"](factors, column.int(), torch.full((3,), penalty))
    found = IMPLEMENTATIONS["transformer.penalize"](logits, factors)
    torch.testing.assert_close(found, RepetitionPenaltyLogitsProcessor(penalty)(texts, logits.clone()), rtol=0, atol=0)
    same = IMPLEMENTATIONS["transformer.penalize"](logits, torch.ones(3, 50))
    assert torch.equal(same, logits)


def test_greedy_takes_the_first_of_the_largest_and_never_nan():
    logits = torch.tensor([[1.0, 5.0, 5.0], [math.nan, -2.0, -1.0], [math.nan] * 3, [-math.inf] * 3, [0.0, math.inf, math.nan]])
    assert sample(logits, temperature=0.0).tolist() == [1, 2, 0, 0, 1]
    assert sample(logits, top_k=2, top_p=0.5)[1].item() in (1, 2)
    assert ((sample(logits, top_p=0.5) >= 0) & (sample(logits, top_p=0.5) < 3)).all()


def test_rows_with_and_without_temperature_do_not_mix():
    logits = torch.randn(2, 30)
    ints = torch.zeros(2, dtype=torch.int32)
    mixed = IMPLEMENTATIONS["transformer.sample"](logits, torch.tensor([0.0, 1.5]), ints, torch.ones(2), torch.zeros(2), ints + 4, ints + 9)
    assert mixed.dtype == torch.int32
    assert mixed[0] == logits[0].argmax()
    assert mixed[1] == sample(logits[1:], temperature=1.5, seed=4, position=9)[0]


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0])
    draws = 20_000
    tokens = sample(logits.expand(draws, 5), temperature=0.7, seed=torch.arange(draws) // 100, position=torch.arange(draws) % 100)
    seen = torch.bincount(tokens.long(), minlength=5) / draws
    # Five standard deviations of a frequency near one half.
    torch.testing.assert_close(seen, (logits / 0.7).softmax(-1), rtol=0, atol=5 * 0.5 / math.sqrt(draws))


def test_the_generator_depends_on_seed_position_and_index_alone():
    seed, position = torch.tensor([3, 3, -4], dtype=torch.int32), torch.tensor([8, 9, 8], dtype=torch.int32)
    u = uniform(seed, position, 1000)
    assert u.dtype == torch.float32
    assert ((u > 0) & (u < 1)).all()
    assert torch.equal(uniform(seed[1:2], position[1:2], 500), u[1:2, :500])
    assert len({tuple(row.tolist()) for row in u}) == 3
    assert abs(u.mean().item() - 0.5) < 0.03


def test_the_generator_is_the_documented_formula():
    word = 0xFFFFFFFF

    def mix(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = ((x ^ (x >> shift)) * factor) & word
        return x ^ (x >> 16)

    seed, position, index = -7, 123, 77
    h = mix(mix(mix(seed & word) ^ (position * 0x9E3779B9 & word)) ^ (index * 0x85EBCA6B & word))
    expected = torch.tensor((h >> 8) * 2.0**-24 + 2.0**-25, dtype=torch.float64).float().clamp(max=1 - 2.0**-24)
    assert uniform(torch.tensor([seed]), torch.tensor([position]), 78)[0, index] == expected


def test_slices_of_columns_are_linears_on_slices_of_rows() -> None:
    x, weight = torch.randn(3, 8), torch.randn(12, 8)
    bias = torch.randn(12)
    linear = IMPLEMENTATIONS["transformer.linear"]
    rows, columns = IMPLEMENTATIONS["transformer.slice_rows"], IMPLEMENTATIONS["transformer.slice_columns"]
    whole = linear(x, weight, bias, dtype="f32")
    for start, size in ((0, 8), (8, 4), (3, 1)):
        part = linear(x, rows(weight, start=start, size=size), rows(bias, start=start, size=size), dtype="f32")
        torch.testing.assert_close(columns(whole, start=start, size=size), part)
        assert torch.equal(columns(whole, start=start, size=size), whole[:, start : start + size])

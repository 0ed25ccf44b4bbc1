"""The paged cache and attention over it, for a ragged batch of tokens."""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, f64, i64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.attributes import element_name, element_of
from lamella.dialects.score_modifiers import ScoreModifiers, complaint
from lamella.dialects.transformer.types import (
    FloatTensor,
    IndexTensor,
    KVCacheType,
    Order,
    TransformerOp,
    Value,
    located,
    one_more,
    order_of,
    ordered,
)


@irdl_op_definition
class CacheWriteOp(TransformerOp):
    """cache, k[N,Hkv·D], v[N,Hkv·D], positions[N], query_start[B+1], block_table[B,M] -> the cache with the tokens' keys and values.

    The operand is dead afterwards: below level 3 the write happens in place. Padding tokens write to the null block. Into a cache of float8
    each head of a token is rounded after its division by its scale.
    """

    name = "transformer.cache_write"

    cache = operand_def(KVCacheType)
    k = operand_def(FloatTensor)
    v = operand_def(FloatTensor)
    positions = operand_def(IndexTensor)
    query_start = operand_def(IndexTensor)
    block_table = operand_def(IndexTensor)
    result = result_def(KVCacheType)

    traits = traits_def(Pure())

    def __init__(
        self, cache: Value, k: Value, v: Value, positions: Value, query_start: Value, block_table: Value, *, loc: str | None = None
    ) -> None:
        super().__init__(
            operands=[cache, k, v, positions, query_start, block_table],
            result_types=[SSAValue.get(cache).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        cache = self.cache.type
        assert isinstance(cache, KVCacheType)
        rows, _ = self.dimensions("k", self.k, 2)
        sequences, _ = self.dimensions("block_table", self.block_table, 2)
        for what, value in (("k", self.k), ("v", self.v)):
            self.expect_shape(what, value, (rows, cache.kv_heads.data * cache.head_dim.data), "the heads of the cache")
            if element_name(cache.element_type) not in ("f8", element_of(value)):
                raise self.fail(
                    f"{what} has element type {element_of(value)}, expected {element_name(cache.element_type)}, that of the cache"
                )
        if order_of(self.k.type) not in (None, key_order(cache)):
            raise self.fail(f"k lies in {order_of(self.k.type)}, expected {key_order(cache) or 'plain order'}, that of the cache's keys")
        self.expect_order("v", self.v, None, "that of the cache's values")
        self.expect_shape("positions", self.positions, (rows,), "the rows of k")
        self.expect_shape("query_start", self.query_start, (one_more(sequences),), "one more than the sequences of block_table")
        if self.result.type != cache:
            raise self.fail(f"result has type {self.result.type}, expected {cache}, that of the cache")


@irdl_op_definition
class AttentionOp(TransformerOp):
    """q[N,H·D], cache, block_table[B,M], query_start[B+1], context_len[B] (, sinks[H]) -> [N,H·D]: softmax(scale·q·k)·v over the paged cache.

    Query i of the Q queries of sequence b sees positions t <= context_len[b] - Q + i; query head h reads KV head h // (heads/kv_heads).
    With a `window` it sees that many of them, the last ones; `bidirectional` it sees all. With a `score_cap` c a score s becomes
    c·tanh(s / c) (Gemma 2); `alibi` adds a slope of each head times t minus the query's position (Press et al. 2021, arXiv 2108.12409).
    `sinks` are scores of their own, one a head, that join the softmax's sum and weigh no value (gpt-oss).
    """

    name = "transformer.attention"

    q = operand_def(FloatTensor)
    cache = operand_def(KVCacheType)
    block_table = operand_def(IndexTensor)
    query_start = operand_def(IndexTensor)
    context_len = operand_def(IndexTensor)
    sinks = opt_operand_def(FloatTensor)
    heads = prop_def(IntegerAttr)
    kv_heads = prop_def(IntegerAttr)
    head_dim = prop_def(IntegerAttr)
    scale = prop_def(FloatAttr)
    window = opt_prop_def(IntegerAttr)
    score_cap = opt_prop_def(FloatAttr)
    alibi = opt_prop_def(FloatAttr)
    bidirectional = opt_prop_def(IntegerAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(
        self,
        q: Value,
        cache: Value,
        block_table: Value,
        query_start: Value,
        context_len: Value,
        sinks: Value | None = None,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        score_cap: float = 0.0,
        alibi: float = 0.0,
        bidirectional: bool = False,
        loc: str | None = None,
    ) -> None:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        super().__init__(
            operands=[q, cache, block_table, query_start, context_len, [] if sinks is None else [sinks]],
            properties={
                **{name: IntegerAttr(size, i64) for name, size in sizes.items()},
                "scale": FloatAttr(scale, f64),
                **ScoreModifiers(window, score_cap, alibi, bidirectional).properties(),
            },
            result_types=[ordered(SSAValue.get(q).type, None)],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        cache = self.cache.type
        assert isinstance(cache, KVCacheType)
        heads, kv_heads, head_dim = (p.value.data for p in (self.heads, self.kv_heads, self.head_dim))
        if (cache.kv_heads.data, cache.head_dim.data) != (kv_heads, head_dim):
            raise self.fail(
                f"cache has {cache.kv_heads.data} heads of {cache.head_dim.data}, expected {kv_heads} of {head_dim}, kv_heads and head_dim"
            )
        if heads % kv_heads:
            raise self.fail(f"heads is {heads}, expected a multiple of kv_heads = {kv_heads}")
        wrong = complaint(self)
        if wrong is not None:
            raise self.fail(wrong)
        if self.sinks is not None:
            self.expect_shape("sinks", self.sinks, (heads,), "one a head")
        rows, _ = self.dimensions("q", self.q, 2)
        sequences, _ = self.dimensions("block_table", self.block_table, 2)
        self.expect_shape("q", self.q, (rows, heads * head_dim), "heads times head_dim")
        self.expect_shape("query_start", self.query_start, (one_more(sequences),), "one more than the sequences of block_table")
        self.expect_shape("context_len", self.context_len, (sequences,), "the sequences of block_table")
        self.expect_like("result", self.result, self.q, "q")
        if order_of(self.q.type) not in (None, key_order(cache)):
            raise self.fail(f"q lies in {order_of(self.q.type)}, expected {key_order(cache) or 'plain order'}, that of the cache's keys")
        self.expect_order("result", self.result, None, "that of the cache's values")


def key_order(cache: KVCacheType) -> Order | None:
    """The order of the numbers of a key in a cache."""
    return Order(cache.head_dim.data, cache.paired.data) if cache.paired.data else None

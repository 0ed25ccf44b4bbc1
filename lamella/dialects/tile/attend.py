"""Attention over the paged cache: whole, or as partial results over chunks of the context and their merge."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, FloatAttr, IntegerAttr, StringAttr, TensorType, f32, f64, i32, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import element_of, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.score_modifiers import ScoreModifiers, complaint
from lamella.dialects.tile.structured import loc_attribute


def _verify_operands(op: AttendOp | AttendPartialOp) -> None:
    wrong = complaint(op)
    if wrong is not None:
        raise VerifyException(f"{subject(op)}: {wrong}")
    heads, kv_heads, dim = op.heads.value.data, op.kv_heads.value.data, op.head_dim.value.data
    if heads % kv_heads:
        raise VerifyException(f"{subject(op)}: {heads} heads cannot share {kv_heads} key/value heads evenly")
    if shape_of(op.q)[1:] != (heads * dim,):
        raise VerifyException(f"{subject(op)}: q has shape {shape_of(op.q)}, expected (_, {heads * dim}), heads times head_dim")
    cache = shape_of(op.cache)
    if len(cache) != 5 or cache[1] != 2 or cache[2] != kv_heads or cache[4] != dim:
        raise VerifyException(f"{subject(op)}: cache has type {op.cache.type}, expected (blocks, 2, {kv_heads}, slots, {dim})")
    if op.sinks is not None and shape_of(op.sinks) != (heads,):
        raise VerifyException(f"{subject(op)}: sinks have shape {shape_of(op.sinks)}, expected ({heads},), one a head")
    if (op.scales is not None) != (element_of(op.cache) == "f8"):
        raise VerifyException(f"{subject(op)}: a cache of {element_of(op.cache)} has {'no' if op.scales is None else 'a'} tensor of scales")
    if op.scales is not None and (element_of(op.scales) != "f32" or shape_of(op.scales)[:-1] != cache[:-1] or shape_of(op.scales)[-1] != 1):
        raise VerifyException(
            f"{subject(op)}: scales have type {op.scales.type}, expected f32, one for each head of each slot of {op.cache.type}"
        )
    sequences = shape_of(op.context_len)[0]
    if shape_of(op.query_start) != (sequences + 1,) or shape_of(op.block_table)[0] != sequences:
        raise VerifyException(
            f"{subject(op)}: block_table {shape_of(op.block_table)} and query_start {shape_of(op.query_start)} do not fit {sequences} sequences"
        )


@irdl_op_definition
class AttendOp(IRDLOperation):
    """softmax(scale q kᵀ) v of each query over its sequence's cached positions up to its own, in float32: [N,H*D].

    Sequence b owns tokens query_start[b] to query_start[b+1] and context_len[b] cached positions, its own included; block_table[b]
    names its blocks. With a `window` a query sees that many positions, its own the last, `bidirectional` all of its sequence; with a
    `score_cap` c a score s becomes c·tanh(s / c); `alibi` adds a slope of each head times the key's distance, `sinks` one score a head to the
    sum alone. A cache of float8 comes with `scales` [blocks, 2, Hkv, S, 1] f32, by which the numbers of a head of a slot are multiplied. Attention Is All You Need, arXiv 1706.03762; paged as in vLLM, arXiv 2309.06180.
    """

    name = "tile.attend"

    q = operand_def(TensorType)
    cache = operand_def(TensorType)
    block_table = operand_def(TensorType)
    query_start = operand_def(TensorType)
    context_len = operand_def(TensorType)
    scales = opt_operand_def(TensorType)
    sinks = opt_operand_def(TensorType)
    heads = prop_def(IntegerAttr)
    kv_heads = prop_def(IntegerAttr)
    head_dim = prop_def(IntegerAttr)
    scale = prop_def(FloatAttr)
    window = opt_prop_def(IntegerAttr)
    score_cap = opt_prop_def(FloatAttr)
    alibi = opt_prop_def(FloatAttr)
    bidirectional = opt_prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$q `,` $cache `,` $block_table `,` $query_start `,` $context_len (`scales` $scales^)? (`sinks` $sinks^)? attr-dict "
        "`:` type($q) `,` type($cache) `,` type($block_table) `,` type($query_start) `,` type($context_len) (`scales` type($scales)^)? (`,` type($sinks)^)? "
        "`->` type($result)"
    )

    def __init__(
        self,
        q: SSAValue,
        cache: SSAValue,
        block_table: SSAValue,
        query_start: SSAValue,
        context_len: SSAValue,
        sinks: SSAValue | None = None,
        *,
        scales: SSAValue | None = None,
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
        super().__init__(
            operands=[
                q,
                cache,
                block_table,
                query_start,
                context_len,
                [] if scales is None else [scales],
                [] if sinks is None else [sinks],
            ],
            properties={
                "heads": IntegerAttr(heads, i64),
                "kv_heads": IntegerAttr(kv_heads, i64),
                "head_dim": IntegerAttr(head_dim, i64),
                "scale": FloatAttr(scale, f64),
                **ScoreModifiers(window, score_cap, alibi, bidirectional).properties(),
            },
            result_types=[TensorType(f32, shape_of(q))],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        _verify_operands(self)
        if shape_of(self.result) != shape_of(self.q):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {shape_of(self.q)}, that of q")


@irdl_op_definition
class AttendPartialOp(IRDLOperation):
    """Attention over each of P = `splits` chunks of a sequence's context, not yet normalized (Flash-Decoding).

    Chunks take turns: chunk p of a sequence holds every P-th run of T = `tile` positions from run p on; with a `window` runs count from the
    multiple of T at or before the first position that some query of the sequence sees. Results: acc[N,H,P,D] = sum of exp(s - m) v,
    max[N,H,P] = m and sum[N,H,P] = sum of exp(s - m); a chunk without positions has m = -inf and zeros. `sinks` belong to the first chunk.
    """

    name = "tile.attend_partial"

    q = operand_def(TensorType)
    cache = operand_def(TensorType)
    block_table = operand_def(TensorType)
    query_start = operand_def(TensorType)
    context_len = operand_def(TensorType)
    scales = opt_operand_def(TensorType)
    sinks = opt_operand_def(TensorType)
    heads = prop_def(IntegerAttr)
    kv_heads = prop_def(IntegerAttr)
    head_dim = prop_def(IntegerAttr)
    scale = prop_def(FloatAttr)
    window = opt_prop_def(IntegerAttr)
    score_cap = opt_prop_def(FloatAttr)
    alibi = opt_prop_def(FloatAttr)
    bidirectional = opt_prop_def(IntegerAttr)
    splits = prop_def(IntegerAttr)
    tile = prop_def(IntegerAttr)
    acc = result_def(TensorType.constr(Float32Type()))
    max = result_def(TensorType.constr(Float32Type()))
    sum = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$q `,` $cache `,` $block_table `,` $query_start `,` $context_len (`scales` $scales^)? (`sinks` $sinks^)? attr-dict "
        "`:` type($q) `,` type($cache) `,` type($block_table) `,` type($query_start) `,` type($context_len) (`scales` type($scales)^)? (`,` type($sinks)^)? "
        "`->` type($acc) `,` type($max) `,` type($sum)"
    )

    def __init__(self, attend: AttendOp, operands: list[SSAValue], *, splits: int, tile: int) -> None:
        """The partial form of `attend`, on other `operands`, in `splits` chunks of whole tiles of `tile` positions."""
        tokens, heads, dim = shape_of(attend.q)[0], attend.heads.value.data, attend.head_dim.value.data
        scaled = 5 if attend.scales is None else 6
        super().__init__(
            operands=[*operands[:5], operands[5:scaled], operands[scaled:]],
            properties={
                "heads": attend.heads,
                "kv_heads": attend.kv_heads,
                "head_dim": attend.head_dim,
                "scale": attend.scale,
                **ScoreModifiers.of(attend).properties(),
                "splits": IntegerAttr(splits, i64),
                "tile": IntegerAttr(tile, i64),
            },
            result_types=[
                TensorType(f32, [tokens, heads, splits, dim]),
                TensorType(f32, [tokens, heads, splits]),
                TensorType(f32, [tokens, heads, splits]),
            ],
            attributes={"loc": attend.loc} if attend.loc else {},
        )

    def verify_(self) -> None:
        _verify_operands(self)
        stats = (shape_of(self.q)[0], self.heads.value.data, self.splits.value.data)
        if shape_of(self.max) != stats or shape_of(self.sum) != stats:
            raise VerifyException(
                f"{subject(self)}: max and sum have shapes {shape_of(self.max)} and {shape_of(self.sum)}, expected {stats}"
            )
        if shape_of(self.acc) != (*stats, self.head_dim.value.data):
            raise VerifyException(f"{subject(self)}: acc has shape {shape_of(self.acc)}, expected {(*stats, self.head_dim.value.data)}")


@irdl_op_definition
class ArrivalsOp(IRDLOperation):
    """-> [n] i32: counters in storage of their own, with which programs of one launch tell which of them ends last.

    They are 0 whenever no launch runs: what counts up with one sets it back. So their value is the constant 0, and launches that use
    the same counters must not overlap.
    """

    name = "tile.arrivals"

    counters = prop_def(IntegerAttr)
    result = result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = "$counters attr-dict `:` type($result)"

    def __init__(self, counters: int) -> None:
        super().__init__(properties={"counters": IntegerAttr(counters, i64)}, result_types=[TensorType(i32, [counters])])

    def verify_(self) -> None:
        if element_of(self.result) != "i32" or shape_of(self.result) != (self.counters.value.data,):
            raise VerifyException(
                f"{subject(self)}: result has type {self.result.type}, expected {self.counters.value.data} numbers of i32"
            )


@irdl_op_definition
class AttendMergeOp(IRDLOperation):
    """The partial results of all chunks, rescaled to their common maximum, added and normalized: [N,H*D]. Flash-Decoding's second step.

    In the launch that makes the partial results, `arrivals` counts the programs that have stored theirs, by queries and key/value head:
    the last one merges.
    """

    name = "tile.attend_merge"

    acc = operand_def(TensorType.constr(Float32Type()))
    max = operand_def(TensorType.constr(Float32Type()))
    sum = operand_def(TensorType.constr(Float32Type()))
    arrivals = opt_operand_def(TensorType)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = (
        "$acc `,` $max `,` $sum (`counted` `by` $arrivals^)? attr-dict "
        "`:` type($acc) `,` type($max) `,` type($sum) (`,` type($arrivals)^)? `->` type($result)"
    )

    def __init__(self, acc: SSAValue, max: SSAValue, sum: SSAValue, arrivals: SSAValue | None = None, *, loc: str | None = None) -> None:
        tokens, heads, _, dim = shape_of(acc)
        super().__init__(
            operands=[acc, max, sum, [arrivals] if arrivals is not None else []],
            result_types=[TensorType(f32, [tokens, heads * dim])],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        acc = shape_of(self.acc)
        if len(acc) != 4 or shape_of(self.max) != acc[:3] or shape_of(self.sum) != acc[:3]:
            raise VerifyException(f"{subject(self)}: max {shape_of(self.max)} and sum {shape_of(self.sum)} do not fit acc {acc}")
        if shape_of(self.result) != (acc[0], acc[1] * acc[3]):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {(acc[0], acc[1] * acc[3])}")
        if self.arrivals is not None and element_of(self.arrivals) != "i32":
            raise VerifyException(f"{subject(self)}: arrivals have type {self.arrivals.type}, expected a vector of i32")

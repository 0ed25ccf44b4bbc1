"""A region whose op leaves the device idle goes in; one that computes partial results leaves, whose last programs put them together."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, TensorType, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import (
    ArrivalsOp,
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    ContractMergeOp,
    ContractOp,
    ContractPartialOp,
    FusedOp,
    LedgerEntryAttr,
    SampleOp,
    SampleTopOp,
    ScheduleAttr,
    TopPartialOp,
    YieldOp,
)
from lamella.passes.device import Device


def set_schedule(fused: FusedOp, schedule: ScheduleAttr, reason: str) -> None:
    """Sets the schedule and records it."""
    fused.schedule = schedule
    entries: Sequence[LedgerEntryAttr] = fused.ledger.data if fused.ledger else ()
    entry = LedgerEntryAttr.of("chosen", {"kind": "schedule", "schedule": schedule.skeleton.data, "reason": reason})
    fused.ledger = ArrayAttr([*entries, entry])


def split_attention(fused: FusedOp, attend: AttendOp, schedule: ScheduleAttr, target: Device) -> None:
    """Replaces the attention of a region by partial results and their merge, which the last program of each key/value head computes."""
    block = fused.body.block
    splits = schedule.get("splits")
    partial = AttendPartialOp(attend, list(attend.operands), splits=splits, tile=schedule.get("tile"))
    counted = counter_argument(block, target)
    merge = AttendMergeOp(partial.acc, partial.max, partial.sum, counted, loc=attend.loc.data if attend.loc else None)
    for result, hint in zip(partial.results, ("acc", "max", "sum"), strict=True):
        result.name_hint = hint
    put_in_place_of(attend, [partial, merge])
    reason = f"too few programs to fill the device: the context is split {splits} ways, the last program merges"
    with_partials(fused, partial.results, schedule, target, reason)


def split_contractions(fused: FusedOp, schedule: ScheduleAttr, target: Device) -> None:
    """Replaces the contractions of a region by sums over runs of their columns, which the last program of each tile adds up (split K)."""
    block = fused.body.block
    contracts = [op for op in block.ops if isinstance(op, ContractOp)]
    trips = -(-shape_of(contracts[0].x)[1] // schedule.get("k"))
    chunk = -(-trips // schedule.get("splits")) * schedule.get("k")
    splits = -(-shape_of(contracts[0].x)[1] // chunk)
    counted = counter_argument(block, target)
    partials: list[SSAValue] = []
    for contract in contracts:
        loc = contract.loc.data if contract.loc else None
        partial = ContractPartialOp(contract.x, contract.weight, splits=splits, chunk=chunk, loc=loc)
        partial.result.name_hint = "sums"
        put_in_place_of(contract, [partial, ContractMergeOp(partial.result, counted, loc=loc)])
        partials.append(partial.result)
    parameters = {name: schedule.get(name) for name in schedule.options.data} | {"splits": splits}
    schedule = ScheduleAttr.of(schedule.skeleton.data, **parameters)
    reason = f"too few tiles of weight rows to fill the device: {splits} programs share the columns of one, the last adds up"
    with_partials(fused, partials, schedule, target, reason)


def counter_argument(block: Block, target: Device) -> SSAValue:
    """A new argument of a region for the counters of its function."""
    counted = block.insert_arg(TensorType(i32, [target.counters]), len(block.args))
    counted.name_hint = "arrivals"
    return counted


def put_in_place_of(op: Operation, ops: Sequence[Operation]) -> None:
    """Puts `ops` where `op` was: the result of the last is what the result of `op` was."""
    block = op.parent
    assert block is not None
    block.insert_ops_before(ops, op)
    ops[-1].results[0].name_hint = op.results[0].name_hint
    op.results[0].replace_all_uses_with(ops[-1].results[0])
    op.detach()
    op.erase()


def with_partials(fused: FusedOp, partials: Sequence[SSAValue], schedule: ScheduleAttr, target: Device, reason: str) -> None:
    """Replaces a region by one that also leaves `partials` in memory and reads the counters, its last argument."""
    function_block, block = fused.parent_block(), fused.body.block
    assert function_block is not None
    yielded = list(fused.terminator.values)
    block.erase_op(fused.terminator)
    block.add_op(YieldOp([*partials, *yielded]))
    body = fused.detach_region(fused.body)
    entries = fused.ledger.data if fused.ledger else ()
    types = [*(v.type for v in partials), *(r.type for r in fused.res)]
    loc = fused.loc.data if fused.loc else None
    split = FusedOp([*fused.ins, arrivals(function_block, target)], [], types, body, ledger=entries, loc=loc)
    for outer, inner in zip(split.res, partials, strict=False):
        outer.name_hint = inner.name_hint
    set_schedule(split, schedule, reason)
    function_block.insert_op_before(split, fused)
    for old, new in zip(fused.res, split.res[len(partials) :], strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    fused.detach()
    fused.erase()


def arrivals(block: Block, target: Device) -> SSAValue:
    """The counters of a function, which all its launches share."""
    made = next((op for op in block.ops if isinstance(op, ArrivalsOp)), None)
    if made is None:
        made = ArrivalsOp(target.counters)
        made.result.name_hint = "arrivals"
        assert block.first_op is not None
        block.insert_op_before(made, block.first_op)
    return made.result


def split_sampling(fused: FusedOp, sample: SampleOp, schedule: ScheduleAttr) -> None:
    """Replaces a region that samples by one that finds the largest logit of each chunk of the vocabulary and one that draws."""
    block = fused.parent_block()
    assert block is not None
    loc = fused.loc.data if fused.loc else None
    place: dict[SSAValue, SSAValue] = dict(zip(fused.body.block.args, fused.ins, strict=True))
    logits = place[sample.logits]
    first = Block(arg_types=[logits.type])
    first.args[0].name_hint = "logits"
    top = TopPartialOp(first.args[0], schedule.get("splits"), loc=loc)
    first.add_ops([top, YieldOp(top.results)])
    entries = fused.ledger.data if fused.ledger else ()
    producer = FusedOp([logits], [], [r.type for r in top.results], Region(first), ledger=entries, loc=loc)
    for outer, inner, hint in zip(producer.res, top.results, ("best", "index"), strict=True):
        outer.name_hint = inner.name_hint = hint
    set_schedule(producer, schedule, f"one program a row would be all latency: {schedule.get('splits')} programs share the vocabulary")
    inputs = [logits, *producer.res, *(place[v] for v in sample.operands[1:])]
    second = Block(arg_types=[v.type for v in inputs])
    for inner, outer in zip(second.args, inputs, strict=True):
        inner.name_hint = outer.name_hint
    drawn = SampleTopOp(second.args[0], second.args[1:3], second.args[3:], loc=loc)
    drawn.result.name_hint = sample.result.name_hint
    second.add_ops([drawn, YieldOp([drawn.result])])
    consumer = FusedOp(inputs, [], [drawn.result.type], Region(second), loc=loc)
    set_schedule(consumer, schedule, "draws from the largest of the chunks, and walks the vocabulary only where temperature is not 0")
    block.insert_ops_before([producer, consumer], fused)
    consumer.res[0].name_hint = fused.res[0].name_hint
    fused.res[0].replace_all_uses_with(consumer.res[0])
    fused.detach()
    fused.erase()

"""Gives each region one of its feasible skeletons and the skeleton's parameters; materializes what a schedule splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import python_value, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile import (
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    FusedOp,
    LedgerEntryAttr,
    SampleOp,
    SampleTopOp,
    ScheduleAttr,
    TopPartialOp,
    YieldOp,
)
from lamella.errors import PassError
from lamella.passes import schedules
from lamella.passes.device import Device, device
from lamella.passes.feasibility import ANCHORS, feasible_schedules


@dataclass(frozen=True)
class ChooseSchedule(ModulePass):
    """Sets `schedule` on each region; an attention whose grid would leave the device idle becomes partial results and their merge.

    Before:
        %o = tile.fused ins(%q, %cache, …) { … %a = tile.attend … ; %r = tile.cast %a ; tile.yield %r }
    After, where splitting pays:
        %acc, %m, %l = tile.fused schedule <attend, {splits = 32, …}> ins(%q, %cache, …) { … tile.attend_partial … }
        %o = tile.fused schedule <merge, …> ins(%acc, %m, %l) { … tile.attend_merge … ; tile.cast … }

    Expects regions (`fuse-regions`) and the function's bucket (`specialize`); raises PassError for a region no skeleton fits.
    """

    name = "choose-schedule"

    arch: str = "sm_90"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = device(self.arch)
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                longest = longest_query(function)
                for fused in [o for o in function.body.block.ops if isinstance(o, FusedOp)]:
                    choose(fused, longest, target)


def longest_query(function: func.FuncOp) -> int:
    """The most tokens one sequence has in this bucket: that of `lamella.bucket`, or all tokens where there is none."""
    bucket = function.attributes.get("lamella.bucket")
    if isinstance(bucket, DictionaryAttr) and "longest_query" in bucket.data:
        value = python_value(bucket.data["longest_query"])
        assert isinstance(value, int)
        return value
    attends = [op for op in function.walk() if isinstance(op, AttendOp)]
    return max((shape_of(op.q)[0] for op in attends), default=1)


def choose(fused: FusedOp, longest: int, target: Device) -> None:
    """Sets the schedule of one region, splitting its attention when that fills the device. Raises PassError when nothing fits."""
    ops = [op for op in fused.body.block.ops if not isinstance(op, YieldOp)]
    answer = feasible_schedules(ops)
    if not answer:
        raise PassError(f"no schedule fits this region: {'; '.join(answer.reasons)}", where=subject(fused))
    skeleton = answer.skeletons[0]
    schedule = schedule_for(skeleton, ops, longest, target)
    if schedule.options.data.get("splits") is not None and schedule.get("splits") > 1:
        match next((op for op in ops if isinstance(op, AttendOp | SampleOp)), None):
            case AttendOp() as attend:
                return split_attention(fused, attend, schedule)
            case SampleOp() as sample:
                return split_sampling(fused, sample, schedule)
            case _:
                pass
    return set_schedule(fused, schedule, f"the one skeleton that fits: {skeleton}")


def schedule_for(skeleton: str, ops: Sequence[Operation], longest: int, target: Device) -> ScheduleAttr:
    """The parameters of a feasible skeleton for the ops of a region; `longest` is the most tokens one sequence has."""
    anchor = next((op for op in ops if isinstance(op, ANCHORS)), None)
    match skeleton, anchor:
        case "gemv", _:
            return schedules.gemv_schedule(ops, target)
        case "mma", _:
            return schedules.mma_schedule(ops, target)
        case "attend", AttendOp():
            return schedules.attend_schedule(anchor, longest, target)
        case "merge", AttendMergeOp():
            return schedules.merge_schedule(anchor)
        case "sample", SampleOp():
            return schedules.sample_schedule(shape_of(anchor.logits)[0], shape_of(anchor.logits)[1], target)
        case _:
            return schedules.row_schedule(ops)


def set_schedule(fused: FusedOp, schedule: ScheduleAttr, reason: str) -> None:
    """Sets the schedule and records it."""
    fused.schedule = schedule
    entries: Sequence[LedgerEntryAttr] = fused.ledger.data if fused.ledger else ()
    entry = LedgerEntryAttr.of("chosen", {"kind": "schedule", "schedule": schedule.skeleton.data, "reason": reason})
    fused.ledger = ArrayAttr([*entries, entry])


def split_attention(fused: FusedOp, attend: AttendOp, schedule: ScheduleAttr) -> None:
    """Replaces a region around `attend` by one of partial results and one that merges them and runs the epilogue."""
    block = fused.parent_block()
    assert block is not None
    loc = fused.loc.data if fused.loc else None
    splits, tile = schedule.get("splits"), schedule.get("tile")
    place: dict[SSAValue, SSAValue] = dict(zip(fused.body.block.args, fused.ins, strict=True))
    before = needed_by(attend.operands, attend)
    inputs = list(dict.fromkeys(v for op in (*before, attend) for v in op.operands if v in place))
    first = Block(arg_types=[v.type for v in inputs])
    argument: dict[SSAValue, SSAValue] = dict(zip(inputs, first.args, strict=True))
    for value, inner in argument.items():
        inner.name_hint = value.name_hint
    for op in before:
        first.add_op(op.clone(value_mapper=argument))
    partial = AttendPartialOp(attend, [argument[v] for v in attend.operands], splits=splits, tile=tile)
    for result, hint in zip(partial.results, ("acc", "max", "sum"), strict=True):
        result.name_hint = hint
    first.add_ops([partial, YieldOp(partial.results)])
    entries = fused.ledger.data if fused.ledger else ()
    producer = FusedOp([place[v] for v in inputs], [], [r.type for r in partial.results], Region(first), ledger=entries, loc=loc)
    for outer, result in zip(producer.res, partial.results, strict=True):
        outer.name_hint = result.name_hint
    set_schedule(producer, schedule, f"too few programs to fill the device: the context is split {splits} ways")

    rest = [op for op in needed_by(fused.terminator.values, attend) if op is not attend]
    rest.append(fused.terminator)
    extra = list(dict.fromkeys(v for op in rest for v in op.operands if v in place))
    second = Block(arg_types=[*(r.type for r in partial.results), *(v.type for v in extra)])
    mapped: dict[SSAValue, SSAValue] = dict(zip(extra, second.args[3:], strict=True))
    for inner, hint in zip(second.args, ("acc", "max", "sum", *(v.name_hint or "arg" for v in extra)), strict=True):
        inner.name_hint = hint
    merge = AttendMergeOp(*second.args[:3], loc=attend.loc.data if attend.loc else None)
    second.add_op(merge)
    mapped[attend.result] = merge.result
    for op in rest:
        second.add_op(op.clone(value_mapper=mapped))
    consumer = FusedOp([*producer.res, *(place[v] for v in extra)], [], [r.type for r in fused.res], Region(second), loc=loc)
    set_schedule(consumer, schedules.merge_schedule(merge), "adds up the partial results of the chunks")
    block.insert_ops_before([producer, consumer], fused)
    for old, new in zip(fused.res, consumer.res, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    fused.detach()
    fused.erase()


def needed_by(values: Sequence[SSAValue], attend: AttendOp) -> list[Operation]:
    """The ops of a region that `values` depend on, in order; what the attention depends on only where it is asked for by its own operands."""
    found: set[Operation] = set()
    work = [v.owner for v in values]
    while work:
        op = work.pop()
        if isinstance(op, Operation) and op not in found:
            found.add(op)
            work.extend(v.owner for v in op.operands if op is not attend)
    block = attend.parent_block()
    assert block is not None
    return [op for op in block.ops if op in found]


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

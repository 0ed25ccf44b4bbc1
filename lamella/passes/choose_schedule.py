"""Gives each region one of its feasible skeletons and the skeleton's parameters; materializes what a schedule splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, TensorType, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import python_value, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile import (
    ArrivalsOp,
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    ContractExpertsOp,
    FusedOp,
    LedgerEntryAttr,
    RouteOp,
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
from lamella.passes.smaller_schedule import read_smaller, smaller, steps_for
from lamella.passes.tuning import Measurements, settled


@dataclass(frozen=True)
class ChooseSchedule(ModulePass):
    """Sets `schedule` on each region; an attention whose grid would leave the device idle becomes partial results and their merge.

    Before:
        %o = tile.fused ins(%q, %cache, …) { … %a = tile.attend … ; %r = tile.cast %a ; tile.yield %r }
    After, where splitting pays:
        %acc, %m, %l, %o = tile.fused schedule <attend, {splits = 32, …}> ins(%q, %cache, …, %arrivals) {
          … tile.attend_partial … ; tile.attend_merge … counted by %arrivals ; tile.cast … }

    With `split-attention=false` or `split-sampling=false` one program does what would be split, however idle that leaves the device.

    The parameters come from a cost model, or from measurements where `tuning` says where they are: a file that `lamella tune` wrote, or
    `auto` for those that come with Lamella and the user's own. The ledger says which counted (`measured`, `not_measured`).

    `smaller` names regions whose programs shall take less than that at a time: `layers.*.attn.attention=2;lm_head=1` halves what a program
    of each region with an op there takes twice, or once. `lamella compile --fit-registers` asks for it where a kernel spills.

    Expects regions (`fuse-regions`) and the function's bucket (`specialize`); raises PassError for a region no skeleton fits.
    """

    name = "choose-schedule"

    arch: str = "sm_90"
    split_attention: bool = True
    split_sampling: bool = True
    tuning: str = "off"
    smaller: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = device(self.arch)
        measurements = Measurements.read(self.tuning, self.arch)
        patterns = read_smaller(self.smaller)
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                longest = longest_query(function)
                for fused in [o for o in function.body.block.ops if isinstance(o, FusedOp)]:
                    choose(fused, longest, target, self.splittable(), measurements, patterns)

    def splittable(self) -> tuple[type[Operation], ...]:
        """The ops that may become partial results and a merge."""
        return (*((AttendOp,) if self.split_attention else ()), *((SampleOp,) if self.split_sampling else ()))


def longest_query(function: func.FuncOp) -> int:
    """The most tokens one sequence has in this bucket: that of `lamella.bucket`, or all tokens where there is none."""
    bucket = function.attributes.get("lamella.bucket")
    if isinstance(bucket, DictionaryAttr) and "longest_query" in bucket.data:
        value = python_value(bucket.data["longest_query"])
        assert isinstance(value, int)
        return value
    attends = [op for op in function.walk() if isinstance(op, AttendOp)]
    return max((shape_of(op.q)[0] for op in attends), default=1)


def choose(
    fused: FusedOp,
    longest: int,
    target: Device,
    splittable: tuple[type[Operation], ...],
    measurements: Measurements | None = None,
    patterns: Sequence[tuple[str, int]] = (),
) -> None:
    """Sets the schedule of one region, splitting its `splittable` op when that fills the device. Raises PassError when nothing fits.

    Where one of `patterns` names an op of the region, the schedule is as many steps smaller.
    """
    ops = [op for op in fused.body.block.ops if not isinstance(op, YieldOp)]
    answer = feasible_schedules(ops)
    if not answer:
        raise PassError(f"no schedule fits this region: {'; '.join(answer.reasons)}", where=subject(fused))
    skeleton = answer.skeletons[0]
    schedule = schedule_for(skeleton, ops, longest, target)
    if measurements is not None:
        schedule = settled(fused, ops, longest, target, schedule, measurements)
    schedule = smaller(schedule, ops, steps_for(ops, patterns))
    if schedule.options.data.get("splits") is not None and schedule.get("splits") > 1:
        match next((op for op in ops if isinstance(op, splittable)), None):
            case AttendOp() as attend:
                return split_attention(fused, attend, schedule, target)
            case SampleOp() as sample:
                return split_sampling(fused, sample, schedule)
            case _:
                schedule = ScheduleAttr.of(skeleton, **{k: 1 if k == "splits" else schedule.get(k) for k in schedule.options.data})
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
        case "sample", SampleOp():
            return schedules.sample_schedule(shape_of(anchor.logits)[0], shape_of(anchor.logits)[1], target)
        case "experts", ContractExpertsOp():
            return schedules.experts_schedule(ops, target)
        case "expert_tiles", ContractExpertsOp():
            return schedules.expert_tiles_schedule(ops)
        case "route", RouteOp():
            return schedules.route_schedule(shape_of(anchor.logits)[1])
        case _:
            return schedules.row_schedule(ops)


def set_schedule(fused: FusedOp, schedule: ScheduleAttr, reason: str) -> None:
    """Sets the schedule and records it."""
    fused.schedule = schedule
    entries: Sequence[LedgerEntryAttr] = fused.ledger.data if fused.ledger else ()
    entry = LedgerEntryAttr.of("chosen", {"kind": "schedule", "schedule": schedule.skeleton.data, "reason": reason})
    fused.ledger = ArrayAttr([*entries, entry])


def split_attention(fused: FusedOp, attend: AttendOp, schedule: ScheduleAttr, target: Device) -> None:
    """Replaces the attention of a region by partial results and their merge, which the last program of each key/value head computes."""
    block = fused.body.block
    function_block = fused.parent_block()
    assert function_block is not None
    splits = schedule.get("splits")
    partial = AttendPartialOp(attend, list(attend.operands), splits=splits, tile=schedule.get("tile"))
    counted = block.insert_arg(TensorType(i32, [target.multiprocessors]), len(block.args))
    counted.name_hint = "arrivals"
    merge = AttendMergeOp(partial.acc, partial.max, partial.sum, counted, loc=attend.loc.data if attend.loc else None)
    for result, hint in zip(partial.results, ("acc", "max", "sum"), strict=True):
        result.name_hint = hint
    block.insert_ops_before([partial, merge], attend)
    merge.result.name_hint = attend.result.name_hint
    attend.result.replace_all_uses_with(merge.result)
    attend.detach()
    attend.erase()
    yielded = list(fused.terminator.values)
    block.erase_op(fused.terminator)
    block.add_op(YieldOp([*partial.results, *yielded]))
    body = fused.detach_region(fused.body)
    entries = fused.ledger.data if fused.ledger else ()
    types = [*(r.type for r in partial.results), *(r.type for r in fused.res)]
    loc = fused.loc.data if fused.loc else None
    split = FusedOp([*fused.ins, arrivals(function_block, target)], [], types, body, ledger=entries, loc=loc)
    for outer, inner in zip(split.res, partial.results, strict=False):
        outer.name_hint = inner.name_hint
    set_schedule(split, schedule, f"too few programs to fill the device: the context is split {splits} ways, the last program merges")
    function_block.insert_op_before(split, fused)
    for old, new in zip(fused.res, split.res[3:], strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    fused.detach()
    fused.erase()


def arrivals(block: Block, target: Device) -> SSAValue:
    """The counters of a function, which all its launches share: fewer groups of programs than multiprocessors ever split their work."""
    made = next((op for op in block.ops if isinstance(op, ArrivalsOp)), None)
    if made is None:
        made = ArrivalsOp(target.multiprocessors)
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

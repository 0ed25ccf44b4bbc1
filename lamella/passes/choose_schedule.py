"""Gives each region one of its feasible skeletons and the skeleton's parameters; materializes what a schedule splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from lamella.dialects.attributes import python_int, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile import AttendOp, ContractExpertsOp, ContractOp, FusedOp, RouteOp, SampleOp, ScheduleAttr, YieldOp
from lamella.errors import PassError
from lamella.passes import schedules
from lamella.passes.descriptors import by_descriptors, described_estimate, not_describable
from lamella.passes.device import Device, device
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.library import LibraryCall, call_of, estimate, in_library, library_schedule
from lamella.passes.region_parts import ANCHORS
from lamella.passes.smaller_schedule import read_smaller, smaller, steps_for
from lamella.passes.split_regions import set_schedule, split_attention, split_contractions, split_sampling
from lamella.passes.tuning import Measurements, settled


@dataclass(frozen=True)
class ChooseSchedule(ModulePass):
    """Sets `schedule` on each region; an attention whose grid would leave the device idle becomes partial results and their merge.

    Before:
        %o = tile.fused ins(%q, %cache, …) { … %a = tile.attend … ; %r = tile.cast %a ; tile.yield %r }
    After, where splitting pays:
        %acc, %m, %l, %o = tile.fused schedule <attend, {splits = 32, …}> ins(%q, %cache, …, %arrivals) {
          … tile.attend_partial … ; tile.attend_merge … counted by %arrivals ; tile.cast … }

    So do contractions of few tokens by few weight rows, `tile.contract_partial` and `tile.contract_merge` (split K). With
    `split-attention=false`, `split-sampling=false` or `split-k=false` one program does what would be split, however idle that leaves the
    device.

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
    split_k: bool = True
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
        return (
            *((AttendOp,) if self.split_attention else ()),
            *((SampleOp,) if self.split_sampling else ()),
            *((ContractOp,) if self.split_k else ()),
        )


def longest_query(function: func.FuncOp) -> int:
    """The most tokens one sequence has in this bucket: that of `lamella.bucket`, or all tokens where there is none."""
    bucket = function.attributes.get("lamella.bucket")
    if isinstance(bucket, DictionaryAttr) and "longest_query" in bucket.data:
        return python_int(bucket.data["longest_query"])
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
            case ContractOp():
                return split_contractions(fused, schedule, target)
            case _:
                schedule = ScheduleAttr.of(skeleton, **{k: 1 if k == "splits" else schedule.get(k) for k in schedule.options.data})
    reason = library_reason(ops, target) or described_reason(ops, target) or f"the one skeleton that fits: {skeleton}"
    return set_schedule(fused, schedule, reason)


def library_reason(ops: Sequence[Operation], target: Device) -> str:
    """Why the library computes a region; empty for one that it does not."""
    call = next((call_of(op) for op in ops if isinstance(op, ContractOp) and in_library(op)), None)
    if not isinstance(call, LibraryCall):
        return ""
    cost = estimate([call], target, adds_residual=[call.residual is not None], described=not_describable(call.contract) is None)
    return f"{'' if cost is not None and cost.pays else 'asked for: '}{cost or 'nobody measured this device'}"


def described_reason(ops: Sequence[Operation], target: Device) -> str:
    """Why tiles of a region are loaded through descriptors; empty for one whose are not."""
    contracts = [op for op in ops if isinstance(op, ContractOp) and by_descriptors(op)]
    if not contracts:
        return ""
    cost = described_estimate(contracts, target)
    return f"{'' if cost is not None and cost.pays else 'asked for: '}{cost or 'nobody measured this device'}"


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
        case "library", _:
            return library_schedule()
        case "sort", _:
            return schedules.sort_schedule()
        case "route", RouteOp():
            return schedules.route_schedule(shape_of(anchor.logits)[1])
        case _:
            return schedules.row_schedule(ops)

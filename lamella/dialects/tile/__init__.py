"""Level 2 and 3: structured ops on static tensors, regions of them, and the schedules of regions."""

from xdsl.ir import Dialect

from lamella.dialects.tile.attend import ArrivalsOp, AttendMergeOp, AttendOp, AttendPartialOp
from lamella.dialects.tile.fused import FusedOp, LedgerEntryAttr, ScheduleAttr, YieldOp
from lamella.dialects.tile.movement import GatherOp, ReshapeOp, RotateOp, ScatterOp, SlotsOp
from lamella.dialects.tile.sample import SampleOp, SampleTopOp, TopPartialOp
from lamella.dialects.tile.structured import CastOp, ConstantOp, ContractOp, MapOp, ReduceOp

Tile = Dialect(
    "tile",
    [
        ConstantOp,
        MapOp,
        CastOp,
        ReduceOp,
        ContractOp,
        GatherOp,
        ReshapeOp,
        SlotsOp,
        ScatterOp,
        RotateOp,
        AttendOp,
        AttendPartialOp,
        ArrivalsOp,
        AttendMergeOp,
        SampleOp,
        TopPartialOp,
        SampleTopOp,
        FusedOp,
        YieldOp,
    ],
    [ScheduleAttr, LedgerEntryAttr],
)

__all__ = [
    "ArrivalsOp",
    "AttendMergeOp",
    "AttendOp",
    "AttendPartialOp",
    "CastOp",
    "ConstantOp",
    "ContractOp",
    "FusedOp",
    "GatherOp",
    "LedgerEntryAttr",
    "MapOp",
    "ReduceOp",
    "ReshapeOp",
    "RotateOp",
    "SampleOp",
    "SampleTopOp",
    "ScatterOp",
    "ScheduleAttr",
    "SlotsOp",
    "Tile",
    "TopPartialOp",
    "YieldOp",
]

"""Level 2 and 3: structured ops on static tensors, regions of them, and the schedules of regions."""

from xdsl.ir import Dialect

from lamella.dialects.tile.attend import ArrivalsOp, AttendMergeOp, AttendOp, AttendPartialOp
from lamella.dialects.tile.experts import AddRowsOp, ContractExpertsOp, Contraction, RouteOp, SortChoicesOp
from lamella.dialects.tile.fused import FusedOp, LedgerEntryAttr, ScheduleAttr, YieldOp
from lamella.dialects.tile.movement import ColumnsOp, GatherColumnsOp, GatherOp, ReshapeOp, RotateOp, ScatterOp, SlotsOp, SwapPairsOp
from lamella.dialects.tile.quantize import DequantizeOp
from lamella.dialects.tile.sample import SampleOp, SampleTopOp, TopPartialOp
from lamella.dialects.tile.structured import (
    AddColumnsOp,
    CastOp,
    ConstantOp,
    ContractMergeOp,
    ContractOp,
    ContractPartialOp,
    MapOp,
    ReduceOp,
)

Tile = Dialect(
    "tile",
    [
        ConstantOp,
        MapOp,
        CastOp,
        ReduceOp,
        AddColumnsOp,
        ContractMergeOp,
        ContractOp,
        ContractPartialOp,
        ContractExpertsOp,
        RouteOp,
        SortChoicesOp,
        AddRowsOp,
        DequantizeOp,
        GatherOp,
        GatherColumnsOp,
        ColumnsOp,
        SwapPairsOp,
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
    "AddColumnsOp",
    "AddRowsOp",
    "ArrivalsOp",
    "AttendMergeOp",
    "AttendOp",
    "AttendPartialOp",
    "CastOp",
    "ColumnsOp",
    "ConstantOp",
    "ContractExpertsOp",
    "ContractMergeOp",
    "ContractOp",
    "ContractPartialOp",
    "Contraction",
    "DequantizeOp",
    "FusedOp",
    "GatherColumnsOp",
    "GatherOp",
    "LedgerEntryAttr",
    "MapOp",
    "ReduceOp",
    "ReshapeOp",
    "RotateOp",
    "RouteOp",
    "SampleOp",
    "SampleTopOp",
    "ScatterOp",
    "ScheduleAttr",
    "SlotsOp",
    "SortChoicesOp",
    "SwapPairsOp",
    "Tile",
    "TopPartialOp",
    "YieldOp",
]

"""The memory planner and its checker on random programs, against a simulation that moves no data but says who owns each byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import FunctionType, IndexType, IntegerAttr, MemRefType, ModuleOp, f32
from xdsl.ir import Block, Region, SSAValue

from lamella.dialects.host import LaunchOp
from lamella.errors import IRError, PlanError
from lamella.passes.check_plan import check_plan
from lamella.passes.live_ranges import dead_ranges, live_ranges, offset_of
from lamella.passes.plan_memory import STRATEGIES, PlanMemory, aligned, max_live, place


@dataclass(frozen=True)
class Buffer:
    """Written by launch `first`, then read by `reads`, and returned at the end if `returned`."""

    size: int
    first: int
    reads: tuple[int, ...] = ()
    returned: bool = False


@st.composite
def programs(draw: st.DrawFn) -> list[Buffer]:
    launches = draw(st.integers(1, 12))
    buffers: list[Buffer] = []
    for _ in range(draw(st.integers(1, 14))):
        first = draw(st.integers(0, launches - 1))
        later = range(first + 1, launches)
        reads = tuple(sorted(draw(st.sets(st.sampled_from(later), max_size=3)))) if later else ()
        buffers.append(Buffer(draw(st.sampled_from([1, 60, 64, 65, 128, 200, 640])), first, reads, draw(st.booleans())))
    return buffers


def build(buffers: Sequence[Buffer]) -> tuple[ModuleOp, func.FuncOp]:
    """A function that allocates, writes and reads the buffers; every launch also writes its argument, so that none is empty."""
    sink = MemRefType(f32, [4])
    block = Block(arg_types=[sink])
    allocs = [memref.AllocOp([], [], MemRefType(f32, [buffer.size])) for buffer in buffers]
    for number, alloc in enumerate(allocs):
        alloc.memref.name_hint = f"b{number}"
    block.add_ops(allocs)
    for at in range(1 + max(max((b.first, *b.reads)) for b in buffers)):
        ins = [a.memref for a, b in zip(allocs, buffers, strict=True) if at in b.reads]
        outs = [a.memref for a, b in zip(allocs, buffers, strict=True) if at == b.first]
        block.add_op(LaunchOp("k", [1, 1, 1], ins, [*outs, block.args[0]]))
    returned = [a.memref for a, b in zip(allocs, buffers, strict=True) if b.returned]
    block.add_op(func.ReturnOp(*returned))
    function = func.FuncOp("forward", FunctionType.from_lists([sink], [v.type for v in returned]), Region(block))
    return ModuleOp([function]), function


def planned(buffers: Sequence[Buffer]) -> tuple[ModuleOp, func.FuncOp]:
    module, function = build(buffers)
    PlanMemory().apply(Context(), module)
    module.verify()
    return module, function


def views(function: func.FuncOp) -> list[memref.ViewOp]:
    return [op for op in function.body.block.ops if isinstance(op, memref.ViewOp)]


def move(view: memref.ViewOp, offset: int) -> None:
    """Corrupt a plan: put a view elsewhere."""
    constant = arith.ConstantOp(IntegerAttr(offset, IndexType()))
    block = view.parent_block()
    assert block is not None
    block.insert_op_before(constant, view)
    view.operands[1] = constant.result


def clobbered(function: func.FuncOp, size: int) -> bool:
    """Whether some launch reads bytes that another buffer's launch has written since, or stores over what it or a neighbour stores."""
    extents = {v.result: range(offset_of(v.result), offset_of(v.result) + 4 * v.result.type.get_shape()[0]) for v in views(function)}
    owner: list[SSAValue | None] = [None] * size

    def intact(values: Sequence[SSAValue]) -> bool:
        return all(owner[byte] is v for v in values if v in extents for byte in extents[v])

    for op in function.body.block.ops:
        if isinstance(op, LaunchOp):
            if not intact(op.ins):
                return True
            for value in op.outs:
                for byte in extents.get(value, ()):
                    owner[byte] = value
            if not intact([*op.ins, *op.outs]):
                return True
    terminator = function.body.block.last_op
    assert terminator is not None
    return not intact(terminator.operands)


@given(programs())
def test_plans_of_random_programs_are_sound_and_within_their_bounds(buffers: list[Buffer]) -> None:
    ranges = live_ranges(build(buffers)[1])
    _, function = planned(buffers)
    figures = check_plan(function)
    assert not clobbered(function, figures.arena)
    assert figures.max_live <= max_live(ranges) <= figures.arena <= figures.buffers
    assert figures.buffers == sum(aligned(4 * b.size) for b in buffers)
    assert figures.arena == min(place(ranges, order)[1] for order in STRATEGIES.values())


@given(programs(), st.integers(1, 16))
def test_a_limit_is_kept_or_refused(buffers: list[Buffer], units: int) -> None:
    """Refused means: no order that was tried fits, and none could where the limit is below what is live at once."""
    limit = 256 * units
    ranges = live_ranges(build(buffers)[1])
    module, function = build(buffers)
    try:
        PlanMemory(max_arena=limit).apply(Context(), module)
    except PlanError as error:
        assert limit < error.arena <= min(place(ranges, order)[1] for order in STRATEGIES.values())
        assert f"{max_live(ranges)} of them live at once" in str(error)
        return
    figures = check_plan(function, limit)
    assert figures.arena <= limit
    assert not clobbered(function, figures.arena)


def test_the_checker_holds_the_arena_to_the_limit() -> None:
    _, function = planned([Buffer(64, 0, (2,)), Buffer(64, 1, (2,))])
    assert check_plan(function, 512).arena == 512
    with pytest.raises(IRError, match="the arena has 512 bytes, expected at most 511, its limit"):
        check_plan(function, 511)


@given(programs(), st.data())
def test_the_checker_refuses_exactly_the_plans_that_lose_data(buffers: list[Buffer], data: st.DataObject) -> None:
    _, function = planned(buffers)
    arena = check_plan(function).arena
    for view in views(function):
        room = arena - 4 * view.result.type.get_shape()[0]
        move(view, 256 * data.draw(st.integers(0, room // 256)))
    if not clobbered(function, arena):
        check_plan(function)
        return
    with pytest.raises(IRError, match="overlap"):
        check_plan(function)


def test_a_corrupted_offset_is_reported_with_both_values_and_launches() -> None:
    _, function = planned([Buffer(64, 0, (2,)), Buffer(64, 1, (2,))])
    first, second = views(function)
    move(second, offset_of(first.result))
    with pytest.raises(IRError, match=r"%b0 at \[0, 256\) and %b1 at \[0, 256\) overlap, and both are live at launch 2 \(host.launch\)"):
        check_plan(function)


def test_an_arena_below_what_is_live_is_refused() -> None:
    _, function = planned([Buffer(64, 0, (2,)), Buffer(64, 1, (2,))])
    move(views(function)[1], 512)
    with pytest.raises(IRError, match=r"%b1 at \[512, 768\) lies outside of the arena of 512 bytes"):
        check_plan(function)


def test_best_fit_takes_the_tightest_gap() -> None:
    # b0 (three units of alignment) and b2 (one) have left gaps before b1 and b3 when b4 arrives, which needs one.
    buffers = [Buffer(192, 0), Buffer(128, 0, (3,)), Buffer(64, 0), Buffer(60, 0, (3,)), Buffer(64, 2, (3,))]
    ranges = live_ranges(build(buffers)[1])
    offsets, arena = place(ranges, STRATEGIES["by-time"])
    by_name = {live.root.name_hint: offsets[live.root] for live in ranges}
    assert arena == 7 * 256
    assert by_name["b4"] == by_name["b2"] == 5 * 256


def test_what_dies_with_each_launch() -> None:
    _, function = planned([Buffer(64, 0, (1,)), Buffer(10, 1, (2, 3)), Buffer(5, 2), Buffer(7, 0, returned=True)])
    offset = {v.result.name_hint: offset_of(v.result) for v in views(function)}
    assert dead_ranges(function) == [[], [(offset["b0"], 256)], [(offset["b2"], 20)], [(offset["b1"], 40)]]

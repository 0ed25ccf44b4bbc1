"""Quotients and remainders of indices: equal to a division for every program, and none where starts and ranges make it needless."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import Operation, SSAValue

from lamella.dialects import kernel
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.kernel_folds import number
from lamella.lowering.quotients import quotient, remainder

BINARY: Mapping[type[Operation], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    kernel.AddOp: np.add,
    kernel.SubOp: np.subtract,
    kernel.MulOp: np.multiply,
    kernel.FloordivOp: np.floor_divide,
    kernel.ModOp: np.mod,
}


def evaluated(value: SSAValue, program: int) -> np.ndarray:
    """The numbers of an index in one program of the grid."""
    op = value.owner
    assert isinstance(op, Operation)
    known = number(value)
    if known is not None:
        return np.asarray(known)
    if isinstance(op, kernel.ProgramIdOp):
        return np.asarray(program)
    if isinstance(op, kernel.ArangeOp):
        return np.arange(op.start.value.data, op.end.value.data)
    if isinstance(op, kernel.ExpandDimsOp):
        return np.expand_dims(evaluated(op.operands[0], program), op.axis.value.data)
    first, second = (evaluated(operand, program) for operand in op.operands)
    return BINARY[type(op)](first, second)


def divides(value: SSAValue) -> bool:
    """Whether anything is divided on the way to `value`."""
    op = value.owner
    return isinstance(op, kernel.FloordivOp | kernel.ModOp) or (isinstance(op, Operation) and any(divides(v) for v in op.operands))


@settings(deadline=None, max_examples=300)
@given(
    start=st.sampled_from([0, 1, 3, 8, 16, 48, 64, 128, 256]),
    size=st.sampled_from([1, 2, 8, 64, 128]),
    stride=st.sampled_from([1, 2, 3]),
    offset=st.sampled_from([0, 1, 64, 128, 200]),
    divisor=st.sampled_from([1, 2, 16, 48, 64, 96, 128]),
    expanded=st.booleans(),
    program=st.integers(0, 9),
)
def test_equal_a_division(start: int, size: int, stride: int, offset: int, divisor: int, expanded: bool, program: int) -> None:
    b = KernelBuilder("k", {})
    columns = b.mul(b.arange(size), stride)
    index = b.add(b.add(b.mul(b.program_id(0), start), columns), offset)
    if expanded:
        index = b.expand(index, 0)
    expected = evaluated(index, program)
    for make, divide in ((quotient, np.floor_divide), (remainder, np.mod)):
        found = np.broadcast_to(evaluated(make(b, index, divisor), program), expected.shape)
        np.testing.assert_array_equal(found, divide(expected, divisor), err_msg=make.__name__)


def test_columns_of_whole_heads_need_no_division() -> None:
    b = KernelBuilder("k", {})
    columns = b.expand(b.add(b.add(b.mul(b.program_id(0), 256), 128), b.arange(128)), 0)
    assert not divides(quotient(b, columns, 128)) and not divides(remainder(b, columns, 128))
    assert remainder(b, columns, 128) is b.expand(b.arange(128), 0)


def test_columns_within_a_head_divide_their_start_alone() -> None:
    b = KernelBuilder("k", {})
    start, lanes = b.mul(b.program_id(0), 8), b.arange(8)
    assert quotient(b, b.add(start, lanes), 128) is b.floordiv(start, 128)
    assert remainder(b, b.add(start, lanes), 128) is b.add(b.mod(start, 128), lanes)


def test_columns_that_cross_heads_are_divided() -> None:
    b = KernelBuilder("k", {})
    columns = b.add(b.mul(b.program_id(0), 64), b.arange(64))
    assert divides(quotient(b, columns, 96)) and divides(remainder(b, columns, 96))

"""Numbers at build time: constants of a type, arithmetic on them, and the operands that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float16Type,
    Float32Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    f32,
    i1,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects import kernel
from lamella.dialects.attributes import element_name
from lamella.dialects.kernel.arithmetic import BinaryOp
from lamella.dialects.kernel.types import INTEGERS, element, shape

Number: TypeAlias = int | float | bool

FOLDS: Mapping[type[BinaryOp], Callable[[int, int], int]] = {
    kernel.AddOp: lambda a, b: a + b,
    kernel.SubOp: lambda a, b: a - b,
    kernel.MulOp: lambda a, b: a * b,
    kernel.MinimumOp: min,
    kernel.MaximumOp: max,
}
"""Arithmetic on two integer constants."""

RIGHT_IDENTITY: Mapping[type[BinaryOp], int] = {
    kernel.AddOp: 0,
    kernel.SubOp: 0,
    kernel.MulOp: 1,
    kernel.DivOp: 1,
    kernel.FloordivOp: 1,
    kernel.ShlOp: 0,
    kernel.ShrOp: 0,
    kernel.LshrOp: 0,
    kernel.XorOp: 0,
    kernel.OrOp: 0,
}
"""`x op identity` is x."""

LEFT_IDENTITY: Mapping[type[BinaryOp], int] = {kernel.AddOp: 0, kernel.MulOp: 1, kernel.XorOp: 0, kernel.OrOp: 0}


def default_type(value: Number) -> Attribute:
    """The type of a number that stands alone."""
    return i1 if isinstance(value, bool) else i32 if isinstance(value, int) else f32


def number_attribute(value: Number, type: Attribute) -> FloatAttr | IntegerAttr[IntegerType]:
    """The attribute of a number; integers wrap around to the signed value of the same bits."""
    if isinstance(type, Float32Type | Float16Type | BFloat16Type | Float8E4M3FNType):
        return FloatAttr(float(value), type)
    if value != int(value):
        raise VerifyException(f"kernel.constant: {value} is not a whole number, expected one of type {type}")
    if type == i1:
        return IntegerAttr(int(value), i1)
    bits = int(element_name(type).removeprefix("i"))
    half = 1 << (bits - 1)
    return IntegerAttr((int(value) + half) % (1 << bits) - half, IntegerType(bits))


def number(value: SSAValue) -> Number | None:
    """The number that a scalar constant holds; None for other values."""
    op = value.owner
    return op.value.value.data if isinstance(op, kernel.ConstantOp) and not shape(value) else None


def folded(op: type[BinaryOp], a: SSAValue, b: SSAValue) -> Number | None:
    """The number that `op` makes of two integer constants."""
    left, right = number(a), number(b)
    if isinstance(left, int) and isinstance(right, int) and element(a) in INTEGERS and op in FOLDS:
        return FOLDS[op](left, right)
    return None


def is_right_identity(op: type[BinaryOp], b: SSAValue) -> bool:
    """`x op b` is x."""
    return _is_identity(op, b, RIGHT_IDENTITY)


def is_left_identity(op: type[BinaryOp], a: SSAValue) -> bool:
    """`a op x` is x."""
    return _is_identity(op, a, LEFT_IDENTITY)


def is_all_true(value: SSAValue) -> bool:
    """A constant mask that hides nothing."""
    op = value.owner
    return isinstance(op, kernel.ConstantOp) and op.value.type == i1 and op.value.value.data != 0


def trips_once(low: SSAValue, high: SSAValue, step: SSAValue) -> bool:
    """The bounds are constants that leave one iteration."""
    first, last, by = number(low), number(high), number(step)
    return first is not None and last is not None and by is not None and first < last <= first + by


def drop_unused(func: kernel.FuncOp) -> None:
    """Erases what is computed and never used. Loads stay: what a kernel reads is for its author to say."""
    for op in reversed(list(func.walk())):
        if op.results and op.has_trait(Pure()) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()


def _is_identity(op: type[BinaryOp], value: SSAValue, table: Mapping[type[BinaryOp], int]) -> bool:
    found = number(value)
    if found is None or op not in table or found != table[op]:
        return False
    # -0.0 + 0.0 is 0.0, so that a float zero is not neutral in a sum; the subtraction x - 0.0 keeps every x.
    return isinstance(found, int) or op is not kernel.AddOp

"""Division of indices by a constant: a sum of what is known of its terms enters, the shortest quotient and remainder that it allows leave.

Indices are sums of starts (multiples of a tile's size) and ranges (0 … n - 1). A start that is a multiple of the divisor needs no division, and
a range that cannot carry into the next multiple stays as it is: contiguous, so that a compiler that looks for contiguous loads sees them.
"""

from __future__ import annotations

import math
from functools import reduce

from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.dialects.kernel.types import shape
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.kernel_folds import number


def quotient(b: KernelBuilder, value: SSAValue, divisor: int) -> SSAValue:
    """value // divisor of an index, value >= 0 and divisor >= 1. Of a block that lies within one multiple it is a scalar."""
    whole, starts, ranges, most = _parts(b, value, divisor)
    if most is not None and (starts or most <= divisor):
        ranges = []
    carried = [_divided(b, _sum(b, own), divisor) for own in (starts, ranges) if own]
    return _sum(b, [*(_divided(b, term, divisor) for term in whole), *carried])


def remainder(b: KernelBuilder, value: SSAValue, divisor: int) -> SSAValue:
    """value % divisor of an index, value >= 0 and divisor >= 1."""
    _, starts, ranges, most = _parts(b, value, divisor)
    if starts:
        return _sum(b, [b.mod(_sum(b, starts), divisor), *ranges])
    return _sum(b, ranges) if most is not None and most <= divisor else b.mod(_sum(b, ranges), divisor)


def _parts(b: KernelBuilder, value: SSAValue, divisor: int) -> tuple[list[SSAValue], list[SSAValue], list[SSAValue], int | None]:
    """Terms of an index: multiples of the divisor; starts that the rest does not carry past the next multiple; the rest, and what it stays below."""
    terms = _terms(b, value)
    whole = [term for term in terms if multiple(term) % divisor == 0]
    rest = [term for term in terms if multiple(term) % divisor]
    starts = [term for term in rest if not shape(term)]
    ranges = [term for term in rest if shape(term)]
    most = below(ranges)
    if most is None or most > math.gcd(divisor, *map(multiple, starts)):
        return whole, [], rest, below(rest)
    return whole, starts, ranges, most


def multiple(value: SSAValue) -> int:
    """A number that divides `value`: 1 where nothing is known, 0 (which all numbers divide) for zero."""
    known = number(value)
    if isinstance(known, int):
        return abs(known)
    match value.owner:
        case kernel.MulOp() as op:
            return multiple(op.operands[0]) * multiple(op.operands[1])
        case kernel.AddOp() | kernel.SubOp() | kernel.ModOp() as op:
            return math.gcd(multiple(op.operands[0]), multiple(op.operands[1]))
        case kernel.ExpandDimsOp() | kernel.BroadcastToOp() as op:
            return multiple(op.operands[0])
        case _:
            return 1


def below(terms: list[SSAValue]) -> int | None:
    """What a sum of indices never reaches, and never falls below 0; None where nothing is known."""
    known = [_most(term) for term in terms]
    return None if any(most is None for most in known) else 1 + sum(most for most in known if most is not None)


def _most(value: SSAValue) -> int | None:
    """The largest of a block of numbers of which none is below 0."""
    known = number(value)
    if isinstance(known, int):
        return known if known >= 0 else None
    match value.owner:
        case kernel.ArangeOp() as op:
            return op.end.value.data - 1 if op.start.value.data >= 0 else None
        case kernel.AddOp() | kernel.MulOp() as op:
            first, second = (_most(operand) for operand in op.operands)
            if first is None or second is None:
                return None
            return first + second if isinstance(op, kernel.AddOp) else first * second
        case kernel.ExpandDimsOp() | kernel.BroadcastToOp() as op:
            return _most(op.operands[0])
        case _:
            return None


def _terms(b: KernelBuilder, value: SSAValue) -> list[SSAValue]:
    """What `value` is the sum of, scalars without the shape that they were given."""
    op = value.owner
    if isinstance(op, kernel.AddOp):
        return [*_terms(b, op.operands[0]), *_terms(b, op.operands[1])]
    if isinstance(op, kernel.ExpandDimsOp):
        return [term if not shape(term) else b.expand(term, op.axis.value.data) for term in _terms(b, op.operands[0])]
    return [value]


def _divided(b: KernelBuilder, value: SSAValue, divisor: int) -> SSAValue:
    """value // divisor; a factor that the divisor divides is divided instead of the product."""
    known, op = number(value), value.owner
    if isinstance(known, int):
        return b.constant(known // divisor)
    if isinstance(op, kernel.ExpandDimsOp):
        return b.expand(_divided(b, op.operands[0], divisor), op.axis.value.data)
    if isinstance(op, kernel.MulOp):
        for factor, other in (op.operands, op.operands[::-1]):
            known = number(factor)
            if isinstance(known, int) and known % divisor == 0:
                return b.mul(other, known // divisor)
    return b.floordiv(value, divisor)


def _sum(b: KernelBuilder, terms: list[SSAValue]) -> SSAValue:
    return reduce(b.add, terms) if terms else b.constant(0)

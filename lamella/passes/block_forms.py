"""A kernel goes in; for every integer block in it, how its numbers run along each axis comes out: stride, run, and where runs start.

The abstract domain is the affine form of polyhedral compilers, cut into runs: `x // q` and `x % q` of an affine x are affine again within
aligned runs, and a number read from a table is constant where its index is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from lamella.dialects import kernel
from lamella.dialects.kernel.arithmetic import BinaryOp, UnaryOp
from lamella.dialects.kernel.types import BITS, Shape, element, shape


@dataclass(frozen=True)
class Axis:
    """One axis of a block: within each aligned run of `run` indices the numbers grow by `stride`.

    Runs start at multiples of `jump` (relative to the form's base; 0: all start alike, or there is one). `table`: the starts were read
    from memory.
    """

    size: int
    stride: int = 0
    run: int = 1
    jump: int = 0
    table: bool = False

    @property
    def constant(self) -> int:
        """The indices over which the numbers stay the same."""
        return self.run if self.stride == 0 else 1

    @property
    def distinct(self) -> int:
        """The most different numbers along the axis."""
        return (self.run if self.stride else 1) * (self.size // self.run if self.jump else 1)

    def cut(self, run: int) -> Axis:
        """The same numbers in runs of `run`, which divides the runs there are."""
        if run == self.run:
            return self
        return replace(self, stride=self.stride if run > 1 else 0, run=run, jump=gcd(self.jump, self.stride * run))

    def scaled(self, factor: int) -> Axis:
        """All numbers times `factor`."""
        return replace(self, stride=self.stride * factor, jump=abs(self.jump * factor))


@dataclass(frozen=True)
class Form:
    """The numbers of a block: a base that is a multiple of `multiple` (0: it is zero), plus what each axis adds.

    `value` is the number of a constant. A scalar has no axes.
    """

    axes: tuple[Axis, ...] = ()
    multiple: int = 1
    value: int | None = None

    def starts(self, index: int) -> int:
        """A divisor of all numbers at which a run along axis `index` starts."""
        others = (n for i, axis in enumerate(self.axes) if i != index for n in (axis.stride, axis.jump))
        return gcd(self.multiple, self.axes[index].jump, *others)

    @property
    def divisor(self) -> int:
        """A divisor of all the numbers."""
        return gcd(self.multiple, *(n for axis in self.axes for n in (axis.stride, axis.jump)))


def unknown(sizes: Shape) -> Form:
    """Numbers of which nothing is known."""
    return Form(tuple(Axis(n, 0, 1, 0 if n == 1 else 1) for n in sizes))


def constant(sizes: Shape, value: int) -> Form:
    """A block filled with one number."""
    return Form(tuple(Axis(n, 0, n) for n in sizes), abs(value), value)


def spread(form: Form, sizes: Shape) -> Form:
    """The form broadcast to `sizes`."""
    if not form.axes:
        return replace(form, axes=tuple(Axis(n, 0, n) for n in sizes))
    return replace(form, axes=tuple(Axis(n, 0, n) if axis.size == 1 and n > 1 else axis for axis, n in zip(form.axes, sizes, strict=True)))


def scaled(form: Form, factor: int) -> Form:
    """All numbers times `factor`."""
    value = None if form.value is None else form.value * factor
    return Form(tuple(axis.scaled(factor) for axis in form.axes), abs(form.multiple * factor), value)


def added(a: Form, b: Form, sizes: Shape) -> Form:
    """The sum of two blocks."""
    a, b = spread(a, sizes), spread(b, sizes)
    axes: list[Axis] = []
    for left, right in zip(a.axes, b.axes, strict=True):
        run = gcd(left.run, right.run)
        x, y = left.cut(run), right.cut(run)
        axes.append(Axis(x.size, x.stride + y.stride, run, gcd(x.jump, y.jump), x.table or y.table))
    value = None if a.value is None or b.value is None else a.value + b.value
    return Form(tuple(axes), gcd(a.multiple, b.multiple), value)


def combined(forms: Sequence[Form], sizes: Shape) -> Form:
    """Some function of several blocks, element by element: constant where all of them are."""
    axes: list[Axis] = []
    for parts in zip(*(spread(f, sizes).axes for f in forms), strict=True):
        run = gcd(*(p.constant for p in parts))
        size = parts[0].size
        axes.append(Axis(size, 0, run, 0 if run == size else 1, any(p.table for p in parts)))
    return Form(tuple(axes))


def multiplied(a: Form, b: Form, sizes: Shape) -> Form:
    """The product: affine when one factor is a constant."""
    if a.value is not None:
        a, b = b, a
    if b.value is not None:
        return spread(scaled(a, b.value), sizes)
    return replace(combined((a, b), sizes), multiple=a.divisor * b.divisor)


def aligned(axis: Axis, starts: int, period: int) -> int:
    """The longest part of each run that crosses no multiple of `period` (0: only zero), when runs start at multiples of `starts`."""
    if axis.stride == 0:
        return axis.run
    if axis.stride < 0 or period % axis.stride or starts % axis.stride:
        return 1
    return gcd(axis.run, period // axis.stride, starts // axis.stride)


def divided(form: Form, divisor: int) -> Form:
    """The quotient by a positive number."""
    if form.value is not None:
        return constant(tuple(axis.size for axis in form.axes), form.value // divisor)
    exact = form.divisor % divisor == 0
    axes: list[Axis] = []
    for i, axis in enumerate(form.axes):
        whole = axis.stride % divisor == 0
        run = axis.run if whole else aligned(axis, form.starts(i), divisor)
        cut = axis.cut(run)
        jump = 0 if run == axis.size else cut.jump // divisor if exact else 1
        axes.append(Axis(axis.size, axis.stride // divisor if whole else 0, run, jump, axis.table))
    return Form(tuple(axes), form.divisor // divisor if exact else 1)


def remainder(form: Form, divisor: int) -> Form:
    """The remainder by a positive number."""
    if form.value is not None:
        return constant(tuple(axis.size for axis in form.axes), form.value % divisor)
    axes: list[Axis] = []
    for i, axis in enumerate(form.axes):
        if axis.stride % divisor == 0:
            axes.append(Axis(axis.size, 0, axis.run, 0 if axis.run == axis.size else gcd(axis.jump, divisor), axis.table))
            continue
        run = aligned(axis, form.starts(i), divisor)
        # Runs that start at multiples of the divisor all start alike.
        alike = run == axis.size or gcd(form.starts(i), axis.stride * run) % divisor == 0
        axes.append(Axis(axis.size, axis.stride if run > 1 else 0, run, 0 if alike else gcd(axis.cut(run).jump, divisor), axis.table))
    return Form(tuple(axes), gcd(form.divisor, divisor))


def compared(op: Operation, a: Form, b: Form, sizes: Shape) -> Form:
    """A comparison: constant while the difference does not cross zero. Only `<` and `>=` hold over a run that starts at zero."""
    difference = added(a, scaled(b, -1), sizes)
    axes: list[Axis] = []
    for i, axis in enumerate(difference.axes):
        run = aligned(axis, difference.starts(i), 0) if isinstance(op, kernel.LtOp | kernel.GeOp) else axis.constant
        axes.append(Axis(axis.size, 0, run, 0 if run == axis.size else 1, axis.table))
    return Form(tuple(axes))


def chosen(condition: Form, a: Form, b: Form, sizes: Shape) -> Form:
    """`where`: affine over the runs in which the condition stays and both sides grow alike."""
    condition, a, b = spread(condition, sizes), spread(a, sizes), spread(b, sizes)
    axes: list[Axis] = []
    for c, x, y in zip(condition.axes, a.axes, b.axes, strict=True):
        run = gcd(c.constant, x.run, y.run) if x.stride == y.stride else gcd(c.constant, x.constant, y.constant)
        jump = 0 if run == x.size else gcd(x.cut(run).jump, y.cut(run).jump, a.divisor, b.divisor)
        axes.append(Axis(x.size, x.stride if run > 1 and x.stride == y.stride else 0, run, jump, x.table or y.table))
    return Form(tuple(axes), gcd(a.multiple, b.multiple))


def loaded(offsets: Form) -> Form:
    """Numbers read from memory: constant where their offsets are."""
    return Form(tuple(Axis(x.size, 0, x.constant, 0 if x.constant == x.size else 1, x.constant < x.size) for x in offsets.axes))


def reshaped(form: Form, sizes: Shape) -> Form:
    """The form in another shape, if only axes of size 1 come or go; else nothing is known."""
    kept = [axis for axis in form.axes if axis.size > 1]
    if [axis.size for axis in kept] != [n for n in sizes if n > 1]:
        return replace(unknown(sizes), multiple=form.divisor)
    rest = iter(kept)
    return replace(form, axes=tuple(next(rest) if n > 1 else Axis(1) for n in sizes))


class Forms:
    """The forms of all integer values of a kernel."""

    def __init__(self, function: kernel.FuncOp) -> None:
        self._known: dict[SSAValue, Form] = {}
        self._block(function.body.block)

    def of(self, value: SSAValue) -> Form:
        """How the numbers of a value run."""
        return self._known.get(value) or unknown(shape(value))

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, kernel.ForOp):
                step = self.of(op.step)
                self._known[op.body.block.args[0]] = Form((), gcd(self.of(op.low).multiple, step.value or step.multiple))
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)
            if op.results and not op.regions and element(op.results[0]) in BITS:
                self._known[op.results[0]] = self._form(op)

    def _form(self, op: Operation) -> Form:
        sizes = shape(op.results[0])
        rule = RULES.get(type(op))
        operands = [self.of(value) for value in op.operands]
        if rule is not None:
            return rule(op, operands, sizes)
        return combined(operands, sizes) if isinstance(op, BinaryOp | UnaryOp) else unknown(sizes)


def _constant(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    assert isinstance(op, kernel.ConstantOp)
    return constant(sizes, op.value.value.data) if isinstance(op.value, IntegerAttr) else unknown(sizes)


def _arange(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    assert isinstance(op, kernel.ArangeOp)
    return Form((Axis(sizes[0], 1, sizes[0]),), op.start.value.data)


def _quotient(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    a, b = operands
    if b.value is None or b.value <= 0:
        return combined(operands, sizes)
    return (divided if isinstance(op, kernel.FloordivOp) else remainder)(spread(a, sizes), b.value)


def _shift(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    a, b = operands
    if b.value is None or b.value < 0:
        return combined(operands, sizes)
    return spread(scaled(a, 1 << b.value) if isinstance(op, kernel.ShlOp) else divided(a, 1 << b.value), sizes)


def _expand(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    assert isinstance(op, kernel.ExpandDimsOp)
    axes, at = operands[0].axes, op.axis.value.data
    return replace(operands[0], axes=(*axes[:at], Axis(1), *axes[at:]))


def _transposed(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    assert isinstance(op, kernel.TransOp)
    return replace(operands[0], axes=tuple(operands[0].axes[i] for i in op.axes()))


def _reduced(op: Operation, operands: Sequence[Form], sizes: Shape) -> Form:
    assert isinstance(op, kernel.ReduceOp)
    alike = [Axis(x.size, 0, x.constant, 0 if x.constant == x.size else 1, x.table) for x in operands[0].axes]
    at = op.axis.value.data
    kept = (Axis(1),) if op.keep_dims is not None else ()
    return Form((*alike[:at], *kept, *alike[at + 1 :]))


RULES: Mapping[type[Operation], Callable[[Operation, Sequence[Form], Shape], Form]] = {
    kernel.ConstantOp: _constant,
    kernel.ArangeOp: _arange,
    kernel.AddOp: lambda op, x, n: added(x[0], x[1], n),
    kernel.SubOp: lambda op, x, n: added(x[0], scaled(x[1], -1), n),
    kernel.NegOp: lambda op, x, n: scaled(x[0], -1),
    kernel.MulOp: lambda op, x, n: multiplied(x[0], x[1], n),
    kernel.FloordivOp: _quotient,
    kernel.ModOp: _quotient,
    kernel.ShlOp: _shift,
    kernel.ShrOp: _shift,
    kernel.LtOp: lambda op, x, n: compared(op, x[0], x[1], n),
    kernel.GeOp: lambda op, x, n: compared(op, x[0], x[1], n),
    kernel.WhereOp: lambda op, x, n: chosen(x[0], x[1], x[2], n),
    kernel.CastOp: lambda op, x, n: x[0],
    kernel.ExpandDimsOp: _expand,
    kernel.BroadcastToOp: lambda op, x, n: spread(x[0], n),
    kernel.ReshapeOp: lambda op, x, n: reshaped(x[0], n),
    kernel.TransOp: _transposed,
    kernel.LoadOp: lambda op, x, n: loaded(x[1]),
    kernel.ReduceOp: _reduced,
}
"""What each op does to forms; of the others it is only known where they are constant."""

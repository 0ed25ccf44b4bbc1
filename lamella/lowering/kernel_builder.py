"""Builds a `kernel.func` op by op: Python numbers become constants, result types follow from broadcasting, trivial ops fold away."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, StringAttr, f32, i1, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects import kernel
from lamella.dialects.kernel.arithmetic import BinaryOp, UnaryOp
from lamella.dialects.kernel.types import block_type, broadcast, element_type, shape
from lamella.lowering.kernel_folds import (
    Number,
    default_type,
    drop_unused,
    folded,
    is_all_true,
    is_left_identity,
    is_right_identity,
    number,
    number_attribute,
    trips_once,
)
from lamella.lowering.kernel_scopes import Loop, Scope

Operand: TypeAlias = SSAValue | int | float | bool


class KernelBuilder:
    """A kernel under construction. Every method appends at most one op to the innermost open block and returns its result.

    Operands are SSA values or Python numbers; a number takes the element type of the operand beside it, or i32, f32, i1 when it stands
    alone. Identical pure ops in one scope are built once. Raises VerifyException at the call that is wrong.
    """

    def __init__(self, name: str, parameters: Mapping[str, Attribute], *, num_warps: int = 4, num_stages: int = 1) -> None:
        self.func = kernel.FuncOp(name, parameters, num_warps=num_warps, num_stages=num_stages)
        self.parameters: tuple[SSAValue, ...] = tuple(self.func.body.block.args)
        self._scopes = [Scope(self.func.body.block)]
        self._source: str | None = None

    def finish(self) -> kernel.FuncOp:
        """Ends the kernel with `kernel.return`, drops what nothing uses, and verifies it."""
        self._append(kernel.ReturnOp())
        drop_unused(self.func)
        self.func.verify()
        return self.func

    def named(self, name: str, value: SSAValue) -> SSAValue:
        """`value`, printed under `name`."""
        value.name_hint = name
        return value

    @contextmanager
    def source(self, name: str) -> Generator[None]:
        """Tags the ops built inside with the name of what they come from, printed as a trailing comment."""
        before, self._source = self._source, name
        try:
            yield
        finally:
            self._source = before

    # Constants, ranges, the grid

    def constant(self, value: Number, type: Attribute | None = None) -> SSAValue:
        """A scalar. Without a type: bool is i1, int is i32, float is f32."""
        return self._emit(kernel.ConstantOp(number_attribute(value, type or default_type(value))))

    def full(self, sizes: Sequence[int], value: Number, type: Attribute | None = None) -> SSAValue:
        """A block filled with one number."""
        return self._emit(kernel.ConstantOp(number_attribute(value, type or default_type(value)), tuple(sizes)))

    def arange(self, start: int, end: int | None = None) -> SSAValue:
        """`arange(n)` is 0 … n - 1, `arange(a, b)` is a … b - 1, as a block of i32; their number is a power of two."""
        return self._emit(kernel.ArangeOp(start, end) if end is not None else kernel.ArangeOp(0, start))

    def program_id(self, axis: int = 0) -> SSAValue:
        return self._emit(kernel.ProgramIdOp(axis))

    def num_programs(self, axis: int = 0) -> SSAValue:
        return self._emit(kernel.NumProgramsOp(axis))

    # Unary

    def neg(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.NegOp, x)

    def abs(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.AbsOp, x)

    def exp(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.ExpOp, x)

    def exp2(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.Exp2Op, x)

    def log(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.LogOp, x)

    def log2(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.Log2Op, x)

    def sqrt(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.SqrtOp, x)

    def rsqrt(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.RsqrtOp, x)

    def sin(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.SinOp, x)

    def cos(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.CosOp, x)

    def floor(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.FloorOp, x)

    def erf(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.ErfOp, x)

    def sigmoid(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.SigmoidOp, x)

    def not_(self, x: SSAValue) -> SSAValue:
        return self._unary(kernel.NotOp, x)

    # Binary

    def add(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.AddOp, a, b)

    def sub(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.SubOp, a, b)

    def mul(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.MulOp, a, b)

    def div(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.DivOp, a, b)

    def floordiv(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.FloordivOp, a, b)

    def mod(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.ModOp, a, b)

    def minimum(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.MinimumOp, a, b)

    def maximum(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.MaximumOp, a, b)

    def and_(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.AndOp, a, b)

    def or_(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.OrOp, a, b)

    def xor(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.XorOp, a, b)

    def shl(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.ShlOp, a, b)

    def shr(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.ShrOp, a, b)

    def lshr(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.LshrOp, a, b)

    def lt(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.LtOp, a, b)

    def le(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.LeOp, a, b)

    def gt(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.GtOp, a, b)

    def ge(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.GeOp, a, b)

    def eq(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.EqOp, a, b)

    def ne(self, a: Operand, b: Operand) -> SSAValue:
        return self._binary(kernel.NeOp, a, b)

    def all_of(self, *masks: SSAValue | None) -> SSAValue | None:
        """The conjunction of the masks that are there and hide something; None when there is none."""
        out: SSAValue | None = None
        for mask in masks:
            if mask is not None and not is_all_true(mask):
                out = mask if out is None else self.and_(out, mask)
        return out

    # Ternary and casts

    def fma(self, a: Operand, b: Operand, c: Operand) -> SSAValue:
        """`a * b + c`, rounded once."""
        a, b, c = self._same_element(a, b, c)
        return self._emit(kernel.FmaOp(a, b, c, block_type(self._sizes(a, b, c), element_type(a.type))))

    def where(self, condition: SSAValue, a: Operand, b: Operand) -> SSAValue:
        a, b = self._same_element(a, b)
        return self._emit(kernel.WhereOp(condition, a, b, block_type(self._sizes(condition, a, b), element_type(a.type))))

    def cast(self, x: Operand, type: Attribute) -> SSAValue:
        """`x` with elements of `type`; x itself where it has them already."""
        known = number(x) if isinstance(x, SSAValue) else x
        if known is not None:
            is_float = isinstance(type, Float32Type | Float16Type | BFloat16Type)
            return self.constant(float(known) if is_float else int(known), type)
        assert isinstance(x, SSAValue)
        return x if element_type(x.type) == type else self._emit(kernel.CastOp(x, type))

    def bitcast(self, x: SSAValue, type: Attribute) -> SSAValue:
        return x if element_type(x.type) == type else self._emit(kernel.BitcastOp(x, type))

    # Shapes

    def expand(self, x: SSAValue, axis: int) -> SSAValue:
        """A new axis of size 1 at `axis`."""
        return self._emit(kernel.ExpandDimsOp(x, axis))

    def broadcast(self, x: SSAValue, sizes: Sequence[int]) -> SSAValue:
        return x if shape(x) == tuple(sizes) else self._emit(kernel.BroadcastToOp(x, sizes))

    def reshape(self, x: SSAValue, sizes: Sequence[int]) -> SSAValue:
        return x if shape(x) == tuple(sizes) else self._emit(kernel.ReshapeOp(x, sizes))

    def trans(self, x: SSAValue, order: Sequence[int] = (1, 0)) -> SSAValue:
        return self._emit(kernel.TransOp(x, order))

    def split(self, x: SSAValue) -> tuple[SSAValue, SSAValue]:
        """`x[…, 0]` and `x[…, 1]`."""
        first, second = self._build(kernel.SplitOp(x)).results
        return first, second

    def join(self, first: SSAValue, second: SSAValue) -> SSAValue:
        return self._emit(kernel.JoinOp(first, second))

    # Reductions

    def reduce(self, x: SSAValue, kind: str, axis: int, *, keep_dims: bool = False) -> SSAValue:
        """Kind `sum`, `max`, `min`, `argmax` or `argmin` along `axis`."""
        return self._emit(kernel.ReduceOp(x, kind, axis, keep_dims=keep_dims))

    def custom_reduce(
        self,
        x: SSAValue,
        axis: int,
        combine: Callable[[KernelBuilder, SSAValue, SSAValue], SSAValue],
        identity: float,
        *,
        keep_dims: bool = False,
    ) -> SSAValue:
        """A reduction by `combine(builder, a, b)`, associative and commutative, on scalars; it may use nothing but a, b and constants."""
        scalar = element_type(x.type)
        block = Block(arg_types=[scalar, scalar])
        block.args[0].name_hint, block.args[1].name_hint = "a", "b"
        self._scopes.append(Scope(block, isolated=True))
        try:
            self._append(kernel.YieldOp(combine(self, *block.args)))
        finally:
            self._scopes.pop()
        return self._emit(kernel.ReduceOp(x, "custom", axis, keep_dims=keep_dims, combine=block, identity=identity))

    def dot(self, a: SSAValue, b: SSAValue, acc: SSAValue | None = None) -> SSAValue:
        """`acc + a @ b` in f32; of bytes in i32."""
        return self._emit(kernel.DotOp(a, b, acc))

    def lower_half(self, x: SSAValue) -> SSAValue:
        """16 times the signed number in the lower four bits of each byte."""
        return self._unary(kernel.LowerHalfOp, x)

    def upper_half(self, x: SSAValue) -> SSAValue:
        """16 times the signed number in the upper four bits of each byte."""
        return self._unary(kernel.UpperHalfOp, x)

    def widen(self, part: str, x: SSAValue, to: Attribute, *, raised: bool = False) -> SSAValue:
        """The signed number in a part of each byte, `lower`, `upper` or `whole`, as a float; `raised` by what `kernel.raised_by` says."""
        return self._emit(kernel.WidenOp(part, x, to, raised=raised))

    # Memory

    def as_bytes(self, pointer: SSAValue) -> SSAValue:
        """The bytes of a buffer of words."""
        return self._emit(kernel.AsBytesOp(pointer))

    def load(
        self,
        pointer: SSAValue,
        offsets: Operand,
        mask: SSAValue | None = None,
        other: Operand | None = None,
        *,
        eviction: str | None = None,
        cache: str | None = None,
        settled: bool = False,
    ) -> SSAValue:
        """`pointer[offsets]`; where the mask is false, `other` (0 unless given). `eviction` is `first` or `last`."""
        fill = None
        if mask is not None:
            fill = self._typed(0 if other is None else other, element_type(pointer.type))
        return self._emit(kernel.LoadOp(pointer, self._typed(offsets, i32), mask, fill, eviction=eviction, cache=cache, settled=settled))

    def load_block(self, descriptor: SSAValue, row: Operand, column: Operand) -> SSAValue:
        """The block of a described matrix from `row` and `column` on; 0 outside of it."""
        return self._emit(kernel.LoadBlockOp(descriptor, self._typed(row, i32), self._typed(column, i32)))

    def store(
        self,
        pointer: SSAValue,
        offsets: Operand,
        value: Operand,
        mask: SSAValue | None = None,
        *,
        eviction: str | None = None,
        cache: str | None = None,
    ) -> None:
        value = self._typed(value, element_type(pointer.type))
        self._build(kernel.StoreOp(pointer, self._typed(offsets, i32), value, mask, eviction=eviction, cache=cache))

    def atomic_add(self, pointer: SSAValue, offsets: Operand, value: Operand, mask: SSAValue | None = None) -> SSAValue:
        """Adds to memory; what was there before."""
        value = self._typed(value, element_type(pointer.type))
        return self._emit(kernel.AtomicAddOp(pointer, self._typed(offsets, i32), value, mask))

    # Control

    @contextmanager
    def for_(
        self,
        low: Operand,
        high: Operand,
        step: Operand = 1,
        init: Sequence[Operand] = (),
        *,
        num_stages: int | None = None,
        unroll: bool = False,
    ) -> Generator[Loop]:
        """`with b.for_(0, n, 64, init=[acc]) as loop:` … `loop.yields(next)`, then `loop.results`. One trip needs no loop."""
        inits = [self._typed(value, None) for value in init]
        low, high, step = (self._typed(bound, i32) for bound in (low, high, step))
        if trips_once(low, high, step):
            loop = Loop(low, tuple(inits))
            yield loop
            loop.results = self._carried(loop)
            return
        block = Block(arg_types=[i32, *(value.type for value in inits)])
        block.args[0].name_hint = "i"
        for argument, value in zip(block.args[1:], inits, strict=True):
            argument.name_hint = value.name_hint
        loop = Loop(block.args[0], tuple(block.args[1:]))
        with self._inside(block):
            yield loop
            self._append(kernel.YieldOp(*self._carried(loop)))
        op = self._build(kernel.ForOp(low, high, step, inits, block, num_stages=num_stages, unroll=unroll))
        for result, argument in zip(op.results, loop.values, strict=True):
            result.name_hint = argument.name_hint
        loop.results = tuple(op.results)

    @contextmanager
    def if_(self, condition: Operand) -> Generator[None]:
        """`with b.if_(condition):` builds a branch that runs for its side effects."""
        condition = self._typed(condition, i1)
        block = Block()
        with self._inside(block):
            yield
            self._append(kernel.YieldOp())
        self._build(kernel.IfOp(condition, block))

    @contextmanager
    def else_(self) -> Generator[None]:
        """`with b.else_():` directly after `if_` builds its other branch."""
        branch = self._block.last_op
        if not isinstance(branch, kernel.IfOp) or branch.otherwise is not None:
            raise VerifyException("else_ does not follow an if_ in the same block")
        block = Block()
        with self._inside(block):
            yield
            self._append(kernel.YieldOp())
        self._block.detach_op(branch)
        then = branch.then.detach_block(0)
        self._build(kernel.IfOp(branch.condition, then, block))
        branch.erase()

    def barrier(self) -> None:
        """All threads of the program meet."""
        self._build(kernel.BarrierOp())

    def launch_dependents(self) -> None:
        self._build(kernel.LaunchDependentsOp())

    def wait_prerequisites(self) -> None:
        self._build(kernel.WaitPrerequisitesOp())

    # How ops are made

    @property
    def _block(self) -> Block:
        return self._scopes[-1].block

    @contextmanager
    def _inside(self, block: Block) -> Generator[None]:
        self._scopes.append(Scope(block))
        try:
            yield
        finally:
            self._scopes.pop()

    def _append(self, op: Operation) -> None:
        self._block.add_op(op)

    def _build(self, op: Operation) -> Operation:
        """Verifies and appends `op`, or returns the identical pure op that a scope around it already holds."""
        key = (op.name, op.operands, tuple(sorted(op.properties.items())), tuple(op.result_types))
        reusable = op.has_trait(Pure()) and not op.regions
        if reusable and (known := self._known(key)):
            op.erase()
            return known
        if self._source is not None:
            op.attributes["source"] = StringAttr(self._source)
        op.verify(verify_nested_ops=False)
        self._append(op)
        if reusable:
            self._scopes[-1].memo[key] = op
        return op

    def _known(self, key: tuple[object, ...]) -> Operation | None:
        for scope in reversed(self._scopes):
            if key in scope.memo:
                return scope.memo[key]
            if scope.isolated:
                break
        return None

    def _emit(self, op: Operation) -> SSAValue:
        return self._build(op).results[0]

    def _unary(self, op: type[UnaryOp], x: SSAValue) -> SSAValue:
        return self._emit(op(x))

    def _binary(self, op: type[BinaryOp], a: Operand, b: Operand) -> SSAValue:
        a, b = self._same_element(a, b)
        element = element_type(a.type)
        result = block_type(self._sizes(a, b), i1 if op.BOOLEAN else element)
        if (constant := folded(op, a, b)) is not None:
            return self.constant(constant, element)
        if is_right_identity(op, b) and a.type == result:
            return a
        if is_left_identity(op, a) and b.type == result:
            return b
        return self._emit(op(a, b, result))

    def _same_element(self, *operands: Operand) -> tuple[SSAValue, ...]:
        """The operands as values; numbers take the element type of the first value among them."""
        known = next((element_type(x.type) for x in operands if isinstance(x, SSAValue)), None)
        if known is None and any(isinstance(x, float) for x in operands):
            known = f32
        return tuple(self._typed(x, known) for x in operands)

    def _typed(self, x: Operand, type: Attribute | None) -> SSAValue:
        return x if isinstance(x, SSAValue) else self.constant(x, type)

    def _sizes(self, *values: SSAValue) -> tuple[int, ...]:
        """The broadcast shape; the op's verifier complains where there is none."""
        return broadcast(shape(v) for v in values) or shape(values[0])

    def _carried(self, loop: Loop) -> tuple[SSAValue, ...]:
        values = loop.next_values if loop.next_values is not None else ()
        if len(values) != len(loop.values):
            raise VerifyException(f"kernel.for yields {len(values)} values, expected the {len(loop.values)} that it carries")
        return values

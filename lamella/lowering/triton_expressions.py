"""The right side of every printed line: one op in, one Triton expression out, its operands already spelled."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from math import isfinite
from typing import TypeAlias

from xdsl.dialects.builtin import FloatAttr, f32
from xdsl.ir import Operation, SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import element_name
from lamella.dialects.kernel.types import FLOATS, element, shape
from lamella.errors import PassError
from lamella.lowering.triton_bytes import function_of

Use: TypeAlias = Callable[[SSAValue], str]
"""How an operand is spelled: a variable or a literal."""

LANGUAGE_TYPES: Mapping[str, str] = {
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f8": "tl.float8e4nv",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "i8": "tl.int8",
    "i1": "tl.int1",
}
SIGNATURE_TYPES: Mapping[str, str] = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f8": "fp8e4nv",
    "i64": "i64",
    "i32": "i32",
    "i8": "i8",
    "i1": "i1",
}

INFIX: Mapping[type[Operation], str] = {
    kernel.AddOp: "{0} + {1}",
    kernel.SubOp: "{0} - {1}",
    kernel.MulOp: "{0} * {1}",
    kernel.DivOp: "{0} / {1}",
    kernel.FloordivOp: "{0} // {1}",
    kernel.ModOp: "{0} % {1}",
    kernel.AndOp: "{0} & {1}",
    kernel.OrOp: "{0} | {1}",
    kernel.XorOp: "{0} ^ {1}",
    kernel.ShlOp: "{0} << {1}",
    kernel.ShrOp: "{0} >> {1}",
    kernel.LtOp: "{0} < {1}",
    kernel.LeOp: "{0} <= {1}",
    kernel.GtOp: "{0} > {1}",
    kernel.GeOp: "{0} >= {1}",
    kernel.EqOp: "{0} == {1}",
    kernel.NeOp: "{0} != {1}",
}
"""Operators of Python, where a number on one side takes the type of the tensor on the other."""

CALLS: Mapping[type[Operation], str] = {
    kernel.NegOp: "-{0}",
    kernel.NotOp: "~{0}",
    kernel.AbsOp: "tl.abs({0})",
    kernel.ExpOp: "tl.exp({0})",
    kernel.Exp2Op: "tl.exp2({0})",
    kernel.LogOp: "tl.log({0})",
    kernel.Log2Op: "tl.log2({0})",
    kernel.SqrtOp: "tl.sqrt({0})",
    kernel.RsqrtOp: "tl.rsqrt({0})",
    kernel.SinOp: "tl.sin({0})",
    kernel.CosOp: "tl.cos({0})",
    kernel.FloorOp: "tl.floor({0})",
    kernel.ErfOp: "tl.erf({0})",
    kernel.SigmoidOp: "tl.sigmoid({0})",
    kernel.FmaOp: "tl.fma({0}, {1}, {2})",
    kernel.WhereOp: "tl.where({0}, {1}, {2})",
    kernel.JoinOp: "tl.join({0}, {1})",
    kernel.SplitOp: "tl.split({0})",
}
"""Everything else whose line is its operands put into a pattern."""

NUMBER_ARGUMENTS = (kernel.MinimumOp, kernel.MaximumOp, kernel.FmaOp, kernel.WhereOp)
"""Calls that accept a Python number where a tensor of i32, f32 or i1 is meant."""

NUMBER_OPERANDS = (kernel.LoadOp, kernel.LoadBlockOp, kernel.StoreOp, kernel.AtomicAddOp, kernel.ForOp, kernel.IfOp)


def literal(constant: kernel.ConstantOp) -> str:
    """The shortest Python number that rounds to the constant."""
    value = constant.value
    if not isinstance(value, FloatAttr):
        return str(bool(value.value.data)) if element_name(value.type) == "i1" else str(value.value.data)
    exact = value.value.data
    if not isfinite(exact):
        return f'float("{exact}")'
    short = (float(f"{exact:.{digits}g}") for digits in range(1, 10))
    return repr(next((s for s in short if value.type == f32 and struct.pack("f", s) == struct.pack("f", exact)), exact))


def is_scalar_constant(value: SSAValue) -> bool:
    return isinstance(value.owner, kernel.ConstantOp) and not shape(value)


def takes_literal(value: SSAValue, op: Operation) -> bool:
    """The scalar constant `value` may stand as a number in the line of `op`."""
    if not is_scalar_constant(value):
        return False
    others = [operand for operand in op.operands if not is_scalar_constant(operand)]
    if type(op) in INFIX or (isinstance(op, kernel.LshrOp) and value is op.rhs and value is not op.lhs):
        return bool(others)
    if element(value) in ("f32", "i32", "i1"):
        is_yield = isinstance(op, kernel.YieldOp) and isinstance(op.parent_op(), kernel.ForOp)
        return is_yield or isinstance(op, NUMBER_OPERANDS) or (isinstance(op, NUMBER_ARGUMENTS) and bool(others))
    # The other element types are cast to that of the pointer.
    return (isinstance(op, kernel.LoadOp) and value is op.other) or (isinstance(op, kernel.StoreOp) and value is op.value)


@singledispatch
def expression(op: Operation, use: Use) -> str:
    """The Triton expression of `op`. Raises PassError for an op that has none."""
    pattern = INFIX.get(type(op)) or CALLS.get(type(op))
    if pattern is None:
        raise PassError("the Triton printer does not know this op", where=op.name, expected="an op of the kernel dialect")
    return pattern.format(*(use(value) for value in op.operands))


@expression.register
def _(op: kernel.ConstantOp, use: Use) -> str:
    sizes, name = shape(op.result), element(op.result)
    if not sizes and name in ("f32", "i32", "i1"):
        return literal(op)
    if name == "bf16":
        # Triton 3.6's interpreter takes the bits of the f16 number here.
        return f"tl.full({_tuple(sizes)}, {literal(op)}, tl.float32).to(tl.bfloat16)"
    return f"tl.full({_tuple(sizes)}, {literal(op)}, {LANGUAGE_TYPES[name]})"


@expression.register
def _(op: kernel.ProgramIdOp, use: Use) -> str:
    return f"tl.program_id({op.axis.value.data})"


@expression.register
def _(op: kernel.NumProgramsOp, use: Use) -> str:
    return f"tl.num_programs({op.axis.value.data})"


@expression.register
def _(op: kernel.ArangeOp, use: Use) -> str:
    return f"tl.arange({op.start.value.data}, {op.end.value.data})"


@expression.register
def _(op: kernel.MinimumOp | kernel.MaximumOp, use: Use) -> str:
    function = op.name.removeprefix("kernel.")
    nan = ", propagate_nan=tl.PropagateNan.ALL" if element(op.lhs) in FLOATS else ""
    return f"tl.{function}({use(op.lhs)}, {use(op.rhs)}{nan})"


@expression.register
def _(op: kernel.LshrOp, use: Use) -> str:
    bits = element(op.lhs).removeprefix("i")
    unsigned = f"tl.cast({use(op.lhs)}, tl.uint{bits}, bitcast=True)"
    return f"tl.cast({unsigned} >> {use(op.rhs)}, tl.int{bits}, bitcast=True)"


@expression.register
def _(op: kernel.CastOp, use: Use) -> str:
    type, value = LANGUAGE_TYPES[element(op.result)], use(op.operand)
    # A scalar may be the index of a loop, which is a plain int in the interpreter and has no method `to`.
    return f"{value}.to({type})" if shape(op.operand) else f"tl.cast({value}, {type})"


@expression.register
def _(op: kernel.BitcastOp, use: Use) -> str:
    return f"tl.cast({use(op.operand)}, {LANGUAGE_TYPES[element(op.result)]}, bitcast=True)"


@expression.register
def _(op: kernel.ExpandDimsOp, use: Use) -> str:
    axes = [":"] * len(shape(op.operand))
    axes.insert(op.axis.value.data, "None")
    return f"{use(op.operand)}[{', '.join(axes)}]"


@expression.register
def _(op: kernel.BroadcastToOp, use: Use) -> str:
    return f"tl.broadcast_to({use(op.operand)}, {_tuple(shape(op.result))})"


@expression.register
def _(op: kernel.ReshapeOp, use: Use) -> str:
    return f"tl.reshape({use(op.operand)}, {_tuple(shape(op.result))})"


@expression.register
def _(op: kernel.TransOp, use: Use) -> str:
    return f"tl.permute({use(op.operand)}, {_tuple(op.axes())})"


@expression.register
def _(op: kernel.ReduceOp, use: Use) -> str:
    return f"tl.{op.kind.data}({reduce_arguments(op, use)})"


def reduce_arguments(op: kernel.ReduceOp, use: Use, combine: str | None = None) -> str:
    """The arguments of a reduction; `combine` names the function of a custom one."""
    words = [use(op.operand), f"axis={op.axis.value.data}"]
    if combine is not None:
        words.append(f"combine_fn={combine}")
    if op.keep_dims is not None:
        words.append("keep_dims=True")
    return ", ".join(words)


@expression.register
def _(op: kernel.DotOp, use: Use) -> str:
    cast = ".to(DOT)" if element(op.a) == "bf16" else ""
    operands = [f"{use(op.a)}{cast}", f"{use(op.b)}{cast}"]
    if op.acc is not None:
        operands.append(use(op.acc))
    # float32 operands would multiply in TF32 by default; bf16 ones become float32 in the interpreter, which has no TF32.
    if element(op.a) == "f32":
        operands.append('input_precision="ieee"')
    if element(op.a) == "i8":
        operands.append("out_dtype=tl.int32")
    # Tensor cores add up products of float8 with some 14 bits: no longer than over the columns of one product.
    if element(op.a) == "f8":
        operands.append(f"max_num_imprecise_acc={shape(op.a)[1]}")
    return f"tl.dot({', '.join(operands)})"


@expression.register
def _(op: kernel.AsBytesOp, use: Use) -> str:
    return f"tl.cast({use(op.pointer)}, tl.pointer_type(tl.int8), bitcast=True)"


@expression.register
def _(op: kernel.LowerHalfOp | kernel.UpperHalfOp | kernel.WidenOp, use: Use) -> str:
    return f"{function_of(op)}({use(op.operand)}, ASM)"


@expression.register
def _(op: kernel.LoadOp, use: Use) -> str:
    words = [f"{use(op.pointer)} + {use(op.offsets)}"]
    if op.mask is not None and op.other is not None:
        words += [f"mask={use(op.mask)}", f"other={use(op.other)}"]
    return f"tl.load({', '.join(words + policies(op))})"


@expression.register
def _(op: kernel.LoadBlockOp, use: Use) -> str:
    return f"{use(op.descriptor)}.load([{use(op.row)}, {use(op.column)}])"


@expression.register
def _(op: kernel.AtomicAddOp, use: Use) -> str:
    words = [f"{use(op.pointer)} + {use(op.offsets)}", use(op.value)]
    if op.mask is not None:
        words.append(f"mask={use(op.mask)}")
    return f"tl.atomic_add({', '.join(words)})"


def policies(op: kernel.LoadOp | kernel.StoreOp) -> list[str]:
    words: list[str] = []
    if op.eviction is not None:
        words.append(f'eviction_policy="evict_{op.eviction.data}"')
    if op.cache is not None:
        words.append(f'cache_modifier=".{op.cache.data}"')
    return words


def _tuple(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"

"""Ops that combine elements of a block: reductions along an axis, and the matrix product."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, StringAttr, UnitAttr, f32, i32, i64
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_region_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.control import YieldOp
from lamella.dialects.kernel.types import block_type, element, element_type, shape, subject, verify_result, verify_value

KINDS = ("sum", "max", "min", "argmax", "argmin", "custom")
REDUCED = frozenset({"f32", "i32", "i64"})
DOT_ELEMENTS = frozenset({"f32", "f16", "bf16", "f8", "i8"})
MIN_DOT_K, MIN_DOT_K_BYTES, MIN_DOT_N = 16, 32, 8
"""The least K and N of a tensor-core instruction; M may be smaller, Triton pads it."""


def reduced_type(operand: Attribute, kind: str, axis: int, keep_dims: bool) -> Attribute:
    """The type of a reduction of `operand`; arg-reductions give i32."""
    sizes = shape(operand)
    kept = (1,) if keep_dims else ()
    return block_type((*sizes[:axis], *kept, *sizes[axis + 1 :]), i32 if kind.startswith("arg") else element_type(operand))


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """A block combined along one axis.

    `max` and `min` ignore NaN where there is another element; `argmax` and `argmin` give the smallest of equal indices. Kind `custom`
    has a region `^bb0(a, b)` that yields the combination of two scalars (associative and commutative), and its neutral element.
    """

    name = "kernel.reduce"

    operand = operand_def()
    kind = prop_def(StringAttr)
    axis = prop_def(IntegerAttr[IntegerType])
    keep_dims = opt_prop_def(UnitAttr)
    identity = opt_prop_def(FloatAttr)
    combine = opt_region_def("single_block")
    result = result_def()

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$kind $operand attr-dict `:` type($operand) `->` type($result) ($combine^)?"

    def __init__(
        self,
        operand: SSAValue,
        kind: str,
        axis: int,
        *,
        keep_dims: bool = False,
        combine: Block | None = None,
        identity: float | None = None,
    ) -> None:
        super().__init__(
            operands=[operand],
            properties={
                "kind": StringAttr(kind),
                "axis": IntegerAttr(axis, i64),
                "keep_dims": UnitAttr() if keep_dims else None,
                "identity": FloatAttr(identity, f32) if identity is not None else None,
            },
            regions=[[Region(combine)] if combine else []],
            result_types=[reduced_type(operand.type, kind, axis, keep_dims)],
        )

    def verify_(self) -> None:
        verify_value(self, "operand", self.operand, REDUCED)
        axis, rank = self.axis.value.data, len(shape(self.operand))
        if self.kind.data not in KINDS:
            raise VerifyException(f"{subject(self)}: kind is {self.kind.data!r}, expected one of {', '.join(KINDS)}")
        if not 0 <= axis < rank:
            raise VerifyException(f"{subject(self)}: axis is {axis}, expected one of the {rank} axes of {shape(self.operand)}")
        verify_result(self, reduced_type(self.operand.type, self.kind.data, axis, self.keep_dims is not None))
        if (self.kind.data == "custom") != (self.combine is not None) or (self.kind.data == "custom") != (self.identity is not None):
            raise VerifyException(f"{subject(self)}: kind {self.kind.data!r}; custom, and only custom, has a region and an identity")
        if self.combine is not None:
            self._verify_combine(self.combine.block)

    def _verify_combine(self, block: Block) -> None:
        scalar = element_type(self.operand.type)
        last = block.last_op
        yielded: Sequence[Attribute] = last.operand_types if isinstance(last, YieldOp) else ()
        if list(block.arg_types) != [scalar, scalar] or list(yielded) != [scalar]:
            raise VerifyException(
                f"{subject(self)}: the region takes {list(map(str, block.arg_types))}, expected two {scalar} and to yield one"
            )
        for op in block.walk():
            if not op.has_trait(Pure()) or op.regions or any(shape(result) for result in op.results):
                raise VerifyException(f"{subject(self)}: the region holds {op.name}, expected elementwise ops on scalars")
            if any(value.owner is not block and value.owner not in list(block.ops) for value in op.operands):
                raise VerifyException(
                    f"{subject(self)}: {op.name} in the region uses a value from outside, expected its arguments or constants"
                )


@irdl_op_definition
class DotOp(IRDLOperation):
    """`acc + a @ b` with a[M, K], b[K, N] of one type: floats, with acc[M, N] f32, or i8 with acc i32. f32 operands multiply in full precision.

    Of f8 the tensor cores add up the products of the columns at hand with fewer bits than a float32 has; `acc` is added in float32.
    """

    name = "kernel.dot"

    a = operand_def()
    b = operand_def()
    acc = opt_operand_def()
    result = result_def()

    traits = traits_def(Pure())
    assembly_format = "$a `,` $b (`,` $acc^)? attr-dict `:` type($a) `,` type($b) (`,` type($acc)^)? `->` type($result)"

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue | None = None) -> None:
        result = block_type((*shape(a)[:1], *shape(b)[1:]), _sum_type(a))
        super().__init__(operands=[a, b, [acc] if acc is not None else []], result_types=[result])

    def verify_(self) -> None:
        verify_value(self, "a", self.a, DOT_ELEMENTS)
        verify_value(self, "b", self.b, DOT_ELEMENTS)
        a, b = shape(self.a), shape(self.b)
        if element(self.a) != element(self.b):
            raise VerifyException(f"{subject(self)}: a has elements {element(self.a)}, b {element(self.b)}, expected the same")
        if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
            raise VerifyException(f"{subject(self)}: shapes {a} and {b}, expected (M, K) and (K, N)")
        least = MIN_DOT_K_BYTES if element(self.a) in ("i8", "f8") else MIN_DOT_K
        if a[1] < least or b[1] < MIN_DOT_N:
            raise VerifyException(f"{subject(self)}: K is {a[1]} and N is {b[1]}, expected at least {least} and {MIN_DOT_N}")
        result = block_type((a[0], b[1]), _sum_type(self.a))
        verify_result(self, result)
        if self.acc is not None and self.acc.type != result:
            raise VerifyException(f"{subject(self)}: acc has type {self.acc.type}, expected {result}")


def _sum_type(operand: SSAValue) -> Attribute:
    """In what products of elements like those of `operand` are added up."""
    return i32 if element(operand) == "i8" else f32

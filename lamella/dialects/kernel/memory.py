"""Loads, stores and atomic additions: a pointer, element offsets, and a mask that guards what lies outside; and blocks of described matrices."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, UnitAttr, i32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.arithmetic import ConstantOp
from lamella.dialects.kernel.types import (
    INTEGERS,
    STORED,
    DescriptorType,
    PointerType,
    Shape,
    block_type,
    element_type,
    shape,
    subject,
    verify_result,
    verify_stretches,
    verify_value,
)

EVICTIONS = ("first", "last")
LOAD_CACHES = ("ca", "cg", "cv")
STORE_CACHES = ("wb", "cg", "cs", "wt")
ATOMIC_ELEMENTS = frozenset({"f32", "i32", "i64"})


def _verify_access(op: LoadOp | StoreOp | AtomicAddOp) -> Shape:
    """Checks the pointer, offsets and mask of an access, and returns its shape."""
    if not isinstance(op.pointer.type, PointerType):
        raise VerifyException(f"{subject(op)}: pointer has type {op.pointer.type}, expected !kernel.ptr")
    verify_value(op, "offsets", op.offsets, INTEGERS)
    if op.mask is not None:
        verify_value(op, "mask", op.mask, frozenset({"i1"}))
        verify_stretches(op, "mask", op.mask, shape(op.offsets))
    return shape(op.offsets)


def _verify_stored(op: LoadOp | StoreOp | AtomicAddOp, role: str, value: SSAValue) -> None:
    """`value` has the pointer's element type and broadcasts to the offsets."""
    if element_type(value.type) != element_type(op.pointer.type):
        raise VerifyException(f"{subject(op)}: {role} has type {value.type}, expected elements {element_type(op.pointer.type)}")
    verify_value(op, role, value, STORED)
    verify_stretches(op, role, value, shape(op.offsets))


def _verify_policies(op: LoadOp | StoreOp, caches: tuple[str, ...]) -> None:
    _verify_word(op, "eviction", op.eviction, EVICTIONS)
    _verify_word(op, "cache", op.cache, caches)
    if op.eviction is not None and op.cache is not None:
        raise VerifyException(f"{subject(op)}: has eviction and cache, expected at most one of them (PTX cannot combine them)")


def _verify_word(op: IRDLOperation, role: str, word: StringAttr | None, known: tuple[str, ...]) -> None:
    if word is not None and word.data not in known:
        raise VerifyException(f"{subject(op)}: {role} is {word.data!r}, expected one of {', '.join(known)}")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """`pointer[offsets]`, and `other` where the mask is false (a mask always has an `other`).

    `settled` promises that the mask leaves only elements that no launch of the step writes, though it may write others behind the
    pointer: the load need not wait for the launches before (`dependent-launch`).
    """

    name = "kernel.load"

    pointer = operand_def(PointerType)
    offsets = operand_def()
    mask = opt_operand_def()
    other = opt_operand_def()
    eviction = opt_prop_def(StringAttr)
    cache = opt_prop_def(StringAttr)
    settled = opt_prop_def(UnitAttr)
    result = result_def()

    traits = traits_def(MemoryReadEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$pointer `[` $offsets `]` (`mask` $mask^ `:` type($mask))? (`other` $other^ `:` type($other))? attr-dict"
        " `:` type($pointer) `,` type($offsets) `->` type($result)"
    )

    def __init__(
        self,
        pointer: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        *,
        eviction: str | None = None,
        cache: str | None = None,
        settled: bool = False,
    ) -> None:
        super().__init__(
            operands=[pointer, offsets, [mask] if mask is not None else [], [other] if other is not None else []],
            properties={
                "eviction": StringAttr(eviction) if eviction else None,
                "cache": StringAttr(cache) if cache else None,
                "settled": UnitAttr() if settled else None,
            },
            result_types=[block_type(shape(offsets), element_type(pointer.type))],
        )

    def verify_(self) -> None:
        sizes = _verify_access(self)
        verify_result(self, block_type(sizes, element_type(self.pointer.type)))
        if (self.mask is None) != (self.other is None):
            raise VerifyException(f"{subject(self)}: has a mask or an other value alone, expected both or neither")
        if self.settled is not None and self.mask is None:
            raise VerifyException(f"{subject(self)}: is settled without a mask, expected one that leaves out what the step writes")
        if self.other is not None:
            _verify_stored(self, "other", self.other)
        _verify_policies(self, LOAD_CACHES)


@irdl_op_definition
class LoadBlockOp(IRDLOperation):
    """The block of a described matrix whose first element is at `row` and `column`: one request to the hardware, no addresses.

    `column` is a multiple of 8: blocks begin at multiples of 16 bytes.
    """

    name = "kernel.load_block"

    descriptor = operand_def(DescriptorType)
    row = operand_def(i32)
    column = operand_def(i32)
    result = result_def()

    traits = traits_def(MemoryReadEffect())
    assembly_format = "$descriptor `[` $row `,` $column `]` attr-dict `:` type($descriptor) `->` type($result)"

    def __init__(self, descriptor: SSAValue, row: SSAValue, column: SSAValue) -> None:
        type = descriptor.type
        result = block_type(type.block, type.element) if isinstance(type, DescriptorType) else type
        super().__init__(operands=[descriptor, row, column], result_types=[result])

    def verify_(self) -> None:
        assert isinstance(self.descriptor.type, DescriptorType)
        verify_result(self, block_type(self.descriptor.type.block, self.descriptor.type.element))
        column = self.column.owner
        if isinstance(column, ConstantOp) and column.value.value.data % 8:
            raise VerifyException(f"{subject(self)}: column is {column.value.value.data}, expected a multiple of 8")


@irdl_op_definition
class StoreOp(IRDLOperation):
    """`pointer[offsets] = value` where the mask holds."""

    name = "kernel.store"

    pointer = operand_def(PointerType)
    offsets = operand_def()
    value = operand_def()
    mask = opt_operand_def()
    eviction = opt_prop_def(StringAttr)
    cache = opt_prop_def(StringAttr)

    traits = traits_def(MemoryWriteEffect())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$pointer `[` $offsets `]` `,` $value (`mask` $mask^ `:` type($mask))? attr-dict"
        " `:` type($pointer) `,` type($offsets) `,` type($value)"
    )

    def __init__(
        self,
        pointer: SSAValue,
        offsets: SSAValue,
        value: SSAValue,
        mask: SSAValue | None = None,
        *,
        eviction: str | None = None,
        cache: str | None = None,
    ) -> None:
        super().__init__(
            operands=[pointer, offsets, value, [mask] if mask is not None else []],
            properties={
                "eviction": StringAttr(eviction) if eviction else None,
                "cache": StringAttr(cache) if cache else None,
            },
        )

    def verify_(self) -> None:
        _verify_access(self)
        _verify_stored(self, "value", self.value)
        _verify_policies(self, STORE_CACHES)


@irdl_op_definition
class AtomicAddOp(IRDLOperation):
    """Adds `value` to `pointer[offsets]` where the mask holds, in one indivisible step; the result is what was there before."""

    name = "kernel.atomic_add"

    pointer = operand_def(PointerType)
    offsets = operand_def()
    value = operand_def()
    mask = opt_operand_def()
    result = result_def()

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = (
        "$pointer `[` $offsets `]` `,` $value (`mask` $mask^ `:` type($mask))? attr-dict"
        " `:` type($pointer) `,` type($offsets) `,` type($value) `->` type($result)"
    )

    def __init__(self, pointer: SSAValue, offsets: SSAValue, value: SSAValue, mask: SSAValue | None = None) -> None:
        result = block_type(shape(offsets), element_type(pointer.type))
        super().__init__(operands=[pointer, offsets, value, [mask] if mask is not None else []], result_types=[result])

    def verify_(self) -> None:
        sizes = _verify_access(self)
        _verify_stored(self, "value", self.value)
        verify_value(self, "value", self.value, ATOMIC_ELEMENTS)
        verify_result(self, block_type(sizes, element_type(self.pointer.type)))

"""The types of level 5: pointers, scalars and blocks (static tensors whose sizes are powers of two), and how they broadcast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeAlias

from xdsl.dialects.builtin import I64, DenseArrayBase, StringAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import AnyAttr, irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import ELEMENT_BYTES, element_name

Shape: TypeAlias = tuple[int, ...]

MAX_ELEMENTS = 1 << 20
"""The largest block Triton accepts (`TRITON_MAX_TENSOR_NUMEL`)."""

FLOAT32 = frozenset({"f32"})
FLOATS = frozenset({"f32", "f16"})
INTEGERS = frozenset({"i32", "i64"})
NUMBERS = FLOATS | INTEGERS
BITS = INTEGERS | {"i1"}
STORED = NUMBERS | {"bf16", "f8", "i8", "i1"}
"""What a pointer may point to. `bf16`, `f8` (float8 e4m3fn) and `i8` are cast before any arithmetic: Triton's interpreter computes on their raw bits."""


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """`!kernel.ptr<bf16>`: the address of the first element of a buffer, 16-byte aligned."""

    name = "kernel.ptr"

    element: Attribute = param_def(AnyAttr())

    def verify(self) -> None:
        if _name_or_none(self.element) not in STORED:
            raise VerifyException(f"kernel.ptr: element type {self.element}, expected one of {', '.join(sorted(STORED))}")


DESCRIBED = frozenset({"bf16", "f16", "f8", "i8"})
"""Elements of what descriptors read."""
BLOCK_ROWS, BLOCK_BYTES = 256, 128
"""The most of a block: rows that the hardware fetches at once, and bytes of each, which shared memory keeps without conflicts."""


@irdl_attr_definition
class DescriptorType(ParametrizedAttribute, TypeAttribute):
    """`!kernel.descriptor<128x64xbf16>`: a matrix in memory whose sizes the hardware knows, read in blocks of this shape.

    It begins at a multiple of 16 bytes, and so does each of its rows. What lies outside of it reads as 0.
    """

    name = "kernel.descriptor"

    sizes: DenseArrayBase[I64]
    element: Attribute = param_def(AnyAttr())

    @staticmethod
    def of(sizes: Sequence[int], element: Attribute) -> DescriptorType:
        """The type for blocks of `sizes`."""
        return DescriptorType(DenseArrayBase.from_list(i64, list(sizes)), element)

    @property
    def block(self) -> Shape:
        """Rows and columns of a block."""
        return tuple(int(n) for n in self.sizes.get_values())

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            sizes, element = parser.parse_ranked_shape()
        return DenseArrayBase.from_list(i64, sizes), element

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string("".join(f"{n}x" for n in self.block))
            printer.print_attribute(self.element)

    def verify(self) -> None:
        if _name_or_none(self.element) not in DESCRIBED:
            raise VerifyException(f"kernel.descriptor: element type {self.element}, expected one of {', '.join(sorted(DESCRIBED))}")
        rows, columns = self.block if len(self.block) == 2 else (0, 0)
        size = ELEMENT_BYTES[_name_or_none(self.element) or ""]
        if not (is_power_of_two(rows) and rows <= BLOCK_ROWS and is_power_of_two(columns) and 16 <= columns * size <= BLOCK_BYTES):
            expected = f"powers of two: at most {BLOCK_ROWS} rows of {16 // size} to {BLOCK_BYTES // size} columns"
            raise VerifyException(f"kernel.descriptor: blocks of {self.block}, expected {expected}")


def element_type(type: Attribute) -> Attribute:
    """The element type of a block, pointer or descriptor; a scalar is its own."""
    match type:
        case TensorType():
            return type.element_type
        case PointerType() | DescriptorType():
            return type.element
        case _:
            return type


def shape(value: SSAValue | Attribute) -> Shape:
    """The shape of a block; `()` for a scalar."""
    type = value.type if isinstance(value, SSAValue) else value
    return tuple(type.get_shape()) if isinstance(type, TensorType) else ()


def element(value: SSAValue | Attribute) -> str:
    """The element name of a block or scalar (`"f32"`), `"?"` for what has none."""
    return _name_or_none(element_type(value.type if isinstance(value, SSAValue) else value)) or "?"


def block_type(sizes: Sequence[int], element: Attribute) -> Attribute:
    """`tensor<sizes x element>`, or the scalar `element` where `sizes` is empty."""
    return TensorType(element, list(sizes)) if sizes else element


def broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """The common shape as Triton finds it: scalars fit anything, size-1 axes stretch, ranks are equal. None when there is none."""
    out: Shape = ()
    for sizes in shapes:
        if not sizes or not out:
            out = sizes or out
        elif len(sizes) != len(out) or any(a != b and 1 not in (a, b) for a, b in zip(sizes, out, strict=True)):
            return None
        else:
            out = tuple(max(a, b) for a, b in zip(sizes, out, strict=True))
    return out


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def subject(op: Operation) -> str:
    """`kernel.add %acc (rms_norm)`: the op, the value it makes, and its source; the head of every message about `op`."""
    hint = op.results[0].name_hint if op.results else None
    source = op.attributes.get("source")
    return op.name + (f" %{hint}" if hint else "") + (f" ({source.data})" if isinstance(source, StringAttr) else "")


def verify_value(op: Operation, role: str, value: SSAValue, elements: frozenset[str]) -> None:
    """`value` is a scalar or block of one of `elements`, and Triton accepts its shape."""
    named = f"{role} %{value.name_hint}" if value.name_hint else role
    if element(value) not in elements:
        remedy = "; cast it first" if element(value) in ("bf16", "f16", "f8", "i8", "i1") else ""
        raise VerifyException(f"{subject(op)}: {named} has type {value.type}, expected elements {' or '.join(sorted(elements))}{remedy}")
    sizes = shape(value)
    if not all(is_power_of_two(n) for n in sizes):
        raise VerifyException(f"{subject(op)}: {named} has shape {sizes}, expected powers of two")
    if prod(sizes) > MAX_ELEMENTS:
        raise VerifyException(f"{subject(op)}: {named} has {prod(sizes)} elements, expected at most {MAX_ELEMENTS}")


def verify_result(op: Operation, expected: Attribute) -> None:
    """The first result of `op` has type `expected`."""
    if op.results[0].type != expected:
        raise VerifyException(f"{subject(op)}: result has type {op.results[0].type}, expected {expected}")


def verify_broadcast(op: Operation, values: Sequence[SSAValue]) -> Shape:
    """The common shape of `values`, which must have one."""
    sizes = broadcast(shape(v) for v in values)
    if sizes is None:
        shapes = " and ".join(str(shape(v)) for v in values)
        raise VerifyException(f"{subject(op)}: shapes {shapes} do not broadcast, expected equal ranks and sizes that are equal or 1")
    return sizes


def verify_stretches(op: Operation, role: str, value: SSAValue, sizes: Shape) -> None:
    """`value` broadcasts to exactly `sizes`, without stretching them."""
    if broadcast((shape(value), sizes)) != sizes:
        raise VerifyException(f"{subject(op)}: {role} has shape {shape(value)}, expected one that broadcasts to {sizes}")


def _name_or_none(type: Attribute) -> str | None:
    try:
        return element_name(type)
    except ValueError:
        return None

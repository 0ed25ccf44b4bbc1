"""Between xDSL attributes and Python values: what an op's properties say to `semantics` and to the manifest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    DenseArrayBase,
    DictionaryAttr,
    Float8E4M3FNType,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    TensorType,
    UnitAttr,
    bf16,
    f8E4M3FN,
    f16,
    f32,
    f64,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue

Value: TypeAlias = "int | float | bool | str | Sequence[Value] | Mapping[str, Value]"
"""A property as a Python value; every one of them is JSON."""

ELEMENT_TYPES: Mapping[str, Attribute] = {
    "f32": f32,
    "f16": f16,
    "bf16": bf16,
    "f8": f8E4M3FN,
    "f64": f64,
    "i32": i32,
    "i64": i64,
    "i8": i8,
    "i1": i1,
}
"""`f8` is the float8 that weights are stored in: 4 bits of exponent, 3 of mantissa, no infinity (e4m3fn)."""
ELEMENT_BYTES: Mapping[str, int] = {"f32": 4, "f16": 2, "bf16": 2, "f8": 1, "f64": 8, "i32": 4, "i64": 8, "i8": 1, "i1": 1}


class StructuredAttribute(Attribute, ABC):
    """Mixin for attributes with parameters that semantics and manifests are told."""

    @abstractmethod
    def python_value(self) -> Value:
        """The parameters as a Python value."""


def element_name(type: Attribute) -> str:
    """The name of an element type, as in the manifest: `bf16`. Raises ValueError for a type Lamella does not use."""
    match type:
        case BFloat16Type():
            return "bf16"
        case Float16Type():
            return "f16"
        case Float32Type():
            return "f32"
        case Float64Type():
            return "f64"
        case Float8E4M3FNType():
            return "f8"
        case IntegerType():
            return f"i{type.width.data}"
        case _:
            raise ValueError(f"element type {type} has no name")


def python_value(attribute: Attribute) -> Value:
    """The Python value of an attribute. Raises ValueError for attributes that carry no plain value."""
    match attribute:
        case IntegerAttr():
            if attribute.type == i1:
                return bool(attribute.value.data)
            return attribute.value.data
        case FloatAttr():
            return attribute.value.data
        case IntAttr() | StringAttr():
            return attribute.data
        case UnitAttr():
            return True
        case ArrayAttr():
            return [python_value(a) for a in attribute.data]
        case DenseArrayBase():
            return [int(v) for v in cast("DenseArrayBase[Any]", attribute).get_values()]
        case DictionaryAttr():
            return {k: python_value(v) for k, v in sorted(attribute.data.items())}
        case StructuredAttribute():
            return attribute.python_value()
        case _:
            raise ValueError(f"attribute {attribute} has no Python value")


def python_int(attribute: Attribute) -> int:
    """An integer attribute as a number."""
    value = python_value(attribute)
    assert isinstance(value, int)
    return value


def attribute_of(value: Value) -> Attribute:
    """The attribute of a Python value: the inverse of `python_value` (integers become i64, floats f64)."""
    match value:
        case bool():
            return IntegerAttr(int(value), i1)
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(value, f64)
        case str():
            return StringAttr(value)
        case Mapping():
            return DictionaryAttr({k: attribute_of(v) for k, v in sorted(value.items())})
        case _:
            return ArrayAttr([attribute_of(v) for v in value])


class ResultTyped:
    """Mixin for ops whose result dtype is not implied by their operands: `attributes_of` adds `dtype`."""


def attributes_of(op: Operation) -> dict[str, Value]:
    """The properties of `op` as keyword arguments of its semantics, and `dtype` for a `ResultTyped` op."""
    out: dict[str, Value] = {
        name: python_value(a) for name, a in sorted(op.properties.items()) if name not in ("operandSegmentSizes", "resultSegmentSizes")
    }
    if isinstance(op, ResultTyped):
        out["dtype"] = element_of(op.results[0])
    return out


def shaped(type: Attribute) -> TensorType[Attribute] | MemRefType[Attribute]:
    """`type` as a tensor or buffer type: operands are typed as plain attributes."""
    assert isinstance(type, TensorType | MemRefType), type
    return cast("TensorType[Attribute] | MemRefType[Attribute]", type)


def element_type_of(value: SSAValue) -> Attribute:
    """The element type of a tensor or buffer value."""
    return shaped(value.type).element_type


def element_of(value: SSAValue) -> str:
    """The element name of a tensor or buffer value."""
    return element_name(element_type_of(value))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tensor or buffer value; xDSL's DYNAMIC_INDEX stands for a dynamic dimension."""
    return tuple(shaped(value.type).get_shape())

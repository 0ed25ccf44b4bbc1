"""The types of level 1: tensors whose dynamic dimensions have names and whose features may be laid out anew, and the paged cache of one layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import TypeVar
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    BFloat16Type,
    Float8E4M3FNType,
    Float16Type,
    Float32Type,
    IntAttr,
    NoneAttr,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrConstraint,
    IntConstraint,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    opt_attr_def,
)
from xdsl.irdl.constraints import VerificationContext
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from lamella.dialects.attributes import ELEMENT_TYPES, element_of
from lamella.dialects.messages import subject

Dimension: TypeAlias = "int | str"
"""A static size, or the name of a dynamic one. `B+1` is a name too: one more than B."""


@dataclass(frozen=True)
class TensorOf(AttrConstraint[TensorType[Attribute]]):
    """A tensor whose element type has one of these names."""

    elements: tuple[str, ...]

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        known = [ELEMENT_TYPES[name] for name in self.elements]
        if not isa(attr, TensorType[Attribute]) or attr.element_type not in known:
            raise VerifyException(f"type is {attr}, expected a tensor of {' or '.join(self.elements)}")

    def mapping_type_vars(self, type_var_mapping: Mapping[TypeVar, AttrConstraint | IntConstraint]) -> TensorOf:
        return self


FloatTensor = TensorOf(("f32", "f16", "bf16"))
WideTensor = TensorOf(("f32",))
IndexTensor = TensorOf(("i32",))
PackedTensor = TensorOf(("i32", "f8"))
"""Weights in few bits: words that hold several, or floats of eight bits."""
ScaleTensor = TensorOf(("f32", "f16", "bf16", "i8"))
"""Scales and mins of groups: floats, or whole numbers that floats multiply."""
StoredTensor = TensorOf(("f32", "f16", "bf16", "i32", "i8", "f8"))
"""What a weight may be: numbers, or words that hold several."""


@irdl_attr_definition
class DimsAttr(ParametrizedAttribute):
    """Names of a tensor's dynamic dimensions, one a `?`: `tensor<?x64xf32, #transformer.dims<"N">>`."""

    name = "transformer.dims"

    names: ArrayAttr[StringAttr]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        names = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parser.parse_str_literal)
        return [ArrayAttr([StringAttr(name) for name in names])]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_list(self.names.data, lambda name: printer.print_string_literal(name.data))


@irdl_attr_definition
class LayoutAttr(ParametrizedAttribute):
    """The order of a tensor's features, beside the names of its dimensions: `#transformer.layout<dims = ["N"], head = 64, paired = 32>`.

    Features are the rows of a weight, the numbers of a bias, the columns of an activation. They come in heads of `head`; the first `paired` of
    each lie in paired order, partners d and d ^ 1, where a tensor without a layout has d and d + paired/2.
    """

    name = "transformer.layout"

    names: ArrayAttr[StringAttr]
    head: IntAttr
    paired: IntAttr

    @property
    def order(self) -> Order:
        """The order, without the dimensions."""
        return Order(self.head.data, self.paired.data)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        names: list[str] = []
        with parser.in_angle_brackets():
            if parser.parse_optional_keyword("dims"):
                parser.parse_punctuation("=")
                names = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
                parser.parse_punctuation(",")
            parser.parse_keyword("head")
            parser.parse_punctuation("=")
            head = parser.parse_integer()
            parser.parse_punctuation(",")
            parser.parse_keyword("paired")
            parser.parse_punctuation("=")
            paired = parser.parse_integer()
        return [ArrayAttr([StringAttr(name) for name in names]), IntAttr(head), IntAttr(paired)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if self.names.data:
                printer.print_string("dims = ")
                with printer.in_square_brackets():
                    printer.print_list(self.names.data, lambda name: printer.print_string_literal(name.data))
                printer.print_string(", ")
            printer.print_string(f"head = {self.head.data}, paired = {self.paired.data}")

    def verify(self) -> None:
        if self.paired.data % 2 or not 0 < self.paired.data <= self.head.data:
            raise VerifyException(
                f"transformer.layout: paired is {self.paired.data}, expected an even number up to head = {self.head.data}"
            )


@dataclass(frozen=True)
class Order:
    """What a layout says: features in heads of `head`, the first `paired` of each in paired order."""

    head: int
    paired: int

    def __str__(self) -> str:
        return f"pairs of {self.paired} in heads of {self.head}"


@irdl_attr_definition
class KVCacheType(ParametrizedAttribute, TypeAttribute):
    """The paged cache of one layer: `!transformer.kv_cache<8 x 64 x bf16, block = 16, paired = 0>`.

    8 KV heads of 64 dimensions, blocks of 16 tokens; the first `paired` dimensions of a key's head lie in paired order (partner d ^ 1).
    A cache of `f8E4M3FN` has a float32 scale beside each head of each key and value: the head's largest magnitude / 448.
    """

    name = "transformer.kv_cache"

    kv_heads: IntAttr
    head_dim: IntAttr
    element_type: Attribute
    block: IntAttr
    paired: IntAttr

    @staticmethod
    def of(kv_heads: int, head_dim: int, element_type: Attribute, *, block: int, paired: int = 0) -> KVCacheType:
        """A cache type from Python values."""
        return KVCacheType(IntAttr(kv_heads), IntAttr(head_dim), element_type, IntAttr(block), IntAttr(paired))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            kv_heads = parser.parse_integer()
            parser.parse_keyword("x")
            head_dim = parser.parse_integer()
            parser.parse_keyword("x")
            element = parser.parse_type()
            numbers: list[int] = []
            for key in ("block", "paired"):
                parser.parse_punctuation(",")
                parser.parse_keyword(key)
                parser.parse_punctuation("=")
                numbers.append(parser.parse_integer())
        return [IntAttr(kv_heads), IntAttr(head_dim), element, *(IntAttr(number) for number in numbers)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.kv_heads.data} x {self.head_dim.data} x ")
            printer.print_attribute(self.element_type)
            printer.print_string(f", block = {self.block.data}, paired = {self.paired.data}")

    def verify(self) -> None:
        if not isinstance(self.element_type, Float32Type | Float16Type | BFloat16Type | Float8E4M3FNType):
            raise VerifyException(f"transformer.kv_cache: element type is {self.element_type}, expected f32, f16, bf16 or f8E4M3FN")
        if min(self.kv_heads.data, self.head_dim.data, self.block.data) < 1:
            raise VerifyException(f"transformer.kv_cache: heads, head size and block are positive, got {self}")
        if self.paired.data % 2 or not 0 <= self.paired.data <= self.head_dim.data:
            raise VerifyException(f"transformer.kv_cache: paired is {self.paired.data}, expected an even number up to {self.head_dim.data}")


def named_tensor(element: Attribute, dimensions: Sequence[Dimension], order: Order | None = None) -> TensorType[Attribute]:
    """The tensor type with these dimensions; a string is a dynamic dimension of that name. `order`: of the features, where it is not plain."""
    names = ArrayAttr([StringAttr(d) for d in dimensions if isinstance(d, str)])
    shape = [DYNAMIC_INDEX if isinstance(d, str) else d for d in dimensions]
    if order is not None:
        return TensorType(element, shape, LayoutAttr(names, IntAttr(order.head), IntAttr(order.paired)))
    return TensorType(element, shape, DimsAttr(names) if names.data else NoneAttr())


def ordered(type: Attribute, order: Order | None) -> TensorType[Attribute]:
    """The tensor type with its features in another order, or (None) the plain one."""
    assert isa(type, TensorType[Attribute]), type
    return named_tensor(type.element_type, dimensions_of(type), order)


def order_of(type: Attribute) -> Order | None:
    """The order of a tensor's features; None for the plain one."""
    encoding = type.encoding if isinstance(type, TensorType) else None
    return encoding.order if isinstance(encoding, LayoutAttr) else None


def dimensions_of(type: Attribute) -> tuple[Dimension, ...]:
    """The dimensions of a tensor type. Raises ValueError when its dynamic dimensions and names differ in number."""
    assert isinstance(type, TensorType), type
    shape, encoding = type.get_shape(), type.encoding
    names = [name.data for name in encoding.names.data] if isinstance(encoding, DimsAttr | LayoutAttr) else []
    if len(names) != shape.count(DYNAMIC_INDEX):
        raise ValueError(f"has {shape.count(DYNAMIC_INDEX)} dynamic dimensions and {len(names)} names")
    remaining = iter(names)
    return tuple(next(remaining) if size == DYNAMIC_INDEX else size for size in shape)


def shown(dimensions: Sequence[Dimension]) -> str:
    """Dimensions as a message prints them: `(N, 64)`, `(32,)`."""
    return f"({', '.join(map(str, dimensions))}{',' if len(dimensions) == 1 else ''})"


def one_more(dimension: Dimension) -> Dimension:
    """The dimension of an array of starts over `dimension` things: B -> B+1, 3 -> 4."""
    return dimension + 1 if isinstance(dimension, int) else f"{dimension}+1"


class TransformerOp(IRDLOperation):
    """What all ops of the dialect share: a model location, one textual form, and the checks of their verifiers."""

    loc = opt_attr_def(StringAttr)
    """Where in the model the op comes from, such as `layers.3.attn.q`."""

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"

    def dimensions(self, what: str, value: SSAValue, rank: int | None = None) -> tuple[Dimension, ...]:
        """The dimensions of `value`, called `what` in messages. Raises VerifyException for unnamed ones or another rank."""
        try:
            dimensions = dimensions_of(value.type)
        except ValueError as error:
            raise VerifyException(f"{subject(self)}: {what} {error}, expected one name each") from error
        if rank is not None and len(dimensions) != rank:
            raise VerifyException(f"{subject(self)}: {what} has shape {shown(dimensions)}, expected {rank} axes")
        return dimensions

    def expect_shape(self, what: str, value: SSAValue, expected: Sequence[Dimension], why: str) -> None:
        """Raises VerifyException unless `value` has the dimensions `expected`, which come from `why`."""
        got = self.dimensions(what, value)
        if got != tuple(expected):
            raise VerifyException(f"{subject(self)}: {what} has shape {shown(got)}, expected {shown(expected)}, {why}")

    def expect_element(self, what: str, value: SSAValue, like: SSAValue, why: str) -> None:
        """Raises VerifyException unless `value` has the element type of `like`, which is `why`."""
        if element_of(value) != element_of(like):
            raise VerifyException(f"{subject(self)}: {what} has element type {element_of(value)}, expected {element_of(like)}, {why}")

    def expect_like(self, what: str, value: SSAValue, like: SSAValue, name: str) -> None:
        """Raises VerifyException unless `value` has the shape and element type of `like`, called `name`."""
        self.expect_shape(what, value, self.dimensions(name, like), f"the shape of {name}")
        self.expect_element(what, value, like, f"that of {name}")

    def expect_order(self, what: str, value: SSAValue, expected: Order | None, why: str) -> None:
        """Raises VerifyException unless the features of `value` lie in the order `expected`, which comes from `why`."""
        got = order_of(value.type)
        if got != expected:
            raise VerifyException(f"{subject(self)}: {what} lies in {got or 'plain order'}, expected {expected or 'plain order'}, {why}")

    def fail(self, message: str) -> VerifyException:
        """An error about this op."""
        return VerifyException(f"{subject(self)}: {message}")


def located(loc: str | None) -> dict[str, Attribute]:
    """The discardable attributes of an op with this model location."""
    return {} if loc is None else {"loc": StringAttr(loc)}


Value: TypeAlias = "SSAValue | Operation"
"""What a constructor takes as an operand."""

"""How numbers of a few bits lie in memory, and which floats they stand for: an attribute that levels 1 and 2 share."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr, StringAttr, f8E4M3FN, i32
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import StructuredAttribute, Value, element_of, shape_of

WORD = 32
"""Bits of a word."""
BITS = {"int4": 4, "int8": 8, "fp8": 8}
"""Bits of a number of each kind."""
EIGHT_BITS = "i8"
"""Elements of scales and mins that others multiply."""
FLOATS = ("fp8",)
"""Kinds that are floats themselves (e4m3fn: at most 448), each its own element in memory."""


def factors_shape(rows: int, groups: int, by_group: int) -> tuple[int, int]:
    """The shape of one number for each of `groups` groups of so many rows: [rows, groups], or group by group, `by_group` neighbours of a row side
    by side: [groups/by_group, rows·by_group]."""
    return (groups // by_group, rows * by_group) if by_group else (rows, groups)


@irdl_attr_definition
class PackingAttr(ParametrizedAttribute, StructuredAttribute):
    """Numbers of a kind in words, with a scale for each group of neighbours in a row: `#transformer.packing<int4, group = 128>`.

    A weight w[O,K] is stored as words[O, K·bits/32] i32 and scales[O, K/group], perhaps also mins[O, K/group]. Of numbers q without sign
    w = scale·(q - zero), zero = 2^(bits - 1); with mins w = scale·q + min. What lies in memory is q - zero, with sign: for `int8` a byte of
    each column, for `int4` two columns in a byte, of which the one in the upper half is `half` columns behind the other. As bytes they are
    what tensor cores multiply.

    Scales, and mins, may lie in two levels (GGUF's K blocks): whole numbers of eight bits with a sign for each group, and for several groups
    together a float that multiplies them in float32, super_scales[O, K/(n·group)] and super_mins likewise.

    `fp8` is stored as what it is, words[O, K] f8E4M3FN, with one scale a row: w = scale·q. A scale for fewer columns would save no error, since
    a float brings an exponent of its own.
    """

    name = "transformer.packing"

    kind: StringAttr
    group: IntAttr

    @staticmethod
    def of(kind: str, group: int) -> PackingAttr:
        """A packing from Python values."""
        return PackingAttr(StringAttr(kind), IntAttr(group))

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return BITS[self.kind.data]

    @property
    def floats(self) -> bool:
        """Whether numbers are floats by themselves, which need no taking apart."""
        return self.kind.data in FLOATS

    @property
    def element(self) -> Attribute:
        """The element type of `words`."""
        return f8E4M3FN if self.floats else i32

    @property
    def per_word(self) -> int:
        """Numbers of an element of `words`."""
        return 1 if self.floats else WORD // self.bits

    @property
    def zero(self) -> int:
        """What stands for 0 where there are no mins."""
        return 0 if self.floats else 1 << (self.bits - 1)

    @property
    def half(self) -> int:
        """Columns between the two numbers of four bits that share a byte: a power of two, at most 64, so that both are in one group."""
        return min(64, (self.group.data & -self.group.data) // 2)

    @property
    def in_bytes(self) -> bool:
        """Whether tensor cores can multiply the numbers as bytes: 32 neighbours with one scale, and in one half of bytes."""
        return not self.floats and (self.half >= 32 if self.bits == 4 else self.group.data % 32 == 0)

    def shift(self, number: int) -> int:
        """The lowest bit of a number of a word: first those in the lower halves of its bytes."""
        return 8 * (number % 4) + 4 * (number // 4)

    def python_value(self) -> Value:
        """The parameters, for semantics and manifest."""
        return {"kind": self.kind.data, "group": self.group.data}

    def words_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of the words of a weight."""
        return rows, columns // self.per_word

    def groups_shape(self, rows: int, columns: int, by_group: int = 0) -> tuple[int, int]:
        """The shape of the scales of a weight; `by_group` as in `factors_shape`."""
        return factors_shape(rows, columns // self.group.data, by_group)

    def mismatch(
        self,
        weight: Sequence[int | str],
        words: Sequence[int | str],
        scales: Sequence[int | str],
        element: Attribute | None = None,
        *,
        by_group: int = 0,
    ) -> str | None:
        """Why words (of this element type) and scales of these shapes are not those of a weight of that shape; None where they are."""
        if element is not None and element != self.element:
            return f"words have elements {element}, expected {self.element} for {self.kind.data}"
        if len(weight) != 2 or not isinstance(weight[0], int) or not isinstance(weight[1], int):
            return f"the weight has shape {tuple(weight)}, expected a static matrix"
        rows, columns = weight[0], weight[1]
        if columns % self.group.data or columns % self.per_word:
            return f"{columns} columns are no whole groups of {self.group.data} in words of {self.per_word}"
        if tuple(words) != self.words_shape(rows, columns):
            return f"words have shape {tuple(words)}, expected {self.words_shape(rows, columns)}, {self.per_word} columns of {rows, columns} a word"
        if by_group < 0 or (by_group and columns // self.group.data % by_group):
            return f"by_group is {by_group}, expected a divisor of the {columns // self.group.data} groups of a row"
        groups = self.groups_shape(rows, columns, by_group)
        if tuple(scales) != groups:
            return f"scales have shape {tuple(scales)}, expected {groups}, one for {self.group.data} columns"
        if self.floats and columns != self.group.data:
            return f"group is {self.group.data}, expected {columns}: {self.kind.data} has one scale a row"
        return None

    def super_mismatch(
        self, scales: SSAValue, mins: SSAValue | None, super_scales: SSAValue | None, super_mins: SSAValue | None, *, by_group: int = 0
    ) -> str | None:
        """Why these are not scales and mins of one level or of two; None where they are."""
        for name, own, over in (("scales", scales, super_scales), ("mins", mins, super_mins)):
            if own is None and over is not None:
                return f"has super_{name}, expected none: there are no {name}"
            if own is not None and (element_of(own) == EIGHT_BITS) != (super_scales is not None):
                expected = (
                    f"{EIGHT_BITS}, which super_scales multiply" if super_scales is not None else "floats, as there are no super_scales"
                )
                return f"{name} have elements {element_of(own)}, expected {expected}"
            if own is not None and over is None and super_scales is not None:
                return f"{name} have no super_{name}, expected both: scales have super_scales"
        if super_scales is None:
            return None
        if self.floats:
            return f"has super_scales, expected none: {self.kind.data} has one scale a row"
        if by_group > 1:
            return f"by_group is {by_group}, expected at most 1: there are super_scales"
        rows, groups = reversed(shape_of(scales)) if by_group else shape_of(scales)
        found = shape_of(super_scales)
        own_rows, supers = (0, 0) if len(found) != 2 else reversed(found) if by_group else found
        if own_rows != rows or supers < 1 or groups % supers:
            return f"super_scales have shape {found}, expected those of {rows} rows, each for whole groups of {groups}"
        if super_mins is not None and shape_of(super_mins) != found:
            return f"super_mins have shape {shape_of(super_mins)}, expected {found}, that of super_scales"
        return None

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            kind = parser.parse_identifier()
            parser.parse_punctuation(",")
            parser.parse_keyword("group")
            parser.parse_punctuation("=")
            return [StringAttr(kind), IntAttr(parser.parse_integer())]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.kind.data}, group = {self.group.data}")

    def verify(self) -> None:
        if self.kind.data not in BITS:
            raise VerifyException(f"transformer.packing: kind is {self.kind.data}, expected {' or '.join(BITS)}")
        if self.group.data < 1 or self.group.data % self.per_word:
            raise VerifyException(f"transformer.packing: group is {self.group.data}, expected whole words of {self.per_word}")


def factors_of(parts: Sequence[SSAValue]) -> tuple[SSAValue | None, SSAValue | None, SSAValue | None]:
    """mins, super_scales and super_mins of the operands of a `dequantize` in order: words, scales (, mins) (, super_scales (, super_mins)).

    Scales of eight bits have super_scales, so that their number says which are there.
    """
    _, scales, *others = parts
    if element_of(scales) != EIGHT_BITS:
        return (others[0] if others else None), None, None
    *mins, over = others[: len(others) // 2 + 1]
    return (mins[0] if mins else None), over, (others[2] if mins else None)

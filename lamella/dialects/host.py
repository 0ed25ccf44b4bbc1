"""The host's side of a program: handles of storage it holds, and the launches it makes, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    DenseArrayBase,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    MemRefType,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import ELEMENT_BYTES, Value, attribute_of, element_of, shape_of
from lamella.dialects.messages import subject


@irdl_op_definition
class WeightOp(IRDLOperation):
    """The storage of a tensor that is loaded, or made of loaded ones, before the first step: `transformer.weight` on buffers."""

    name = "host.weight"

    weight_name = prop_def(StringAttr, prop_name="name")
    result = result_def(MemRefType)

    traits = traits_def(Pure())
    assembly_format = "$name attr-dict `:` type($result)"

    def __init__(self, name: str, type: Attribute) -> None:
        super().__init__(properties={"name": StringAttr(name)}, result_types=[type])

    def verify_(self) -> None:
        if DYNAMIC_INDEX in shape_of(self.result):
            raise VerifyException(f"{subject(self)}: weight {self.weight_name.data} has type {self.result.type}, expected a static shape")


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """The storage of a tensor that is computed once, at load time, by the op `op` with `arguments` and no operands."""

    name = "host.constant"

    constant_name = prop_def(StringAttr, prop_name="name")
    op = prop_def(StringAttr)
    arguments = prop_def(DictionaryAttr)
    result = result_def(MemRefType)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$name attr-dict `:` type($result)"

    def __init__(self, name: str, op: str, arguments: Mapping[str, Value], type: Attribute) -> None:
        properties = {"name": StringAttr(name), "op": StringAttr(op), "arguments": attribute_of(arguments)}
        super().__init__(properties=properties, result_types=[type])

    def verify_(self) -> None:
        if DYNAMIC_INDEX in shape_of(self.result):
            raise VerifyException(
                f"{subject(self)}: constant {self.constant_name.data} has type {self.result.type}, expected a static shape"
            )


@irdl_custom_directive
class Grid(CustomDirective):
    """The grid of a launch as plain numbers: `[16, 1, 1]`."""

    grid: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        sizes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        self.grid.set(state, DenseArrayBase[I64].from_list(i64, sizes))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        assert isinstance(op, LaunchOp)
        state.print_whitespace(printer)
        with printer.in_square_brackets():
            printer.print_list(op.sizes, printer.print_int)


@irdl_op_definition
class LaunchOp(IRDLOperation):
    """One launch of a kernel over a grid of programs: it reads `ins` and stores its results to `outs`.

    An `ordered` launch starts when all before it have ended, whatever its kernel could do earlier.
    """

    name = "host.launch"

    kernel = prop_def(FlatSymbolRefAttrConstr)
    grid = prop_def(DenseArrayBase[I64])
    ins = var_operand_def(MemRefType)
    outs = var_operand_def(MemRefType)

    loc = opt_attr_def(StringAttr)
    ordered = opt_attr_def(UnitAttr)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    custom_directives = (Grid,)
    assembly_format = (
        "$kernel `grid` custom<Grid>($grid) (`ins` `(` $ins^ `:` type($ins) `)`)? (`outs` `(` $outs^ `:` type($outs) `)`)? attr-dict"
    )

    def __init__(
        self, kernel: str, grid: Sequence[int], ins: Sequence[SSAValue], outs: Sequence[SSAValue], *, loc: str | None = None
    ) -> None:
        super().__init__(
            operands=[ins, outs],
            properties={"kernel": SymbolRefAttr(kernel), "grid": DenseArrayBase[I64].from_list(i64, grid)},
            attributes={"loc": StringAttr(loc)} if loc else {},
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Programs along each axis of the grid."""
        return tuple(int(size) for size in self.grid.get_values())

    def verify_(self) -> None:
        if len(self.sizes) != 3 or min(self.sizes) < 1:
            raise VerifyException(
                f"{subject(self)}: grid of @{self.kernel.string_value()} is {list(self.sizes)}, expected three sizes of 1 or more"
            )
        if not self.outs:
            raise VerifyException(f"{subject(self)}: launch of @{self.kernel.string_value()} stores nothing, expected at least one of outs")


@irdl_op_definition
class LibraryMatmulOp(IRDLOperation):
    """x[M,K] times weight[O,K] transposed, plus a residual [M,O] or a bias [O] if there is one, by a library of matrix products.

    Sums are float32, and rounded once, to the type of x. A residual may lie where the result goes.
    """

    name = "host.library_matmul"

    call = prop_def(StringAttr)
    x = operand_def(MemRefType)
    weight = operand_def(MemRefType)
    addend = opt_operand_def(MemRefType)
    out = operand_def(MemRefType)

    loc = opt_attr_def(StringAttr)

    assembly_format = (
        "$call $x `by` $weight (`plus` $addend^)? `into` $out attr-dict "
        "`:` type($x) `,` type($weight) (`plus` type($addend)^)? `into` type($out)"
    )

    def __init__(self, call: str, x: SSAValue, weight: SSAValue, addend: SSAValue | None, out: SSAValue, *, loc: str | None = None) -> None:
        super().__init__(
            operands=[x, weight, [] if addend is None else [addend], out],
            properties={"call": StringAttr(call)},
            attributes={"loc": StringAttr(loc)} if loc else {},
        )

    @property
    def ins(self) -> tuple[SSAValue, ...]:
        """What the call reads."""
        return (self.x, self.weight, *(() if self.addend is None else (self.addend,)))

    @property
    def outs(self) -> tuple[SSAValue, ...]:
        """What it stores."""
        return (self.out,)

    @property
    def flops(self) -> int:
        """Operations of the product."""
        return 2 * prod(shape_of(self.x)) * shape_of(self.weight)[0]

    @property
    def bytes(self) -> int:
        """Bytes of all operands and of the result."""
        return sum(prod(shape_of(v)) * ELEMENT_BYTES[element_of(v)] for v in (*self.ins, self.out))

    def verify_(self) -> None:
        x, weight, out = shape_of(self.x), shape_of(self.weight), shape_of(self.out)
        if len(x) != 2 or len(weight) != 2 or x[1] != weight[1]:
            raise VerifyException(f"{subject(self)}: x and weight have shapes {x} and {weight}, expected (M, K) and (O, K)")
        if out != (x[0], weight[0]):
            raise VerifyException(f"{subject(self)}: the result has shape {out}, expected {(x[0], weight[0])}")
        added = None if self.addend is None else shape_of(self.addend)
        if added not in (None, out, out[1:]):
            raise VerifyException(f"{subject(self)}: the addend has shape {added}, expected {out}, a residual, or {out[1:]}, a bias")
        kinds = sorted({element_of(v) for v in (*self.ins, self.out)})
        if len(kinds) != 1 or kinds[0] not in ("bf16", "f16"):
            raise VerifyException(f"{subject(self)}: element types are {', '.join(kinds)}, expected bf16 or f16 of all")


Host = Dialect("host", [WeightOp, ConstantOp, LaunchOp, LibraryMatmulOp])

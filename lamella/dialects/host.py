"""The host's side of a program: handles of storage it holds, and the launches it makes, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I64,
    DenseArrayBase,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    MemRefType,
    StringAttr,
    SymbolRefAttr,
    i64,
)
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_attr_def,
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

from lamella.dialects.attributes import Value, attribute_of, shape_of
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
    """One launch of a kernel over a grid of programs: it reads `ins` and stores its results to `outs`."""

    name = "host.launch"

    kernel = prop_def(FlatSymbolRefAttrConstr)
    grid = prop_def(DenseArrayBase[I64])
    ins = var_operand_def(MemRefType)
    outs = var_operand_def(MemRefType)

    loc = opt_attr_def(StringAttr)

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


Host = Dialect("host", [WeightOp, ConstantOp, LaunchOp])

"""A kernel: its parameters, launch options and body, and where a program stands in the grid."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import FunctionType, IntegerAttr, IntegerType, StringAttr, i32, i64
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, Region
from xdsl.irdl import IRDLOperation, attr_def, irdl_op_definition, opt_attr_def, prop_def, region_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.types import NUMBERS, DescriptorType, PointerType, element, is_power_of_two, shape, subject

RESERVED = ("sym_name", "function_type")
GRID_AXES = 3
MAX_REGISTERS = 255
"""Of a thread, on every NVIDIA GPU."""


@irdl_op_definition
class FuncOp(IRDLOperation):
    """`kernel.func @name(%x_ptr: !kernel.ptr<bf16>, %n: i32) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {…}`.

    Each program of the grid runs the body once; it ends with `kernel.return`.
    """

    name = "kernel.func"

    sym_name = prop_def(StringAttr)
    function_type = prop_def(FunctionType)
    num_warps = attr_def(IntegerAttr[IntegerType])
    num_stages = attr_def(IntegerAttr[IntegerType])
    max_registers = opt_attr_def(IntegerAttr[IntegerType])
    """That a thread may take; else as many as the assembler likes."""
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(self, name: str, parameters: Mapping[str, Attribute], *, num_warps: int = 4, num_stages: int = 1) -> None:
        block = Block(arg_types=list(parameters.values()))
        for argument, hint in zip(block.args, parameters, strict=True):
            argument.name_hint = hint
        super().__init__(
            properties={"sym_name": StringAttr(name), "function_type": FunctionType.from_lists(list(parameters.values()), [])},
            attributes={"num_warps": IntegerAttr(num_warps, i64), "num_stages": IntegerAttr(num_stages, i64)},
            regions=[Region(block)],
        )

    def verify_(self) -> None:
        where = f"kernel.func @{self.sym_name.data}"
        if not self.sym_name.data.isidentifier():
            raise VerifyException(f"{where}: the name is not an identifier")
        if tuple(self.body.block.arg_types) != self.function_type.inputs.data or self.function_type.outputs.data:
            raise VerifyException(f"{where}: has type {self.function_type}, expected that of its block arguments and no results")
        for argument in self.body.block.args:
            is_number = not shape(argument) and element(argument) in NUMBERS
            if not isinstance(argument.type, PointerType | DescriptorType) and not is_number:
                expected = f"a pointer, a descriptor or {', '.join(sorted(NUMBERS))}"
                raise VerifyException(f"{where}: parameter %{argument.name_hint} has type {argument.type}, expected {expected}")
        if not is_power_of_two(self.num_warps.value.data) or self.num_warps.value.data > 32:
            raise VerifyException(f"{where}: num_warps is {self.num_warps.value.data}, expected a power of two up to 32")
        if self.num_stages.value.data < 1:
            raise VerifyException(f"{where}: num_stages is {self.num_stages.value.data}, expected at least 1")
        if self.max_registers is not None and not 0 < self.max_registers.value.data <= MAX_REGISTERS:
            raise VerifyException(f"{where}: max_registers is {self.max_registers.value.data}, expected 1 to {MAX_REGISTERS}")
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException(f"{where}: the body does not end with kernel.return")

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        name, inputs, _, region, extra, _, _ = parse_func_op_like(parser, reserved_attr_names=RESERVED)
        func = FuncOp.create(
            properties={"sym_name": StringAttr(name), "function_type": FunctionType.from_lists(list(inputs), [])},
            attributes=dict(extra.data) if extra else {},
            regions=[region],
        )
        return func

    def print(self, printer: Printer) -> None:
        print_func_op_like(printer, self.sym_name, self.function_type, self.body, self.attributes, reserved_attr_names=RESERVED)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """The end of a kernel."""

    name = "kernel.return"

    traits = traits_def(IsTerminator(), HasParent(FuncOp))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


class GridOp(IRDLOperation):
    """A number of the launch grid along one axis, as i32."""

    axis = prop_def(IntegerAttr[IntegerType])
    result = result_def(i32)

    traits = traits_def(Pure())
    assembly_format = "$axis attr-dict `->` type($result)"

    def __init__(self, axis: int) -> None:
        super().__init__(properties={"axis": IntegerAttr(axis, i64)}, result_types=[i32])

    def verify_(self) -> None:
        if not 0 <= self.axis.value.data < GRID_AXES:
            raise VerifyException(f"{subject(self)}: axis is {self.axis.value.data}, expected 0, 1 or 2")


@irdl_op_definition
class ProgramIdOp(GridOp):
    """The index of this program along an axis of the grid."""

    name = "kernel.program_id"


@irdl_op_definition
class NumProgramsOp(GridOp):
    """The size of the grid along an axis."""

    name = "kernel.num_programs"

"""Loops with carried values, branches for their side effects, and the two ends of programmatic dependent launch."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, IntegerType, UnitAttr, i1, i32, i64
from xdsl.dialects.utils import AbstractYieldOperation, parse_assignment, print_assignment
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_region_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel.types import subject


@irdl_op_definition
class YieldOp(AbstractYieldOperation[Attribute]):
    """The values of a region: those a loop carries on, or the one a reduction combines to."""

    name = "kernel.yield"

    traits = traits_def(IsTerminator(), Pure())


@irdl_op_definition
class ForOp(IRDLOperation):
    """`kernel.for %i = %low to %high step %step iter_args(%acc = %init) -> (f32) {num_stages = 3 : i64} {…}`, with i32 bounds.

    `num_stages` asks for loads ahead by software pipelining; `unroll` writes the body out, and needs constant bounds.
    """

    name = "kernel.for"

    low = operand_def(i32)
    high = operand_def(i32)
    step = operand_def(i32)
    inits = var_operand_def()
    num_stages = opt_attr_def(IntegerAttr[IntegerType])
    unroll = opt_attr_def(UnitAttr)
    body = region_def("single_block")
    res = var_result_def()

    traits = traits_def(RecursiveMemoryEffect())

    def __init__(
        self,
        low: SSAValue,
        high: SSAValue,
        step: SSAValue,
        inits: Sequence[SSAValue],
        body: Block,
        *,
        num_stages: int | None = None,
        unroll: bool = False,
    ) -> None:
        super().__init__(
            operands=[low, high, step, list(inits)],
            attributes={
                "num_stages": IntegerAttr(num_stages, i64) if num_stages is not None else None,
                "unroll": UnitAttr() if unroll else None,
            },
            regions=[Region(body)],
            result_types=[[value.type for value in inits]],
        )

    def verify_(self) -> None:
        block = self.body.block
        carried = [value.type for value in self.inits]
        if list(block.arg_types) != [i32, *carried]:
            raise VerifyException(f"{subject(self)}: block arguments {_types(block.arg_types)}, expected i32 and {_types(carried)}")
        last = block.last_op
        if not isinstance(last, YieldOp):
            raise VerifyException(f"{subject(self)}: the body does not end with kernel.yield")
        if list(last.operand_types) != carried:
            raise VerifyException(f"{subject(self)}: yields {_types(last.operand_types)}, expected {_types(carried)}")
        if [result.type for result in self.res] != carried:
            raise VerifyException(f"{subject(self)}: results {_types([r.type for r in self.res])}, expected {_types(carried)}")
        if self.num_stages is not None and self.num_stages.value.data < 1:
            raise VerifyException(f"{subject(self)}: num_stages is {self.num_stages.value.data}, expected at least 1")
        if self.num_stages is not None and self.unroll is not None:
            raise VerifyException(f"{subject(self)}: has num_stages and unroll, expected at most one of them")
        if self.unroll is not None and not all(_is_constant(bound) for bound in (self.low, self.high, self.step)):
            raise VerifyException(f"{subject(self)}: unroll needs bounds made by kernel.constant")

    @classmethod
    def parse(cls, parser: Parser) -> ForOp:
        index = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=")
        low = parser.parse_unresolved_operand()
        parser.parse_keyword("to")
        high = parser.parse_unresolved_operand()
        parser.parse_keyword("step")
        step = parser.parse_unresolved_operand()
        arguments: list[Parser.UnresolvedArgument] = []
        operands: list[UnresolvedOperand] = []
        types: list[Attribute] = []
        position = parser.pos
        if parser.parse_optional_keyword("iter_args"):
            pairs = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, lambda: parse_assignment(parser))
            arguments, operands = [a for a, _ in pairs], [o for _, o in pairs]
            parser.parse_punctuation("->")
            types = list(parser.parse_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_type))
        inits = parser.resolve_operands(operands, types, position)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        bounds = [parser.resolve_operand(operand, i32) for operand in (low, high, step)]
        body = parser.parse_region([index.resolve(i32), *(a.resolve(t) for a, t in zip(arguments, types, strict=True))])
        _end_with_yield(body)
        return cls.create(
            operands=[*bounds, *inits],
            attributes=dict(attributes.data) if attributes else {},
            regions=[body],
            result_types=types,
        )

    def print(self, printer: Printer) -> None:
        index, *carried = self.body.block.args
        printer.print_string(" ")
        printer.print_ssa_value(index)
        for word, value in (("=", self.low), ("to", self.high), ("step", self.step)):
            printer.print_string(f" {word} ")
            printer.print_ssa_value(value)
        if carried:
            printer.print_string(" iter_args(")
            printer.print_list(zip(carried, self.inits, strict=True), lambda pair: print_assignment(printer, *pair))
            printer.print_string(") -> (")
            printer.print_list((value.type for value in carried), printer.print_attribute)
            printer.print_string(")")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_block_terminators=bool(carried))


@irdl_op_definition
class IfOp(IRDLOperation):
    """`kernel.if %condition {…} else {…}`: a scalar condition, branches run for their side effects, no results."""

    name = "kernel.if"

    condition = operand_def(i1)
    then = region_def("single_block")
    otherwise = opt_region_def("single_block")

    traits = traits_def(RecursiveMemoryEffect())

    def __init__(self, condition: SSAValue, then: Block, otherwise: Block | None = None) -> None:
        super().__init__(operands=[condition], regions=[Region(then), [Region(otherwise)] if otherwise else []])

    def verify_(self) -> None:
        for region in self.regions:
            last = region.block.last_op
            if not isinstance(last, YieldOp) or last.arguments or region.block.args:
                raise VerifyException(f"{subject(self)}: a branch takes and yields values, expected none")

    @classmethod
    def parse(cls, parser: Parser) -> IfOp:
        condition = parser.parse_operand(i1)
        regions = [parser.parse_region()]
        if parser.parse_optional_keyword("else"):
            regions.append(parser.parse_region())
        for region in regions:
            _end_with_yield(region)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        return cls.create(operands=[condition], regions=regions, attributes=dict(attributes.data) if attributes else {})

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.condition)
        for keyword, region in zip((" ", " else "), self.regions, strict=False):
            printer.print_string(keyword)
            printer.print_region(region, print_entry_block_args=False, print_block_terminators=False)
        printer.print_op_attributes(self.attributes, print_keyword=True)


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """All threads of a program meet: what each of them stored before comes before what any of them does after."""

    name = "kernel.barrier"

    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@irdl_op_definition
class LaunchDependentsOp(IRDLOperation):
    """Programmatic dependent launch: the next kernel of the stream may start. Runs only where the launch asks for PDL."""

    name = "kernel.launch_dependents"

    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@irdl_op_definition
class WaitPrerequisitesOp(IRDLOperation):
    """Programmatic dependent launch: waits for the writes of the kernels before. Stands before the first dependent access."""

    name = "kernel.wait_prerequisites"

    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


def _types(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _is_constant(value: SSAValue) -> bool:
    return value.owner.name == "kernel.constant" if not isinstance(value.owner, Block) else False


def _end_with_yield(region: Region) -> None:
    """A region without a terminator yields nothing."""
    if not region.blocks:
        region.add_block(Block())
    block = region.block
    if block.last_op is None or not block.last_op.has_trait(IsTerminator):
        block.add_op(YieldOp())

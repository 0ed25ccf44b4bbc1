"""The unit of launch: a region of tile ops, isolated from above, with its schedule and the record of why it is one region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DictionaryAttr, MemRefType, StringAttr, TensorType, i64
from xdsl.ir import Attribute, Block, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    opt_attr_def,
    opt_prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, HasParent, IsolatedFromAbove, IsTerminator, MemoryEffect, MemoryEffectKind
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import Value, attribute_of, python_int, python_value, shaped
from lamella.dialects.messages import subject


@irdl_attr_definition
class ScheduleAttr(ParametrizedAttribute):
    """A kernel skeleton and its parameters: `#tile.schedule<gemv, {k = 2048 : i64, rows = 2 : i64, warps = 4 : i64}>`."""

    name = "tile.schedule"

    skeleton: StringAttr
    options: DictionaryAttr

    @staticmethod
    def of(skeleton: str, **parameters: int) -> ScheduleAttr:
        """A schedule from Python values."""
        return ScheduleAttr(StringAttr(skeleton), DictionaryAttr({k: attribute_of(v) for k, v in sorted(parameters.items())}))

    def get(self, name: str) -> int:
        """A parameter as an integer."""
        return python_int(self.options.data[name])

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            skeleton = StringAttr(parser.parse_identifier())
            parser.parse_punctuation(",")
            parameters = parser.parse_attribute()
            assert isinstance(parameters, DictionaryAttr)
            return [skeleton, parameters]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.skeleton.data}, ")
            printer.print_attribute(self.options)


@irdl_attr_definition
class LedgerEntryAttr(ParametrizedAttribute):
    """One decision of a pass: `#tile.ledger<joined, {consumer = …, kind = …, producer = …, reason = …}>`.

    Verdicts: `joined` (now one region), `refused` (could not or should not), `chosen` (a schedule), `swapped` (a result stored as products take it).
    """

    name = "tile.ledger"

    verdict: StringAttr
    facts: DictionaryAttr

    @staticmethod
    def of(verdict: str, facts: Mapping[str, Value]) -> LedgerEntryAttr:
        """An entry from Python values."""
        return LedgerEntryAttr(StringAttr(verdict), DictionaryAttr({k: attribute_of(v) for k, v in sorted(facts.items())}))

    def as_dict(self) -> dict[str, Value]:
        """The entry as JSON: its verdict and facts."""
        return {"verdict": self.verdict.data, **{k: python_value(v) for k, v in self.facts.data.items()}}

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            verdict = StringAttr(parser.parse_identifier())
            parser.parse_punctuation(",")
            facts = parser.parse_attribute()
            assert isinstance(facts, DictionaryAttr)
            return [verdict, facts]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.verdict.data}, ")
            printer.print_attribute(self.facts)


@irdl_op_definition
class YieldOp(IRDLOperation):
    """The values a region computes, in the order of its results or of its `outs` buffers."""

    name = "tile.yield"

    values = var_operand_def(TensorType)

    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(FusedOp)))
    assembly_format = "$values attr-dict `:` type($values)"

    def __init__(self, values: Sequence[SSAValue]) -> None:
        super().__init__(operands=[values])


class FusedEffects(MemoryEffect):
    """On tensors a region has no effects; on buffers it reads its inputs and writes its outs, and must not be dropped."""

    @classmethod
    def get_effects(cls, op: Operation) -> Set[EffectInstance]:
        if not isinstance(op, FusedOp) or not op.outs:
            return frozenset()
        reads = {EffectInstance(MemoryEffectKind.READ, value) for value in op.ins}
        return reads | {EffectInstance(MemoryEffectKind.WRITE, value) for value in op.outs}


@irdl_op_definition
class FusedOp(IRDLOperation):
    """A region that becomes one kernel. Block arguments mirror `ins`; the region sees nothing else.

    On tensors it has one result a yielded value and no `outs`. On buffers it has no results, and yielded value i is stored to `outs` i,
    as `linalg.generic` stores elements: the body says what is computed, the operands where it lives.
    """

    name = "tile.fused"

    ins = var_operand_def(TensorType | MemRefType)
    outs = var_operand_def(MemRefType)
    res = var_result_def(TensorType)
    schedule = opt_prop_def(ScheduleAttr)
    ledger = opt_prop_def(ArrayAttr[LedgerEntryAttr])
    body = region_def("single_block")

    loc = opt_attr_def(StringAttr)
    in_place = opt_attr_def(DenseArrayBase.constr(i64))
    """On tensors, for each result the input whose storage it may overwrite, or -1."""

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(IsolatedFromAbove(), FusedEffects())
    assembly_format = (
        "(`schedule` $schedule^)? (`ins` `(` $ins^ `:` type($ins) `)`)? (`outs` `(` $outs^ `:` type($outs) `)`)? "
        "(`ledger` $ledger^)? attr-dict-with-keyword $body (`->` type($res)^)?"
    )

    def __init__(
        self,
        ins: Sequence[SSAValue],
        outs: Sequence[SSAValue],
        results: Sequence[Attribute],
        body: Region | Block,
        *,
        schedule: ScheduleAttr | None = None,
        ledger: Sequence[LedgerEntryAttr] = (),
        loc: str | None = None,
    ) -> None:
        super().__init__(
            operands=[ins, outs],
            result_types=[results],
            regions=[body if isinstance(body, Region) else Region(body)],
            properties={"schedule": schedule, "ledger": ArrayAttr(ledger) if ledger else None},
            attributes={"loc": StringAttr(loc)} if loc else {},
        )

    @property
    def terminator(self) -> YieldOp:
        """The op that yields the region's values."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last

    def verify_(self) -> None:
        block = self.body.block
        if not isinstance(block.last_op, YieldOp):
            raise VerifyException(f"{subject(self)}: the region ends without tile.yield")
        if len(block.args) != len(self.ins):
            raise VerifyException(f"{subject(self)}: the region has {len(block.args)} arguments, expected {len(self.ins)}, one an input")
        for index, (argument, value) in enumerate(zip(block.args, self.ins, strict=True)):
            if _as_tensor(value.type) != _as_tensor(argument.type):
                raise VerifyException(
                    f"{subject(self)}: argument {index} has type {argument.type}, expected {_as_tensor(value.type)}, that of input {index}"
                )
        yielded = block.last_op.values
        if self.outs and self.res:
            raise VerifyException(f"{subject(self)}: has both results and outs; tensors give results, buffers take outs")
        targets = [*self.outs, *self.res]
        if len(yielded) != len(targets):
            raise VerifyException(f"{subject(self)}: yields {len(yielded)} values, expected {len(targets)}, one a result or out")
        for index, (value, target) in enumerate(zip(yielded, targets, strict=True)):
            if _as_tensor(value.type) != _as_tensor(target.type):
                raise VerifyException(f"{subject(self)}: value {index} has type {value.type}, expected {_as_tensor(target.type)}")
        if self.in_place is not None:
            self.verify_in_place([int(n) for n in self.in_place.get_values()])

    def verify_in_place(self, inputs: Sequence[int]) -> None:
        """`in_place` names an input of its type, or none, for each result. Raises VerifyException."""
        if len(inputs) != len(self.res):
            raise VerifyException(f"{subject(self)}: in_place has {len(inputs)} numbers, expected {len(self.res)}, one a result")
        for number, (position, result) in enumerate(zip(inputs, self.res, strict=True)):
            if not -1 <= position < len(self.ins):
                raise VerifyException(
                    f"{subject(self)}: result {number} overwrites input {position}, expected one of {len(self.ins)}, or -1"
                )
            if position >= 0 and self.ins[position].type != result.type:
                raise VerifyException(
                    f"{subject(self)}: result {number} has type {result.type}, but overwrites input {position} of type {self.ins[position].type}"
                )


def _as_tensor(type: Attribute) -> Attribute:
    buffer = shaped(type)
    return TensorType(buffer.element_type, buffer.get_shape())

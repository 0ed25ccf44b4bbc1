"""Drawing the next token of each logit row."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import Float32Type, IntegerAttr, StringAttr, TensorType, f32, i32, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_attr_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile.structured import loc_attribute

PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
"""The operands that say how a row is drawn from, in order."""


@irdl_op_definition
class SampleOp(IRDLOperation):
    """One token of each row of logits[R,V]: the arg-max at temperature 0, else a draw after temperature, top-k, top-p and min-p.

    The draw is the arg-max of logits / temperature plus Gumbel noise from a counter-based generator keyed by (seed, position, index),
    so that every executor draws the same token. `semantics.sampling` gives the formula.
    """

    name = "tile.sample"

    logits = operand_def(TensorType.constr(Float32Type()))
    temperature = operand_def(TensorType.constr(Float32Type()))
    top_k = operand_def(TensorType)
    top_p = operand_def(TensorType.constr(Float32Type()))
    min_p = operand_def(TensorType.constr(Float32Type()))
    seed = operand_def(TensorType)
    position = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = (
        "$logits `,` $temperature `,` $top_k `,` $top_p `,` $min_p `,` $seed `,` $position attr-dict "
        "`:` type($logits) `,` type($temperature) `,` type($top_k) `,` type($top_p) `,` type($min_p) `,` type($seed) `,` type($position) `->` type($result)"
    )

    def __init__(self, logits: SSAValue, parameters: Sequence[SSAValue], *, loc: str | None = None) -> None:
        """`parameters` are PARAMETERS, each [R]."""
        super().__init__(
            operands=[logits, *parameters], result_types=[TensorType(i32, [shape_of(logits)[0]])], attributes=loc_attribute(loc)
        )

    def verify_(self) -> None:
        rows = (shape_of(self.logits)[0],)
        for name, value in zip(PARAMETERS, self.operands[1:], strict=True):
            if shape_of(value) != rows:
                raise VerifyException(f"{subject(self)}: {name} has shape {shape_of(value)}, expected {rows}, one a row of logits")
        if shape_of(self.result) != rows:
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {rows}")


@irdl_op_definition
class TopPartialOp(IRDLOperation):
    """The largest logit of each of P = `splits` equal chunks of a row, and its least index: best[R,P], index[R,P]. NaN counts as -inf.

    A chunk holds ceil(V / P) logits; one that lies past the end gives -inf and index V - 1.
    """

    name = "tile.top_partial"

    logits = operand_def(TensorType.constr(Float32Type()))
    splits = prop_def(IntegerAttr)
    best = result_def(TensorType.constr(Float32Type()))
    index = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$logits `splits` $splits attr-dict `:` type($logits) `->` type($best) `,` type($index)"

    def __init__(self, logits: SSAValue, splits: int, *, loc: str | None = None) -> None:
        shape = [shape_of(logits)[0], splits]
        super().__init__(
            operands=[logits],
            properties={"splits": IntegerAttr(splits, i64)},
            result_types=[TensorType(f32, shape), TensorType(i32, shape)],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        expected = (shape_of(self.logits)[0], self.splits.value.data)
        if shape_of(self.best) != expected or shape_of(self.index) != expected:
            raise VerifyException(
                f"{subject(self)}: results have shapes {shape_of(self.best)} and {shape_of(self.index)}, expected {expected}"
            )


@irdl_op_definition
class SampleTopOp(IRDLOperation):
    """`tile.sample` where the largest logits of the chunks of each row are known: best[R,P] and index[R,P] of `tile.top_partial`."""

    name = "tile.sample_top"

    logits = operand_def(TensorType.constr(Float32Type()))
    best = operand_def(TensorType.constr(Float32Type()))
    index = operand_def(TensorType)
    temperature = operand_def(TensorType.constr(Float32Type()))
    top_k = operand_def(TensorType)
    top_p = operand_def(TensorType.constr(Float32Type()))
    min_p = operand_def(TensorType.constr(Float32Type()))
    seed = operand_def(TensorType)
    position = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = (
        "$logits `top` $best `,` $index `with` $temperature `,` $top_k `,` $top_p `,` $min_p `,` $seed `,` $position attr-dict "
        "`:` type($logits) `,` type($best) `,` type($index) `,` type($temperature) `,` type($top_k) `,` type($top_p) `,` type($min_p) `,` type($seed) `,` "
        "type($position) `->` type($result)"
    )

    def __init__(self, logits: SSAValue, top: Sequence[SSAValue], parameters: Sequence[SSAValue], *, loc: str | None = None) -> None:
        """`top` are best and index, `parameters` PARAMETERS, each [R]."""
        super().__init__(
            operands=[logits, *top, *parameters],
            result_types=[TensorType(i32, [shape_of(logits)[0]])],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        rows = (shape_of(self.logits)[0],)
        if shape_of(self.best) != shape_of(self.index) or shape_of(self.best)[:1] != rows:
            raise VerifyException(f"{subject(self)}: best {shape_of(self.best)} and index {shape_of(self.index)} do not fit {rows[0]} rows")
        for name, value in zip(PARAMETERS, self.operands[3:], strict=True):
            if shape_of(value) != rows:
                raise VerifyException(f"{subject(self)}: {name} has shape {shape_of(value)}, expected {rows}, one a row of logits")
        if shape_of(self.result) != rows:
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {rows}")

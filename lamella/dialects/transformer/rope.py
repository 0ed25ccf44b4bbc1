"""Rotary position embeddings: by formula, or with the rows of a shared table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, StringAttr, TensorType, f32, f64, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import attribute_of, python_value
from lamella.dialects.transformer.types import FloatTensor, IndexTensor, Order, TransformerOp, Value, WideTensor, located, order_of

Scaling = Mapping[str, "int | float | str | Sequence[float]"]
"""`{}`, or a checkpoint's RoPE scaling with its kind under `rope_type`."""

STYLES = ("half", "paired")


class TurningOp(TransformerOp):
    """What rope and rotate share: heads of x[N, heads·head_dim] whose first rotary_dim dimensions turn, in `style`.

    The partner of dimension d is d ± rotary_dim/2 in style `half`, d ^ 1 in style `paired`.
    """

    heads = prop_def(IntegerAttr)
    head_dim = prop_def(IntegerAttr)
    rotary_dim = prop_def(IntegerAttr)
    style = prop_def(StringAttr)

    traits = traits_def(Pure())

    def verify_(self) -> None:
        x, positions = self.operands[:2]
        rows, _ = self.dimensions("x", x, 2)
        heads, head_dim, rotary = (p.value.data for p in (self.heads, self.head_dim, self.rotary_dim))
        self.expect_shape("x", x, (rows, heads * head_dim), "heads times head_dim")
        self.expect_shape("positions", positions, (rows,), "the rows of x")
        self.expect_like("result", self.results[0], x, "x")
        if rotary % 2 or not 0 < rotary <= head_dim:
            raise self.fail(f"rotary_dim is {rotary}, expected an even number from 2 to head_dim = {head_dim}")
        if self.style.data not in STYLES:
            raise self.fail(f'style is "{self.style.data}", expected "half" or "paired"')
        order = order_of(x.type)
        if order not in (None, Order(head_dim, rotary)) or (order is not None and self.style.data == "half"):
            expected = f"plain order or {Order(head_dim, rotary)}" if self.style.data == "paired" else "plain order"
            raise self.fail(f'x lies in {order}, expected {expected}, for style "{self.style.data}"')
        self.expect_order("result", self.results[0], order, "that of x")


def turning_properties(heads: int, head_dim: int, rotary_dim: int, style: str) -> dict[str, Attribute]:
    """The properties that rope and rotate share."""
    sizes = {"heads": heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
    return {**{name: IntegerAttr(size, i64) for name, size in sizes.items()}, "style": StringAttr(style)}


@irdl_op_definition
class RopeOp(TurningOp):
    """x[N,H·D], positions[N] (, lengths[N]) -> x: pairs of dimensions turned by position·theta^(-2j/rotary_dim), after `scaling`.

    LongRoPE has two sets of frequencies: the long one is for tokens of texts whose `lengths` are more than the original length.
    """

    name = "transformer.rope"

    x = operand_def(FloatTensor)
    positions = operand_def(IndexTensor)
    lengths = opt_operand_def(IndexTensor)
    theta = prop_def(FloatAttr)
    scaling = prop_def(DictionaryAttr)
    result = result_def(FloatTensor)

    def __init__(
        self,
        x: Value,
        positions: Value,
        lengths: Value | None = None,
        *,
        heads: int,
        head_dim: int,
        rotary_dim: int,
        theta: float,
        scaling: Scaling,
        style: str,
        loc: str | None = None,
    ) -> None:
        properties = turning_properties(heads, head_dim, rotary_dim, style)
        super().__init__(
            operands=[x, positions, [] if lengths is None else [lengths]],
            properties={**properties, "theta": FloatAttr(theta, f64), "scaling": attribute_of(scaling)},
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        super().verify_()
        two = original_length(self.scaling) is not None
        if two != (self.lengths is not None):
            raise self.fail(f"{'has no' if two else 'has'} lengths, expected them where scaling is longrope, and nowhere else")
        if self.lengths is not None:
            self.expect_shape("lengths", self.lengths, self.dimensions("positions", self.positions), "the shape of positions")


def original_length(scaling: DictionaryAttr) -> int | None:
    """The length up to which LongRoPE's short factors count; None for every other scaling, which has one set of frequencies. Raises VerifyException."""
    values = python_value(scaling)
    assert isinstance(values, Mapping)
    if values.get("rope_type") != "longrope":
        return None
    original = values.get("original_max_position_embeddings")
    if not isinstance(original, int):
        raise VerifyException(f"a scaling of longrope has original_max_position_embeddings {original}, expected a length")
    return original


@irdl_op_definition
class RopeTableOp(TransformerOp):
    """-> [length, rotary_dim] f32: row p holds cos(p·f_j) for all j, then sin(p·f_j), times the scaling's attention factor.

    LongRoPE has two sets of frequencies: a table longer than the original length is [2·length, rotary_dim], and rows length + p hold the
    second set.
    """

    name = "transformer.rope_table"

    length = prop_def(IntegerAttr)
    rotary_dim = prop_def(IntegerAttr)
    theta = prop_def(FloatAttr)
    scaling = prop_def(DictionaryAttr)
    result = result_def(WideTensor)

    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, length: int, *, rotary_dim: int, theta: FloatAttr, scaling: DictionaryAttr) -> None:
        super().__init__(
            properties={"length": IntegerAttr(length, i64), "rotary_dim": IntegerAttr(rotary_dim, i64), "theta": theta, "scaling": scaling},
            result_types=[TensorType(f32, [table_rows(length, scaling), rotary_dim])],
        )

    def verify_(self) -> None:
        rows = table_rows(self.length.value.data, self.scaling)
        self.expect_shape("result", self.result, (rows, self.rotary_dim.value.data), "length and rotary_dim")


def table_rows(length: int, scaling: DictionaryAttr) -> int:
    """Rows of a table for the positions below `length`: twice as many where LongRoPE's second set of frequencies may be asked for."""
    original = original_length(scaling)
    return length if original is None or length <= original else 2 * length


@irdl_op_definition
class RopeRowOp(TransformerOp):
    """positions[N], lengths[N] i32 -> [N] i32: the row of a table of two sets of frequencies: position, plus `length` where a text is longer than `original`."""

    name = "transformer.rope_row"

    positions = operand_def(IndexTensor)
    lengths = operand_def(IndexTensor)
    length = prop_def(IntegerAttr)
    original = prop_def(IntegerAttr)
    result = result_def(IndexTensor)

    traits = traits_def(Pure())

    def __init__(self, positions: Value, lengths: Value, *, length: int, original: int) -> None:
        super().__init__(
            operands=[positions, lengths],
            properties={"length": IntegerAttr(length, i64), "original": IntegerAttr(original, i64)},
            result_types=[SSAValue.get(positions).type],
        )

    def verify_(self) -> None:
        self.dimensions("positions", self.positions, 1)
        self.expect_like("lengths", self.lengths, self.positions, "positions")
        self.expect_like("result", self.result, self.positions, "positions")


@irdl_op_definition
class RotateOp(TurningOp):
    """x[N,H·D], positions[N], table[T,rotary_dim] f32 -> x: `rope` with the table's row of each position; positions are below T."""

    name = "transformer.rotate"

    x = operand_def(FloatTensor)
    positions = operand_def(IndexTensor)
    table = operand_def(WideTensor)
    result = result_def(FloatTensor)

    def __init__(
        self,
        x: Value,
        positions: Value,
        table: Value,
        *,
        heads: int,
        head_dim: int,
        rotary_dim: int,
        style: str,
        loc: str | None = None,
    ) -> None:
        super().__init__(
            operands=[x, positions, table],
            properties=turning_properties(heads, head_dim, rotary_dim, style),
            result_types=[SSAValue.get(x).type],
            attributes=located(loc),
        )

    def verify_(self) -> None:
        super().verify_()
        length, _ = self.dimensions("table", self.table, 2)
        self.expect_shape("table", self.table, (length, self.rotary_dim.value.data), "rotary_dim")

"""The arithmetic of a tile: scalars, elementwise maps, rounding, reductions and contractions, on tensors with static shapes."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AnyFloatConstr,
    Float32Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    f32,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
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
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import ResultTyped, element_of, element_type_of, shape_of
from lamella.dialects.messages import subject


def loc_attribute(loc: str | None) -> dict[str, Attribute]:
    """The discardable `loc` attribute of an op, when there is one."""
    return {"loc": StringAttr(loc)} if loc else {}


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The common shape under NumPy's rules (trailing axes align, size-1 axes stretch); None when there is none."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[int] = []
    for axis in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        sizes = {n for n in axis if n != 1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A rank-0 scalar: `tile.constant 1.0e-05 : f32` has type tensor<f32>."""

    name = "tile.constant"

    value = prop_def(FloatAttr[Float32Type] | IntegerAttr[IntegerType])
    result = result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($result)"

    def __init__(self, value: float | int, *, loc: str | None = None) -> None:
        element = f32 if isinstance(value, float) else i32
        attribute = FloatAttr(value, f32) if isinstance(value, float) else IntegerAttr(value, i32)
        super().__init__(properties={"value": attribute}, result_types=[TensorType(element, [])], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        expected = TensorType(self.value.type, [])
        if self.result.type != expected:
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {expected}")


@irdl_op_definition
class MapOp(IRDLOperation):
    """`kind` applied to each element, in float32 or int32, broadcasting as NumPy does."""

    name = "tile.map"

    kind = prop_def(StringAttr)
    inputs = var_operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$kind `(` $inputs `)` attr-dict `:` type($inputs) `->` type($result)"

    def __init__(self, kind: str, inputs: Sequence[SSAValue], element: Attribute | None = None, *, loc: str | None = None) -> None:
        shape = broadcast([shape_of(v) for v in inputs])
        assert shape is not None, f"tile.map {kind}: operands {[str(v.type) for v in inputs]} do not broadcast"
        super().__init__(
            operands=[inputs],
            properties={"kind": StringAttr(kind)},
            result_types=[TensorType(element or element_type_of(inputs[0]), shape)],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        for index, value in enumerate(self.inputs):
            if element_of(value) not in ("f32", "i32", "i1"):
                raise VerifyException(
                    f"{subject(self)}: operand {index} of {self.kind.data} has element type {element_of(value)}, "
                    "expected f32, i32 or i1 (insert a tile.cast: rounding is explicit)"
                )
        shape = broadcast([shape_of(v) for v in self.inputs])
        if shape is None:
            raise VerifyException(
                f"{subject(self)}: operands of {self.kind.data} have shapes {[shape_of(v) for v in self.inputs]}, which do not broadcast"
            )
        if shape != shape_of(self.result):
            raise VerifyException(f"{subject(self)}: result of {self.kind.data} has shape {shape_of(self.result)}, expected {shape}")


@irdl_op_definition
class CastOp(IRDLOperation, ResultTyped):
    """The value in another element type, the nearest, ties to even. The only op that rounds. Floats become i8 of -128 to 127; NaN becomes any number."""

    name = "tile.cast"

    input = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue, element: Attribute, *, loc: str | None = None) -> None:
        super().__init__(operands=[input], result_types=[TensorType(element, shape_of(input))], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        if shape_of(self.input) != shape_of(self.result):
            raise VerifyException(
                f"{subject(self)}: result has shape {shape_of(self.result)}, expected {shape_of(self.input)}, that of the operand"
            )


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """`kind` (sum, max, …) over the last axis, which stays with size 1."""

    name = "tile.reduce"

    kind = prop_def(StringAttr)
    input = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$kind $input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, kind: str, input: SSAValue, *, loc: str | None = None) -> None:
        result = TensorType(element_type_of(input), [*shape_of(input)[:-1], 1])
        super().__init__(operands=[input], properties={"kind": StringAttr(kind)}, result_types=[result], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        shape = shape_of(self.input)
        if not shape:
            raise VerifyException(f"{subject(self)}: operand of {self.kind.data} has rank 0, expected at least one axis to reduce")
        if shape_of(self.result) != (*shape[:-1], 1):
            raise VerifyException(
                f"{subject(self)}: result of {self.kind.data} has shape {shape_of(self.result)}, expected {(*shape[:-1], 1)}"
            )
        if element_of(self.input) not in ("f32", "i32"):
            raise VerifyException(f"{subject(self)}: operand has element type {element_of(self.input)}, expected f32 or i32")


@irdl_op_definition
class AddColumnsOp(IRDLOperation):
    """Each `columns` neighbouring columns of x[N,C·columns], added in float32: [N,C]."""

    name = "tile.add_columns"

    x = operand_def(TensorType.constr(Float32Type()))
    columns = prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$x `by` $columns attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: SSAValue, columns: int, *, loc: str | None = None) -> None:
        rows, width = shape_of(x)
        super().__init__(
            operands=[x],
            properties={"columns": IntegerAttr(columns, i64)},
            result_types=[TensorType(f32, [rows, width // columns])],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        shape, columns = shape_of(self.x), self.columns.value.data
        if len(shape) != 2 or columns < 1 or shape[1] % columns:
            raise VerifyException(f"{subject(self)}: x has shape {shape}, expected a matrix with a multiple of {columns} columns")
        if shape_of(self.result) != (shape[0], shape[1] // columns):
            expected = (shape[0], shape[1] // columns)
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {expected}")


MULTIPLIED = TensorType.constr(AnyFloatConstr) | TensorType.constr(IntegerType(8))
"""What x may be: floats, or bytes."""
IMPLEMENTATIONS = ("library", "descriptors")
"""Who multiplies, where it was decided before fusion."""


@irdl_op_definition
class ContractOp(IRDLOperation):
    """x[M,K] times w[O,K] transposed, accumulated in float32: [M,O]. Rows of w are read contiguously. A w in f32 may meet any x: `dequantize` makes it.

    An x of bytes (i8 or f8E4M3FN) is the values of quantized rows: it meets weights of that kind with one scale a row, whose numbers are multiplied as bytes
    (i8: added up in i32, exactly) and whose sums are scaled.

    `implementation` (`choose-implementation`): `"library"`, and a library of matrix products computes it, not a kernel of ours; `"descriptors"`, and
    the tiles of a kernel of ours are loaded through tensor descriptors.
    """

    name = "tile.contract"

    x = operand_def(MULTIPLIED)
    weight = operand_def(TensorType.constr(AnyFloatConstr))
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)
    implementation = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$x `,` $weight attr-dict `:` type($x) `,` type($weight) `->` type($result)"

    def __init__(self, x: SSAValue, weight: SSAValue, *, loc: str | None = None) -> None:
        result = TensorType(f32, [shape_of(x)[0], shape_of(weight)[0]])
        super().__init__(operands=[x, weight], result_types=[result], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        x, weight = shape_of(self.x), shape_of(self.weight)
        if len(x) != 2 or len(weight) != 2:
            raise VerifyException(f"{subject(self)}: operands have shapes {x} and {weight}, expected two matrices")
        if x[1] != weight[1]:
            raise VerifyException(f"{subject(self)}: weight has shape {weight}, expected (_, {x[1]}), the last axis of x")
        if shape_of(self.result) != (x[0], weight[0]):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {(x[0], weight[0])}")
        if element_of(self.weight) not in ("f32", element_of(self.x)):
            raise VerifyException(
                f"{subject(self)}: weight has element type {element_of(self.weight)}, expected {element_of(self.x)}, that of x, or f32"
            )
        if self.implementation is not None and self.implementation.data not in IMPLEMENTATIONS:
            expected = " or ".join(f'"{name}"' for name in IMPLEMENTATIONS)
            raise VerifyException(f'{subject(self)}: implementation is "{self.implementation.data}", expected {expected} or none')


@irdl_op_definition
class ContractPartialOp(IRDLOperation):
    """x[M,K] times w[O,K] transposed, over each of P = `splits` runs of `chunk` columns of K: sums in float32, [P,M,O] (split K).

    The last run may be shorter.
    """

    name = "tile.contract_partial"

    x = operand_def(MULTIPLIED)
    weight = operand_def(TensorType.constr(AnyFloatConstr))
    splits = prop_def(IntegerAttr)
    chunk = prop_def(IntegerAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$x `,` $weight attr-dict `:` type($x) `,` type($weight) `->` type($result)"

    def __init__(self, x: SSAValue, weight: SSAValue, *, splits: int, chunk: int, loc: str | None = None) -> None:
        super().__init__(
            operands=[x, weight],
            properties={"splits": IntegerAttr(splits, i64), "chunk": IntegerAttr(chunk, i64)},
            result_types=[TensorType(f32, [splits, shape_of(x)[0], shape_of(weight)[0]])],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        x, weight, splits, chunk = shape_of(self.x), shape_of(self.weight), self.splits.value.data, self.chunk.value.data
        if len(x) != 2 or len(weight) != 2 or x[1] != weight[1]:
            raise VerifyException(f"{subject(self)}: operands have shapes {x} and {weight}, expected two matrices of as many columns")
        if shape_of(self.result) != (splits, x[0], weight[0]):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {(splits, x[0], weight[0])}")
        if not (splits - 1) * chunk < x[1] <= splits * chunk:
            raise VerifyException(
                f"{subject(self)}: {splits} runs of {chunk} columns do not divide {x[1]}: each has some, and none is left"
            )
        if element_of(self.weight) not in ("f32", element_of(self.x)):
            raise VerifyException(
                f"{subject(self)}: weight has element type {element_of(self.weight)}, expected {element_of(self.x)}, that of x, or f32"
            )


@irdl_op_definition
class ContractMergeOp(IRDLOperation):
    """Partial sums [P,M,O] added up in order: [M,O].

    In the launch that makes them, `arrivals` counts the programs that have stored theirs, by tile: the last one merges.
    """

    name = "tile.contract_merge"

    partial = operand_def(TensorType.constr(Float32Type()))
    arrivals = opt_operand_def(TensorType)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$partial (`counted` `by` $arrivals^)? attr-dict `:` type($partial) (`,` type($arrivals)^)? `->` type($result)"

    def __init__(self, partial: SSAValue, arrivals: SSAValue | None = None, *, loc: str | None = None) -> None:
        super().__init__(
            operands=[partial, [arrivals] if arrivals is not None else []],
            result_types=[TensorType(f32, shape_of(partial)[1:])],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        sizes = shape_of(self.partial)
        if len(sizes) != 3 or shape_of(self.result) != sizes[1:]:
            raise VerifyException(f"{subject(self)}: sums of shape {sizes} do not add up to {shape_of(self.result)}")
        if self.arrivals is not None and element_of(self.arrivals) != "i32":
            raise VerifyException(f"{subject(self)}: arrivals have type {self.arrivals.type}, expected a vector of i32")

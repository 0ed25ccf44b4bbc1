"""Ops that move rows and columns: gathers, the slots of the paged cache, scatters into it, and the rotation of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import DenseArrayBase, Float32Type, IntegerAttr, StringAttr, TensorType, f32, i32, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_attr_def, prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.attributes import element_of, element_type_of, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.tile.structured import loc_attribute

FOUR_PAIRS = 8
"""Columns whose middle pairs `swap_pairs` swaps."""


@irdl_op_definition
class GatherOp(IRDLOperation):
    """Row rows[n] of a table: [T,…] and [N] give [N,…]."""

    name = "tile.gather"

    table = operand_def(TensorType)
    rows = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$table `[` $rows `]` attr-dict `:` type($table) `,` type($rows) `->` type($result)"

    def __init__(self, table: SSAValue, rows: SSAValue, *, loc: str | None = None) -> None:
        result = TensorType(element_type_of(table), [shape_of(rows)[0], *shape_of(table)[1:]])
        super().__init__(operands=[table, rows], result_types=[result], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        expected = (*shape_of(self.rows), *shape_of(self.table)[1:])
        if element_of(self.rows) != "i32" or len(shape_of(self.rows)) != 1:
            raise VerifyException(f"{subject(self)}: rows have type {self.rows.type}, expected a vector of i32")
        if shape_of(self.result) != expected:
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {expected}")


@irdl_op_definition
class GatherColumnsOp(IRDLOperation):
    """Column columns[c] of x: [N,K] and [C] give [N,C]."""

    name = "tile.gather_columns"

    x = operand_def(TensorType)
    columns = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$x `[` $columns `]` attr-dict `:` type($x) `,` type($columns) `->` type($result)"

    def __init__(self, x: SSAValue, columns: SSAValue, *, loc: str | None = None) -> None:
        result = TensorType(element_type_of(x), [shape_of(x)[0], *shape_of(columns)])
        super().__init__(operands=[x, columns], result_types=[result], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        if element_of(self.columns) != "i32" or len(shape_of(self.columns)) != 1:
            raise VerifyException(f"{subject(self)}: columns have type {self.columns.type}, expected a vector of i32")
        if len(shape_of(self.x)) != 2:
            raise VerifyException(f"{subject(self)}: x has type {self.x.type}, expected a matrix")
        expected = TensorType(element_type_of(self.x), [shape_of(self.x)[0], *shape_of(self.columns)])
        if self.result.type != expected:
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {expected}")


@irdl_op_definition
class SwapPairsOp(IRDLOperation):
    """The columns of x[N,C] with the middle two of each four pairs swapped: 0 1 4 5 2 3 6 7, and so in each eight. Twice it changes nothing."""

    name = "tile.swap_pairs"

    x = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: SSAValue, *, loc: str | None = None) -> None:
        super().__init__(operands=[x], result_types=[x.type], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        if len(shape_of(self.x)) != 2 or shape_of(self.x)[1] % FOUR_PAIRS:
            raise VerifyException(f"{subject(self)}: x has type {self.x.type}, expected rows of multiples of {FOUR_PAIRS} columns")
        if self.result.type != self.x.type:
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {self.x.type}")


@irdl_op_definition
class ColumnsOp(IRDLOperation):
    """The number of each element's column: of x[N,C] the i32 [N,C] whose rows are 0 … C-1. What x holds is not read."""

    name = "tile.columns"

    x = operand_def(TensorType)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: SSAValue, *, loc: str | None = None) -> None:
        super().__init__(operands=[x], result_types=[TensorType(i32, shape_of(x))], attributes=loc_attribute(loc))

    def verify_(self) -> None:
        if len(shape_of(self.x)) != 2:
            raise VerifyException(f"{subject(self)}: x has type {self.x.type}, expected a matrix")
        expected = TensorType(i32, shape_of(self.x))
        if self.result.type != expected:
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {expected}")


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """The numbers of `input`, in order, in another shape of as many: the heads of each row as rows of their own, and back."""

    name = "tile.reshape"

    input = operand_def(TensorType)
    sizes = prop_def(DenseArrayBase.constr(i64))
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$input `to` $sizes attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue, sizes: Sequence[int], *, loc: str | None = None) -> None:
        super().__init__(
            operands=[input],
            properties={"sizes": DenseArrayBase.from_list(i64, list(sizes))},
            result_types=[TensorType(element_type_of(input), list(sizes))],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        sizes, before, after = tuple(map(int, self.sizes.get_values())), shape_of(self.input), shape_of(self.result)
        if after != sizes or element_of(self.result) != element_of(self.input):
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {sizes} of {element_of(self.input)}")
        if prod(before) != prod(after):
            raise VerifyException(
                f"{subject(self)}: input has shape {before}, {prod(before)} numbers, expected {prod(after)}, those of {after}"
            )


@irdl_op_definition
class SlotsOp(IRDLOperation):
    """Where each token's key and value go: block_table[b, p // S] * S + p % S for token n of sequence b at position p.

    Padding tokens (n >= query_start[B]) get slot 0, in the null block.
    """

    name = "tile.slots"

    positions = operand_def(TensorType)
    query_start = operand_def(TensorType)
    block_table = operand_def(TensorType)
    block = prop_def(IntegerAttr)
    result = result_def(TensorType)

    traits = traits_def(Pure())
    assembly_format = "$positions `,` $query_start `,` $block_table `block` $block attr-dict `:` type($positions) `,` type($query_start) `,` type($block_table) `->` type($result)"

    def __init__(self, positions: SSAValue, query_start: SSAValue, block_table: SSAValue, block: int) -> None:
        super().__init__(
            operands=[positions, query_start, block_table],
            properties={"block": IntegerAttr(block, i64)},
            result_types=[TensorType(i32, shape_of(positions))],
        )

    def verify_(self) -> None:
        if shape_of(self.query_start) != (shape_of(self.block_table)[0] + 1,):
            raise VerifyException(
                f"{subject(self)}: query_start has shape {shape_of(self.query_start)}, expected ({shape_of(self.block_table)[0] + 1},), "
                "one more than the sequences of block_table"
            )
        if shape_of(self.result) != shape_of(self.positions):
            raise VerifyException(f"{subject(self)}: result has shape {shape_of(self.result)}, expected {shape_of(self.positions)}")


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """The cache with row n of `values` [N,Hkv*D] at slots[n]; `part` 0 writes keys, 1 values. Bufferized in place.

    The heads of values may be rows of their own, [N*Hkv,D].
    """

    name = "tile.scatter"

    values = operand_def(TensorType)
    cache = operand_def(TensorType)
    slots = operand_def(TensorType)
    part = prop_def(IntegerAttr)
    result = result_def(TensorType)

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$values `into` $cache `[` $slots `]` `part` $part attr-dict `:` type($values) `,` type($cache) `,` type($slots)  `->` type($result)"

    def __init__(self, values: SSAValue, cache: SSAValue, slots: SSAValue, part: int, *, loc: str | None = None) -> None:
        super().__init__(
            operands=[values, cache, slots],
            properties={"part": IntegerAttr(part, i64)},
            result_types=[cache.type],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        cache, values = shape_of(self.cache), shape_of(self.values)
        if len(cache) != 5:
            raise VerifyException(f"{subject(self)}: cache has type {self.cache.type}, expected (blocks, 2, heads, slots, head dimension)")
        (rows,) = shape_of(self.slots)
        if values not in ((rows, cache[2] * cache[4]), (rows * cache[2], cache[4])):
            raise VerifyException(f"{subject(self)}: values have shape {values}, expected {(rows, cache[2] * cache[4])}")
        if element_of(self.values) != element_of(self.cache):
            raise VerifyException(
                f"{subject(self)}: values have element type {element_of(self.values)}, expected {element_of(self.cache)}, that of the cache"
            )
        if self.result.type != self.cache.type:
            raise VerifyException(f"{subject(self)}: result has type {self.result.type}, expected {self.cache.type}, that of the cache")


@irdl_op_definition
class RotateOp(IRDLOperation):
    """RoPE on x[N,H*D] with the table rows of its tokens, rows[N,R] = cosines of R/2 frequencies, then sines (R = `rotary_dim`).

    Style "paired" rotates dimensions 2j and 2j+1 of each head by angle j; "half" rotates j and j + R/2. RoFormer, arXiv 2104.09864.
    """

    name = "tile.rotate"

    x = operand_def(TensorType.constr(Float32Type()))
    rows = operand_def(TensorType.constr(Float32Type()))
    heads = prop_def(IntegerAttr)
    head_dim = prop_def(IntegerAttr)
    rotary_dim = prop_def(IntegerAttr)
    style = prop_def(StringAttr)
    result = result_def(TensorType.constr(Float32Type()))

    loc = opt_attr_def(StringAttr)

    traits = traits_def(Pure())
    assembly_format = "$style $x `by` $rows `heads` $heads `head_dim` $head_dim `rotary_dim` $rotary_dim attr-dict `:` type($x) `,` type($rows) `->` type($result)"

    def __init__(
        self, x: SSAValue, rows: SSAValue, *, heads: int, head_dim: int, rotary_dim: int, style: str, loc: str | None = None
    ) -> None:
        super().__init__(
            operands=[x, rows],
            properties={
                "heads": IntegerAttr(heads, i64),
                "head_dim": IntegerAttr(head_dim, i64),
                "rotary_dim": IntegerAttr(rotary_dim, i64),
                "style": StringAttr(style),
            },
            result_types=[TensorType(f32, shape_of(x))],
            attributes=loc_attribute(loc),
        )

    def verify_(self) -> None:
        tokens, width = shape_of(self.x)
        heads, dim, rotary = self.heads.value.data, self.head_dim.value.data, self.rotary_dim.value.data
        if self.style.data not in ("half", "paired"):
            raise VerifyException(f'{subject(self)}: style is "{self.style.data}", expected "half" or "paired"')
        if heads * dim != width:
            raise VerifyException(f"{subject(self)}: x has {width} columns, expected {heads * dim}, heads times head_dim")
        if rotary > dim or rotary % 2:
            raise VerifyException(f"{subject(self)}: rotary_dim is {rotary}, expected an even number of at most head_dim = {dim}")
        if shape_of(self.rows) != (tokens, rotary):
            raise VerifyException(f"{subject(self)}: rows have shape {shape_of(self.rows)}, expected {(tokens, rotary)}")

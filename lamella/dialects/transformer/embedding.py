"""Ops that pick rows or columns: of the embedding table by token, of activations by index."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.attributes import ResultTyped, element_of, element_type_of
from lamella.dialects.transformer.types import FloatTensor, IndexTensor, TransformerOp, Value, dimensions_of, located, named_tensor


@irdl_op_definition
class EmbeddingOp(TransformerOp, ResultTyped):
    """tokens[N], table[V,E] -> [N,E]: the table's row of each token, rounded once to the result's element type.

    The table has that element type, or is f32: what a `dequantize` makes of packed words, of which only the rows of tokens are unpacked.
    """

    name = "transformer.embedding"

    tokens = operand_def(IndexTensor)
    table = operand_def(FloatTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, tokens: Value, table: Value, *, element: Attribute | None = None, loc: str | None = None) -> None:
        tokens, table = SSAValue.get(tokens), SSAValue.get(table)
        result = named_tensor(element or element_type_of(table), [*dimensions_of(tokens.type), dimensions_of(table.type)[-1]])
        super().__init__(operands=[tokens, table], result_types=[result], attributes=located(loc))

    def verify_(self) -> None:
        (tokens,) = self.dimensions("tokens", self.tokens, 1)
        _, width = self.dimensions("table", self.table, 2)
        self.expect_shape("result", self.result, (tokens, width), "one row of table a token")
        if element_of(self.table) != "f32":
            self.expect_element("result", self.result, self.table, "that of table")


@irdl_op_definition
class GatherRowsOp(TransformerOp):
    """x[N,…], rows[R] -> [R,…]: rows of x by index."""

    name = "transformer.gather_rows"

    x = operand_def(TensorType)
    rows = operand_def(IndexTensor)
    result = result_def(TensorType)

    traits = traits_def(Pure())

    def __init__(self, x: Value, rows: Value, *, loc: str | None = None) -> None:
        x, rows = SSAValue.get(x), SSAValue.get(rows)
        result = named_tensor(element_type_of(x), [*dimensions_of(rows.type), *dimensions_of(x.type)[1:]])
        super().__init__(operands=[x, rows], result_types=[result], attributes=located(loc))

    def verify_(self) -> None:
        x = self.dimensions("x", self.x)
        (rows,) = self.dimensions("rows", self.rows, 1)
        if not x:
            raise self.fail("x has rank 0, expected rows to gather")
        self.expect_shape("result", self.result, (rows, *x[1:]), "one row of x an index")
        self.expect_element("result", self.result, self.x, "that of x")


@irdl_op_definition
class GatherColumnsOp(TransformerOp):
    """x[N,K], columns[C] -> [N,C]: columns of x by index: the order in which a packed weight keeps its columns."""

    name = "transformer.gather_columns"

    x = operand_def(FloatTensor)
    columns = operand_def(IndexTensor)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())

    def __init__(self, x: Value, columns: Value, *, loc: str | None = None) -> None:
        x, columns = SSAValue.get(x), SSAValue.get(columns)
        result = named_tensor(element_type_of(x), [dimensions_of(x.type)[0], *dimensions_of(columns.type)])
        super().__init__(operands=[x, columns], result_types=[result], attributes=located(loc))

    def verify_(self) -> None:
        rows, _ = self.dimensions("x", self.x, 2)
        (columns,) = self.dimensions("columns", self.columns, 1)
        self.expect_shape("result", self.result, (rows, columns), "one column of x an index")
        self.expect_element("result", self.result, self.x, "that of x")
        self.expect_order("x", self.x, None, "in which columns are counted")

"""The model function's signature: names of inputs and outputs, and which result takes over which argument's storage."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FunctionType, StringAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa

INPUTS = "lamella.inputs"
OUTPUTS = "lamella.outputs"
TIED = "lamella.tied"
BUCKET = "lamella.bucket"
LAYOUT = "lamella.layout"


def is_model(function: FuncOp) -> bool:
    """Whether a function carries the model signature."""
    return INPUTS in function.attributes and OUTPUTS in function.attributes and TIED in function.attributes


def input_names(function: FuncOp) -> list[str]:
    """The names of the arguments, in order."""
    return _strings(function, INPUTS)


def output_names(function: FuncOp) -> list[str]:
    """The names of the results, in order."""
    return _strings(function, OUTPUTS)


def tied(function: FuncOp) -> list[int]:
    """For each result, the argument whose storage it takes over, or -1."""
    value = function.attributes[TIED]
    assert isinstance(value, DenseArrayBase), value
    return [int(v) for v in value.get_values()]


def argument(function: FuncOp, name: str) -> SSAValue:
    """The argument called `name`. Raises ValueError where there is none."""
    return function.body.block.args[input_names(function).index(name)]


def return_of(function: FuncOp) -> ReturnOp:
    """The function's terminator."""
    last = function.body.block.last_op
    assert isinstance(last, ReturnOp), last
    return last


def describe(function: FuncOp, inputs: Sequence[str], outputs: Sequence[str], tied: Sequence[int]) -> None:
    """Write the signature attributes."""
    function.attributes[INPUTS] = ArrayAttr([StringAttr(name) for name in inputs])
    function.attributes[OUTPUTS] = ArrayAttr([StringAttr(name) for name in outputs])
    function.attributes[TIED] = DenseArrayBase.from_list(i64, list(tied))


def update_type(function: FuncOp) -> None:
    """Make the function's type that of its block arguments and returned values."""
    block = function.body.block
    function.function_type = FunctionType.from_lists([a.type for a in block.args], [v.type for v in return_of(function).operands])


def _strings(function: FuncOp, key: str) -> list[str]:
    value = function.attributes[key]
    assert isa(value, ArrayAttr[StringAttr]), value
    return [name.data for name in value.data]

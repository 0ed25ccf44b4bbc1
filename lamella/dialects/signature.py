"""The model function's signature: names of inputs and outputs, and which result takes over which argument's storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DictionaryAttr, FunctionType, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa

from lamella.dialects.attributes import attribute_of, python_value

INPUTS = "lamella.inputs"
OUTPUTS = "lamella.outputs"
TIED = "lamella.tied"
BUCKET = "lamella.bucket"
LAYOUT = "lamella.layout"
FOLDS = "lamella.folds"
IDLE = "lamella.idle"
TRANSFORMS = "transform_weights"
"""The function that makes the weights of the model function from those of the checkpoint, once; `lamella.outputs` names its results."""


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


def steps(module: ModuleOp) -> list[FuncOp]:
    """The functions that run every step: all that have a body, but for `@transform_weights`."""
    return [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration and op.sym_name.data != TRANSFORMS]


def transforms(module: ModuleOp) -> FuncOp | None:
    """The function `@transform_weights`, where there is one."""
    return next((op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == TRANSFORMS), None)


def record(function: FuncOp, entries: Sequence[Mapping[str, str]]) -> None:
    """Append decisions about constants to the function's `lamella.folds`, each once: its verdict, kind, what it is about, and the reason."""
    known = [*records(function), *entries]
    function.attributes[FOLDS] = ArrayAttr(dict.fromkeys(attribute_of(entry) for entry in known))


def records(function: FuncOp) -> list[dict[str, str]]:
    """The decisions about constants that the function records."""
    value = function.attributes.get(FOLDS, ArrayAttr(()))
    assert isa(value, ArrayAttr[DictionaryAttr]), value
    return [{key: str(python_value(text)) for key, text in entry.data.items()} for entry in value.data]


def note_idle(function: FuncOp, notes: Sequence[Mapping[str, str]]) -> None:
    """Append to the function's `lamella.idle` the passes, and steps of passes, that were on and changed nothing, each with the reason."""
    known = dict.fromkeys([*_idle(function), *(attribute_of(note) for note in notes)])
    if known:
        function.attributes[IDLE] = ArrayAttr(known)


def idle_notes(function: FuncOp) -> list[dict[str, str]]:
    """What `lamella.idle` says: `pass`, `step` (of a pass that has several) and `reason`."""
    return [{key: str(python_value(text)) for key, text in entry.data.items()} for entry in _idle(function)]


def _idle(function: FuncOp) -> list[DictionaryAttr]:
    value = function.attributes.get(IDLE, ArrayAttr(()))
    assert isa(value, ArrayAttr[DictionaryAttr]), value
    return list(value.data)


def _strings(function: FuncOp, key: str) -> list[str]:
    value = function.attributes[key]
    assert isa(value, ArrayAttr[StringAttr]), value
    return [name.data for name in value.data]

"""Steps that compute on weights enter; steps that read finished weights, and `@transform_weights` that makes them once, leave."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from lamella.dialects import signature
from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.messages import subject
from lamella.dialects.transformer import LinearOp, RopeOp, RotateOp, WeightOp, WeightTransform
from lamella.dialects.transformer.types import TransformerOp
from lamella.passes.weight_expressions import handles, is_computation, is_constant, origin

Key: TypeAlias = "tuple[object, ...]"


@dataclass(frozen=True)
class FoldConstants(ModulePass):
    """Move what depends on weights and tables alone into `@transform_weights`, which runs once, when the model is loaded.

    Before:
        func.func @forward(%x : tensor<?x64xf32, …>) -> … {
          %w = transformer.weight "q_proj" : tensor<64x64xf32>
          %0 = transformer.transpose %w : (tensor<64x64xf32>) -> tensor<64x64xf32>
          %y = transformer.linear %x, %0 : …
    After:
        func.func @forward(%x : tensor<?x64xf32, …>) -> … {
          %q_proj.transposed = transformer.weight "q_proj.transposed" : tensor<64x64xf32>
          %y = transformer.linear %x, %q_proj.transposed : …
        func.func @transform_weights() -> tensor<64x64xf32> attributes {lamella.outputs = ["q_proj.transposed"]} {
          %w = transformer.weight "q_proj" : tensor<64x64xf32>
          %0 = transformer.transpose %w : (tensor<64x64xf32>) -> tensor<64x64xf32>
          func.return %0 : tensor<64x64xf32>

    Equal expressions, of any function, become one weight. A result larger than `max-growth` times all the weights it is made of stays where
    it is, and parts of it are tried. Handles that nothing reads any more are dropped: what they name is not loaded, or only as a source.
    Each function says in `lamella.folds` what was folded, dropped, and not folded and why; a rotation cannot be folded into a weight.
    """

    name = "fold-constants"

    max_growth: int | float = 1.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        transforms = Transforms.of(op)
        for function in signature.steps(op):
            records = [*self.fold(function, transforms), *rotations(function)]
            signature.record(function, [*records, *drop_dead(function, transforms.sources)])
        transforms.finish(op)

    def fold(self, function: FuncOp, transforms: Transforms) -> list[dict[str, str]]:
        """Replaces the largest expressions that the guard allows by weights; the records of that."""
        inside, records = computations(function), list[dict[str, str]]()
        roots: list[Operation] = []
        for op in reversed(list(inside)):
            result = op.results[0]
            if all(use.operation in inside for use in result.uses):
                continue
            made, given = size(result), sum(size(value) for value in leaves(op, inside))
            if made <= self.max_growth * given:
                roots.append(op)
                continue
            # Its operands are now read by an op that stays, and have their turn later in this walk.
            del inside[op]
            reason = f"{made} bytes of {given}, more than max-growth = {self.max_growth:g} allows"
            records.insert(0, entry("not_folded", "constant", subject(op), reason))
        new: dict[str, WeightOp] = {}
        for op in reversed(roots):
            value = transforms.value(op.results[0])
            name = transforms.name(value)
            if name not in new:
                new[name] = WeightOp(name, value.type)
                new[name].result.name_hint = name
                Rewriter.insert_op(new[name], InsertPoint.before(op))
                records.append(entry("folded", "constant", name, formula(value)))
            op.results[0].replace_all_uses_with(new[name].result)
        for op in reversed(list(inside)):
            if not any(result.uses for result in op.results):
                Rewriter.erase_op(op)
        return records or [nearest_miss(function)]


def computations(function: FuncOp) -> dict[Operation, None]:
    """The ops that depend on weights and tables alone, in program order."""
    inside: dict[Operation, None] = {}
    for op in function.body.block.ops:
        if is_computation(op) and all(is_constant(operand.owner) or operand.owner in inside for operand in op.operands):
            inside[op] = None
    return inside


def leaves(op: Operation, inside: Container[Operation]) -> list[SSAValue]:
    """The weights and tables that `op` depends on, each name once."""
    found: dict[Key, SSAValue] = {}
    pending = [op]
    while pending:
        for operand in pending.pop().operands:
            owner = operand.owner
            assert isinstance(owner, Operation)
            if owner in inside:
                pending.append(owner)
            else:
                found[owner.name, *sorted(owner.properties.items())] = operand
    return list(found.values())


def size(value: SSAValue) -> int:
    """Bytes of a tensor."""
    return prod(shape_of(value)) * ELEMENT_BYTES[element_of(value)]


def nearest_miss(function: FuncOp) -> dict[str, str]:
    """The record of a function with nothing to fold: the first op on a weight, and what else it reads."""
    where = f"@{function.sym_name.data}"
    for op in function.body.block.ops:
        constants = [operand for operand in op.operands if is_constant(operand.owner)]
        if constants and isinstance(op, TransformerOp):
            other = next((operand for operand in op.operands if operand not in constants), constants[0])
            return entry("not_folded", "constant", where, f"no op reads weights alone: {subject(op)} reads {origin(other)} too")
    return entry("not_folded", "constant", where, "no op reads a weight")


def rotations(function: FuncOp) -> Iterator[dict[str, str]]:
    """Records of the rotations that follow a product with a weight: the angle is no constant."""
    for op in function.body.block.ops:
        if isinstance(op, RopeOp | RotateOp) and isinstance(op.x.owner, LinearOp):
            reason = "a rotated weight is valid for one position only, and positions come with each step"
            yield entry("not_folded", "rope", subject(op), reason)


def drop_dead(function: FuncOp, sources: Container[str]) -> Iterator[dict[str, str]]:
    """Erases handles that nothing reads; the records of the weights that no step reads any more."""
    weights = [op for op in function.body.block.ops if isinstance(op, WeightOp)]
    alive = {op.weight_name.data for op in weights if op.result.uses}
    for op in weights:
        if not op.result.uses:
            Rewriter.erase_op(op)
    for name in dict.fromkeys(op.weight_name.data for op in weights if op.weight_name.data not in alive):
        reason = f"only @{signature.TRANSFORMS} reads it" if name in sources else "nothing reads it"
        yield entry("dropped", "weight", name, reason)


def entry(verdict: str, kind: str, what: str, reason: str) -> dict[str, str]:
    """A record of `lamella.folds`."""
    return {"verdict": verdict, "kind": kind, "what": what, "reason": reason}


@dataclass
class Transforms:
    """`@transform_weights` as it grows: the value of each expression, and the name of each result."""

    block: Block
    taken: set[str]
    """Names of weights that mean something already."""
    results: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    """Results by name, in order."""
    names: dict[SSAValue, str] = field(default_factory=dict[SSAValue, str])
    """The same, by value."""
    values: dict[Key, SSAValue] = field(default_factory=dict[Key, SSAValue])
    """Structure of an expression -> the value that has it."""
    moved: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Values of other functions -> their values here."""

    @staticmethod
    def of(module: ModuleOp) -> Transforms:
        """What there is already, taken out of the module: the function of an earlier run, or nothing."""
        made = Transforms(Block(), set(handles(module)))
        old = signature.transforms(module)
        if old is None:
            return made
        for op in old.body.block.ops:
            if not isinstance(op, ReturnOp):
                made.add(op)
        names = signature.output_names(old)
        made.results = {name: made.moved[v] for name, v in zip(names, signature.return_of(old).operands, strict=True)}
        made.names = {value: name for name, value in made.results.items()}
        made.taken.update(names)
        Rewriter.erase_op(old)
        return made

    @property
    def sources(self) -> set[str]:
        """Names of the weights that are read here."""
        return {op.weight_name.data for op in self.block.ops if isinstance(op, WeightOp)}

    def value(self, value: SSAValue) -> SSAValue:
        """The value here that equals `value`, a constant or an expression on constants; ops are copied as needed."""
        pending = [value]
        while pending:
            op = pending[-1].owner
            assert isinstance(op, Operation)
            missing = [operand for operand in op.operands if operand not in self.moved]
            pending.extend(reversed(missing))
            if not missing:
                pending.pop()
                self.add(op)
        return self.moved[value]

    def add(self, op: Operation) -> None:
        """Copies an op whose operands are here, unless its equal is here."""
        (result,) = op.results
        if isinstance(op, WeightOp) and op.weight_name.data in self.results:
            self.moved[result] = self.results[op.weight_name.data]
            return
        operands = [self.moved[operand] for operand in op.operands]
        key = (op.name, *operands, *sorted(op.properties.items()), result.type)
        if key not in self.values:
            copy = op.clone(value_mapper=dict(zip(op.operands, operands, strict=True)))
            copy.attributes.clear()
            self.block.add_op(copy)
            self.values[key] = copy.results[0]
        self.moved[result] = self.values[key]

    def name(self, value: SSAValue) -> str:
        """The name under which `value` is a result; it becomes one."""
        if value in self.names:
            return self.names[value]
        stem = derived_name(value)
        name = next(name for n in count() if (name := f"{stem}_{n}" if n else stem) not in self.taken)
        self.taken.add(name)
        self.results[name], self.names[value] = value, name
        return name

    def finish(self, module: ModuleOp) -> None:
        """Puts the function at the end of the module, with the results that some step reads; without any there is no function."""
        read = handles(module)
        results = {name: value for name, value in self.results.items() if name in read}
        if not results:
            return
        self.block.add_op(ReturnOp(*results.values()))
        for op in reversed(list(self.block.ops)):
            if op.results and not op.results[0].uses:
                Rewriter.erase_op(op)
        type = FunctionType.from_lists([], [value.type for value in results.values()])
        function = FuncOp(signature.TRANSFORMS, type, Region(self.block))
        function.attributes[signature.OUTPUTS] = ArrayAttr([StringAttr(name) for name in results])
        module.body.block.add_op(function)


def derived_name(value: SSAValue) -> str:
    """The name of an expression: that of its first weight, then what was done to it: `q_proj.scaled.paired`."""
    op = value.owner
    assert isinstance(op, Operation)
    if isinstance(op, WeightOp):
        return op.weight_name.data
    short = op.name.removeprefix("transformer.")
    if not op.operands:
        return short
    return f"{derived_name(op.operands[0])}.{op.SUFFIX if isinstance(op, WeightTransform) else short}"


def formula(value: SSAValue) -> str:
    """How an expression is made, for people: `pair_rows(scale_columns(q_proj, attn_norm))`."""
    op = value.owner
    assert isinstance(op, Operation)
    if isinstance(op, WeightOp):
        return op.weight_name.data
    arguments = ", ".join(formula(operand) for operand in op.operands)
    short = op.name.removeprefix("transformer.")
    return f"{short}({arguments})" if arguments else short

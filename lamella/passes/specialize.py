"""A model function with named dimensions enters; the function of one bucket, every dimension static, leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from lamella.dialects import signature
from lamella.dialects.attributes import attribute_of
from lamella.dialects.transformer import AdvanceOp, DimsAttr, LayoutAttr, MarkOp, dimensions_of, named_tensor, order_of


@dataclass(frozen=True)
class Specialize(ModulePass):
    """Give the named dimensions their sizes: N = tokens, B = sequences, R = logit-rows, M = blocks.

    Before:
        func.func @forward(%tokens : tensor<?xi32, #transformer.dims<"N">>, …) attributes {…}
        %x = transformer.embedding %tokens, %embed : (…) -> tensor<?x64xf32, #transformer.dims<"N">>
    After `specialize{tokens=8 …}`:
        func.func @forward(%tokens : tensor<8xi32>, …) attributes {…, lamella.bucket = {tokens = 8, …}}
        %x = transformer.embedding %tokens, %embed : (…) -> tensor<8x64xf32>

    With `advance` (decode: N = B = R, one token a sequence) the function also returns positions + 1 and context_len + 1 (and, where it penalizes, factors that
    know the new token), tied to their arguments, and `next` is tied to `tokens`, so that a step feeds the next one on the device. What belongs to the model and to no bucket
    is left behind: `@transform_weights`, and the records `lamella.folds`.
    Expects functions of one block; those without a model signature only get their dimensions. Refuses unknown names of dimensions,
    functions that are specialized already, and sizes that contradict each other.
    """

    name = "specialize"

    tokens: int
    sequences: int = 1
    longest_query: int = 1
    logit_rows: int = 1
    blocks: int = 128
    advance: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.check()
        weights = signature.transforms(op)
        if weights is not None:
            Rewriter.erase_op(weights)
        for function in signature.steps(op):
            self.specialize(function)
            function.attributes.pop(signature.FOLDS, None)
            function.attributes.pop(signature.IDLE, None)

    def check(self) -> None:
        """Raises PassFailedException for sizes that contradict each other."""
        sizes = {name: size for name, size in self.bucket().items() if name != "advance"}
        for name, size in sizes.items():
            if size < 1:
                raise PassFailedException(f"{name.replace('_', '-')} is {size}, expected at least 1")
        if self.longest_query > self.tokens:
            raise PassFailedException(f"longest-query is {self.longest_query}, expected at most tokens = {self.tokens}")
        decode = self.tokens == self.sequences == self.logit_rows and self.longest_query == 1
        if self.advance and not decode:
            raise PassFailedException(
                "advance expects tokens = sequences = logit-rows and longest-query = 1, "
                f"got {self.tokens}, {self.sequences}, {self.logit_rows} and {self.longest_query}"
            )

    def bucket(self) -> dict[str, int | bool]:
        """The options, as the attribute `lamella.bucket` records them."""
        return {
            "tokens": self.tokens,
            "sequences": self.sequences,
            "longest_query": self.longest_query,
            "logit_rows": self.logit_rows,
            "blocks": self.blocks,
            "advance": self.advance,
        }

    def specialize(self, function: FuncOp) -> None:
        """Replace the types of one function, in place."""
        if signature.BUCKET in function.attributes:
            raise PassFailedException(f"@{function.sym_name.data} is specialized already: {function.attributes[signature.BUCKET]}")
        sizes = {"N": self.tokens, "B": self.sequences, "B+1": self.sequences + 1, "M": self.blocks, "R": self.logit_rows}
        where = f"@{function.sym_name.data}"
        for block in function.body.blocks:
            for argument in block.args:
                retype(argument, sizes, where)
            for inner in block.walk():
                for result in inner.results:
                    retype(result, sizes, where)
        if self.advance and signature.is_model(function):
            feed_next_step(function)
        signature.update_type(function)
        if signature.is_model(function):
            function.attributes[signature.BUCKET] = attribute_of(self.bucket())


def retype(value: SSAValue, sizes: Mapping[str, int], where: str) -> None:
    """Give `value` static dimensions, where its type names any."""
    type = static(value.type, sizes, where)
    if type != value.type:
        Rewriter.replace_value_with_new_type(value, type)


def static(type: Attribute, sizes: Mapping[str, int], where: str) -> Attribute:
    """The type with every named dimension replaced by its size. Raises PassFailedException for a name without one."""
    if not isinstance(type, TensorType):
        return type
    tensor = cast("TensorType[Attribute]", type)
    if not isinstance(tensor.encoding, DimsAttr | LayoutAttr):
        return tensor
    dimensions = dimensions_of(tensor)
    for name in dimensions:
        if isinstance(name, str) and name not in sizes:
            raise PassFailedException(f"{where}: dimension {name} of {type} has no size, expected one of {', '.join(sizes)}")
    return named_tensor(tensor.element_type, [sizes[d] if isinstance(d, str) else d for d in dimensions], order_of(tensor))


def feed_next_step(function: FuncOp) -> None:
    """Return the next step's positions and context lengths too (and factors, where it has them), and let `next` take over `tokens`."""
    inputs, outputs, tied = signature.input_names(function), signature.output_names(function), signature.tied(function)
    old = signature.return_of(function)
    counts = ("positions", "context_len")
    changed: dict[str, AdvanceOp | MarkOp] = {name: AdvanceOp(signature.argument(function, name), loc=name) for name in counts}
    if "factors" in inputs:
        factors, penalty = (signature.argument(function, name) for name in ("factors", "penalty"))
        changed["factors"] = MarkOp(factors, old.operands[outputs.index("next")], penalty, loc="factors")
    for name, step in changed.items():
        step.result.name_hint = name
    Rewriter.insert_op(list(changed.values()), InsertPoint.before(old))
    Rewriter.replace_op(old, ReturnOp(*old.operands, *(step.result for step in changed.values())))
    tied[outputs.index("next")] = inputs.index("tokens")
    signature.describe(function, inputs, [*outputs, *changed], [*tied, *(inputs.index(name) for name in changed)])

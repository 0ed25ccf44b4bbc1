"""Handles of checkpoint tensors: the IR names them, the runtime holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def, result_def, traits_def
from xdsl.traits import Pure

from lamella.dialects.attributes import attribute_of
from lamella.dialects.transformer.types import FloatTensor, TransformerOp, shown


@irdl_op_definition
class WeightOp(TransformerOp):
    """A tensor of the checkpoint by its canonical name, static in shape.

    `layout` lists the load-time transforms applied to it, in order, each `["pair_rows", {head_dim = 64, rotary_dim = 64}]`: the name
    `pair_rows` means `semantics.IMPLEMENTATIONS["weight.pair_rows"]`, and the manifest's `recipe` is this list.
    """

    name = "transformer.weight"

    weight_name = prop_def(StringAttr, prop_name="name")
    layout = opt_prop_def(ArrayAttr)
    result = result_def(FloatTensor)

    traits = traits_def(Pure())
    assembly_format = "$name (`layout` $layout^)? attr-dict `:` type($result)"

    def __init__(self, name: str, type: Attribute, *, layout: Sequence[tuple[str, Mapping[str, int]]] = ()) -> None:
        recipe = ArrayAttr([ArrayAttr([StringAttr(step), attribute_of(options)]) for step, options in layout])
        super().__init__(properties={"name": StringAttr(name), "layout": recipe if layout else None}, result_types=[type])

    def verify_(self) -> None:
        shape = self.dimensions("result", self.result)
        if any(isinstance(size, str) for size in shape):
            raise self.fail(f"{self.weight_name.data} has shape {shown(shape)}, expected static dimensions")
        for step in self.layout or ():
            match step:
                case ArrayAttr(data=(StringAttr(), DictionaryAttr())):
                    continue
                case _:
                    raise self.fail(f'layout of {self.weight_name.data} has the step {step}, expected ["name", {{options}}]')

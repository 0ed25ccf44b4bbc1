"""The walk that lowers a function op by op, and its table of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DYNAMIC_INDEX, Float8E4M3FNType, FunctionType, ModuleOp, TensorType, f32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import signature
from lamella.dialects.attributes import shape_of
from lamella.dialects.elementwise import Elementwise, LastAxisReduction
from lamella.dialects.messages import location, subject
from lamella.dialects.transformer import KVCacheType, RopeOp, WeightTransform
from lamella.errors import PassError
from lamella.lowering.transformer_to_tile import attention, elementwise, experts, linear, norm, quantize
from lamella.lowering.transformer_to_tile.rules import Rule, TileBuilder

RULES: Mapping[str, Rule] = {**elementwise.RULES, **norm.RULES, **linear.RULES, **experts.RULES, **attention.RULES, **quantize.RULES}
CACHE, SCALES = "cache.", "scales."
"""How the names of caches begin, and those of the scales of each."""
HANDLES = frozenset({"transformer.weight", "transformer.rope_table", "func.return"})
"""Ops that stay: they name data that lives outside the IR."""


def tile_type(type: Attribute) -> Attribute:
    """The type of a value at level 2: a cache becomes the tensor of its blocks (its scales, if any, another one), everything else stays."""
    if not isinstance(type, KVCacheType):
        return type
    shape = [DYNAMIC_INDEX, 2, type.kv_heads.data, type.block.data, type.head_dim.data]
    return TensorType(type.element_type, shape)


def scale_type(type: Attribute) -> Attribute:
    """The type of the scales of a cache of float8: one for each head of each slot."""
    assert isinstance(type, KVCacheType)
    return TensorType(f32, [DYNAMIC_INDEX, 2, type.kv_heads.data, type.block.data, 1])


def return_scales(function: func.FuncOp, block: Block, scales: Mapping[SSAValue, SSAValue]) -> None:
    """Returns the scales of each cache that the new body `block` of `function` returns, behind everything else, and names them in its signature."""
    terminator = block.last_op
    assert isinstance(terminator, func.ReturnOp)
    returned = [(number, scales[v]) for number, v in enumerate(terminator.operands) if v in scales]
    made = func.ReturnOp(*terminator.operands, *(v for _, v in returned))
    terminator.detach()
    terminator.erase()
    block.add_op(made)
    if not signature.is_model(function):
        return
    inputs, outputs, tied = signature.input_names(function), signature.output_names(function), signature.tied(function)
    names = [SCALES + name.removeprefix(CACHE) for name in inputs if name.startswith(CACHE)]
    inputs += names
    for number, _ in returned:
        outputs.append(SCALES + outputs[number].removeprefix(CACHE))
        tied.append(inputs.index(outputs[-1]))
    signature.describe(function, inputs, outputs, tied)


def rule_of(op: Operation) -> Rule:
    """The rule that lowers `op`. Raises PassError when there is none."""
    if isinstance(op, Elementwise):
        return elementwise.elementwise
    if isinstance(op, LastAxisReduction):
        return elementwise.last_axis_reduction
    rule = RULES.get(op.name)
    if rule is None:
        first = "rope-table" if isinstance(op, RopeOp) else "fold-constants" if isinstance(op, WeightTransform) else ""
        raise PassError("no lowering to tile ops", where=subject(op), remedy=f"run {first} first" if first else None)
    return rule


@dataclass(frozen=True)
class TransformerToTile(ModulePass):
    """Lowers each transformer op to structured tile ops, with every rounding an explicit `tile.cast`.

    Before:
        %y = transformer.silu %x : tensor<1x8xbf16>
    After:
        %0 = tile.cast %x : tensor<1x8xbf16> -> tensor<1x8xf32>
        %1 = tile.map "silu"(%0) : tensor<1x8xf32> -> tensor<1x8xf32>
        %y = tile.cast %1 : tensor<1x8xf32> -> tensor<1x8xbf16>

    Expects static shapes (`specialize`), RoPE as table look-ups (`rope-table`) and no op that transforms weights (`fold-constants`).
    Weights and tables stay as handles; `@transform_weights` is no step and is left alone.
    """

    name = "transformer-to-tile"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in signature.steps(op):
            self.lower(function)

    def lower(self, function: func.FuncOp) -> None:
        """Replaces the body of `function` by its lowering. Raises PassError on a dynamic shape or an op without a rule."""
        old = function.body.block
        scaled = [a for a in old.args if isinstance(a.type, KVCacheType) and isinstance(a.type.element_type, Float8E4M3FNType)]
        block = Block(arg_types=[*(tile_type(a.type) for a in old.args), *(scale_type(a.type) for a in scaled)])
        values: dict[SSAValue, SSAValue] = dict(zip(old.args, block.args, strict=False))
        for before, after in values.items():
            after.name_hint = before.name_hint
        builder = TileBuilder(block)
        for cache, scales in zip(scaled, block.args[len(old.args) :], strict=True):
            builder.scales[values[cache]] = scales
            scales.name_hint = SCALES + (cache.name_hint or "").removeprefix(CACHE)
        for op in old.ops:
            check_static(op)
            if op.name in HANDLES:
                clone = op.clone(value_mapper=values)
                block.add_op(clone)
                values.update(zip(op.results, clone.results, strict=True))
                continue
            builder.loc = location(op) or None
            lowered = rule_of(op)(op, [values[v] for v in op.operands], builder)
            for result, value in zip(op.results, lowered, strict=True):
                values[result] = value
                if result.name_hint and value.name_hint is None:
                    value.name_hint = result.name_hint
        if scaled:
            return_scales(function, block, builder.scales)
        results = [v.type for v in block.last_op.operands] if block.last_op else []
        function.properties["function_type"] = FunctionType.from_lists([a.type for a in block.args], results)
        function.detach_region(function.body)
        function.add_region(Region(block))


def check_static(op: Operation) -> None:
    """Raises PassError when `op` makes a tensor with a dynamic dimension."""
    for result in op.results:
        tensor = result.type
        if isinstance(tensor, TensorType) and DYNAMIC_INDEX in shape_of(result):
            raise PassError("a dynamic dimension", where=subject(op), got=str(result.type), remedy="run specialize first")

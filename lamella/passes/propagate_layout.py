"""RoPE on half-split heads enters; weights whose rows lie in pairs, and rotations of neighbours, leave."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from lamella.dialects import signature
from lamella.dialects.attributes import attribute_of
from lamella.dialects.messages import location, subject
from lamella.dialects.transformer import (
    AttentionOp,
    CacheWriteOp,
    KVCacheType,
    LayerNormOp,
    LinearOp,
    PairRowsOp,
    RMSNormOp,
    RopeOp,
    RotateOp,
    TransposeOp,
    order_of,
    ordered,
)
from lamella.passes.packed_rows import move_rows, parts_of, serves_only
from lamella.passes.weight_expressions import carried, handles, is_computation, is_constant, origin, readers

Turn = RopeOp | RotateOp
Norm = RMSNormOp | LayerNormOp


@dataclass(frozen=True)
class PropagateLayout(ModulePass):
    """Pair the rows of q and k projections, so that both partners of a rotation are neighbours: rows j and j + rotary/2 become 2j, 2j + 1.

    Before:
        %w = transformer.weight "layers.0.attn.q_proj" : tensor<64x64xf32>
        %q = transformer.linear %x, %w
        %q2 = transformer.rotate %q, %positions, %table {head_dim = 16, rotary_dim = 16, style = "half", …}
        … !transformer.kv_cache<2 x 16 x f32, block = 16, paired = 0>
    After:
        %w = transformer.weight "layers.0.attn.q_proj" : tensor<64x64xf32>
        %0 = transformer.pair_rows %w {…} : (tensor<64x64xf32>) -> tensor<64x64xf32, #transformer.layout<head = 16, paired = 16>>
        %q = transformer.linear %x, %0 : … -> tensor<?x64xf32, #transformer.layout<dims = ["N"], head = 16, paired = 16>>
        %q2 = transformer.rotate %q, %positions, %table {head_dim = 16, rotary_dim = 16, style = "paired", …}
        … !transformer.kv_cache<2 x 16 x f32, block = 16, paired = 16>

    The order of rows, and of the columns of what is multiplied by them, is part of each tensor's type: where orders that differ meet, an
    op does not verify. q·k does not change, because both sides are permuted alike; v is untouched, biases follow their weights, and so do
    the scale and shift of a norm between projection and rotation: the mean of a head, or of a row, does not ask for the order of its numbers. Of a packed weight the rows of words,
    scales and least values are paired alike. The layout is a property of the module and of its caches: it is chosen once, before `specialize`, for all caches or for none. Each function records the choice in
    `lamella.layout`: `paired`, `paired already` (a checkpoint that interleaves), or `unchanged` with the reason. `fold-constants` then
    moves the pairing of rows to load time.

    A linear reads rows of [outputs, inputs]; a model whose checkpoint stores [inputs, outputs] has a transpose before each. Two that undo
    each other go, those of weights are left for `fold-constants` to move to load time (or are there already), and where there was one
    `lamella.folds` says how many a step had before and will have after.
    """

    name = "propagate-layout"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = signature.steps(op)
        made = signature.transforms(op)
        for function in functions:
            settle_transposes(function, len(transposes(made)) if made is not None else 0)
        caches = [(f, a) for f in functions for a in f.body.block.args if isinstance(a.type, KVCacheType)]
        if not caches:
            return
        survey = Survey()
        for _, cache in caches:
            survey.cache(cache)
        survey.weights(op)
        choice = survey.choice()
        if choice["choice"] == "paired":
            survey.pair()
        for function in dict.fromkeys(f for f, _ in caches):
            signature.update_type(function)
            function.attributes[signature.LAYOUT] = attribute_of(choice)
            if choice["choice"] == "unchanged":
                signature.note_idle(function, [{"pass": "propagate-layout", "reason": f"nearest: {choice['reason']}"}])


def settle_transposes(function: FuncOp, moved: int) -> None:
    """Takes out transposes that undo each other, and records what becomes of all that there were, `moved` of which are at load time already."""
    before = transposes(function)
    for op in before:
        if isinstance(inner := op.w.owner, TransposeOp):
            op.result.replace_all_uses_with(inner.w)
    for op in reversed(before):
        if not op.result.uses:
            Rewriter.erase_op(op)
    left = transposes(function)
    stay = [op for op in left if not from_weights(op)]
    if not before and not moved:
        return
    reason = f"{len(before) + moved} in a step before, {len(stay)} after: {len(left) - len(stay) + moved} of weights at load time"
    if len(left) < len(before):
        reason += f", {len(before) - len(left)} gone, which undid another or were not read"
    if stay:
        reason += f"; {subject(stay[0])} reads {origin(stay[0].w)}"
    signature.record(function, [{"verdict": "layout", "kind": "transpose", "what": "transposes", "reason": reason}])


def transposes(function: FuncOp) -> list[TransposeOp]:
    """The transposes of a function, in order."""
    return [op for op in function.body.block.ops if isinstance(op, TransposeOp)]


def from_weights(op: Operation) -> bool:
    """Whether `op` depends on weights and tables alone."""
    return all(
        is_constant(value.owner) or (isinstance(value.owner, Operation) and is_computation(value.owner) and from_weights(value.owner))
        for value in op.operands
    )


@dataclass(frozen=True)
class Survey:
    """What would change together: the rotations, their projections, and the values that are caches; and what forbids it."""

    turns: list[Turn] = field(default_factory=list[Turn])
    linears: dict[LinearOp, Turn] = field(default_factory=dict[LinearOp, Turn])
    norms: dict[Norm, Turn] = field(default_factory=dict[Norm, Turn])
    """Norms between a projection and its rotation."""
    caches: list[SSAValue] = field(default_factory=list[SSAValue])
    refusals: list[str] = field(default_factory=list[str])

    def cache(self, value: SSAValue) -> None:
        """Follow one cache from its argument through its writers to its readers."""
        chain = [value]
        while chain:
            value = chain.pop()
            self.caches.append(value)
            for use in value.uses:
                match use.operation:
                    case CacheWriteOp() as write:
                        self.projection(write.k, write, "k")
                        chain.append(write.result)
                    case AttentionOp() as attention:
                        self.projection(attention.q, attention, "q")
                    case ReturnOp():
                        continue
                    case other:
                        self.refusals.append(f"{subject(other)} uses a cache, expected cache_write, attention or return")

    def projection(self, value: SSAValue, user: Operation, what: str) -> None:
        """Take in the rotation and projection that `value`, the operand `what` of `user`, comes from."""
        turn = value.owner
        if not isinstance(turn, RopeOp | RotateOp):
            self.refusals.append(f"{subject(user)}: {what} comes from {origin(value)}, expected a rotation")
            return
        if turn in self.turns:
            return
        self.turns.append(turn)
        if any(not self.reads_as_key_or_query(use.operation, use.index) for use in value.uses):
            self.refusals.append(f"{subject(turn)}: its result has uses besides the cache's keys and attention's queries")
        x = turn.x
        if isinstance(norm := x.owner, Norm) and self.sole(norm, turn):
            heads = turn.heads.value.data
            if norm.heads is not None and norm.heads.value.data != heads:
                self.refusals.append(f"{subject(norm)}: it normalizes {norm.heads.value.data} parts of a row, expected its {heads} heads")
            self.norms[norm] = turn
            x = norm.x
        linear = x.owner
        if not isinstance(linear, LinearOp):
            self.refusals.append(f"{subject(turn)}: x comes from {origin(x)}, expected a linear, or a norm of one")
        elif self.sole(linear, turn):
            self.linears[linear] = turn

    def sole(self, op: LinearOp | Norm, turn: Turn) -> bool:
        """Whether only what leads to `turn` reads the result of `op`; else that is a refusal."""
        if len(list(op.result.uses)) != 1:
            self.refusals.append(f"{subject(op)}: its result has uses besides the rotation at {location(turn)}")
            return False
        return True

    @staticmethod
    def reads_as_key_or_query(op: Operation, index: int) -> bool:
        """Whether operand `index` of `op` meets only its counterpart, in a product over the head."""
        return (isinstance(op, AttentionOp) and index == 0) or (isinstance(op, CacheWriteOp) and index == 1)

    def weights(self, module: ModuleOp) -> None:
        """Find uses of the projections' weights, anywhere in the module, that would need their rows in the old order too."""
        names: list[str] = []
        changed = {*self.linears, *self.norms}
        for op in (*self.linears, *self.norms):
            for value in op.operands[1:]:
                for part in parts_of(value):
                    weights = carried(part)
                    if weights is None:
                        self.refusals.append(f"{subject(op)}: it multiplies by {origin(part)}, expected a weight")
                    names.extend(weight.weight_name.data for weight in weights or ())
        known = handles(module)
        for name in dict.fromkeys(names):
            for use in readers(known[name]):
                if not serves_only(use, changed):
                    self.refusals.append(f"weight {name} is also used by {subject(use.operation)}, where its rows keep their order")

    def choice(self) -> dict[str, str | int]:
        """The decision, as recorded in the IR."""
        rotary = {turn.rotary_dim.value.data for turn in self.turns}
        if self.refusals:
            return {"choice": "unchanged", "reason": self.refusals[0]}
        if not self.turns:
            return {"choice": "unchanged", "reason": "no rotation reaches a cache"}
        if len(rotary) > 1:
            return {"choice": "unchanged", "reason": f"rotations of {', '.join(map(str, sorted(rotary)))} dimensions meet in one module"}
        styles = {turn.style.data for turn in self.turns}
        if styles == {"paired"}:
            return {"choice": "paired already", "rotary_dim": rotary.pop()}
        if len(styles) > 1:
            return {"choice": "unchanged", "reason": "half-split and paired rotations meet in one module"}
        return {"choice": "paired", "rotary_dim": rotary.pop()}

    def pair(self) -> None:
        """Change rotations, weights and caches together."""
        for turn in self.turns:
            turn.style = StringAttr("paired")
        for linear, turn in self.linears.items():
            self.pair_parameters(linear, turn)
            for value in (linear.result, turn.results[0]):
                Rewriter.replace_value_with_new_type(value, ordered(value.type, order_of(linear.weight.type)))
        for norm, turn in self.norms.items():
            self.pair_parameters(norm, turn)
            Rewriter.replace_value_with_new_type(norm.result, norm.x.type)
        rotary = self.turns[0].rotary_dim.value.data
        for cache in self.caches:
            type = cache.type
            assert isinstance(type, KVCacheType)
            paired = KVCacheType(type.kv_heads, type.head_dim, type.element_type, type.block, IntAttr(rotary))
            Rewriter.replace_value_with_new_type(cache, paired)

    @staticmethod
    def pair_parameters(op: LinearOp | Norm, turn: Turn) -> None:
        """Pair the rows of the weights that `op` takes after its x."""

        def pair(weight: SSAValue) -> PairRowsOp:
            return PairRowsOp(weight, head_dim=turn.head_dim.value.data, rotary_dim=turn.rotary_dim.value.data)

        for index in range(1, len(op.operands)):
            op.operands[index] = move_rows(op.operands[index], pair, op)

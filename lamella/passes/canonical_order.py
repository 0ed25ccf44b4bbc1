"""Ops in any order enter; the same ops in the one order that their structure gives them, with names that follow, leave."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.passes import ModulePass

from lamella.dialects.elementwise import COMMUTATIVE, Elementwise
from lamella.dialects.messages import location
from lamella.dialects.tile import MapOp
from lamella.dialects.transformer import WeightOp


@dataclass(frozen=True)
class CanonicalOrder(ModulePass):
    """Put operands of commutative ops, and then all ops, in an order that depends on what is computed and not on how it was spelled.

    Before:
        %up = transformer.linear %x, %w1 {loc = "up"}
        %w0 = transformer.weight "gate_proj"
        %gate = transformer.linear %x, %w0 {loc = "gate"}
        %0 = transformer.silu %gate
        %y = transformer.mul %up, %0
    After:
        %gate.weight = transformer.weight "gate_proj"
        %gate = transformer.linear %x, %gate.weight {loc = "gate"}
        %0 = transformer.silu %gate
        %up.weight = transformer.weight "up_proj"
        %up = transformer.linear %x, %up.weight {loc = "up"}
        %y = transformer.mul %0, %up

    A commutative op reads first the operand that more ops lead to, of two equals the one with the lesser digest of its structure (names of ops,
    properties, types, operands; no locations, no names of values). Ops then stand in the order in which a walk from the returned values
    meets them, operands first. A weight is called after the first op that reads it, and the operand it is, whatever the checkpoint calls
    it. Expects ops without side effects in one block; leaves the same ops.
    """

    name = "canonical-order"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, FuncOp) and not function.is_declaration:
                order_operands(function)
                order_ops(function)
                name_weights(function)


@dataclass
class Structure:
    """Digests of values by what computes them."""

    texts: dict[Attribute, str] = field(default_factory=dict[Attribute, str])
    known: dict[SSAValue, tuple[int, bytes]] = field(default_factory=dict[SSAValue, "tuple[int, bytes]"])
    """Value -> ops on the longest path to it, and the digest of what computes it."""

    def text(self, attribute: Attribute) -> str:
        """An attribute as text, entries of dictionaries sorted by name."""
        found = self.texts.get(attribute)
        if found is None:
            match attribute:
                case DictionaryAttr():
                    found = "{" + ", ".join(f"{name} = {self.text(a)}" for name, a in sorted(attribute.data.items())) + "}"
                case ArrayAttr():
                    found = "[" + ", ".join(self.text(a) for a in attribute.data) + "]"
                case _:
                    found = str(attribute)
            self.texts[attribute] = found
        return found

    def key(self, value: SSAValue) -> tuple[int, bytes]:
        """How a value sorts among others: those that more ops lead to come first."""
        if isinstance(value, BlockArgument):
            return 0, f"argument {value.index}".encode()
        height, digest = self.known[value]
        return -height, digest

    def visit(self, op: Operation) -> None:
        """Takes in an op whose operands are known, after putting them in order where they commute."""
        if commutes(op):
            op.operands = sorted(op.operands, key=self.key)
        keys = [self.key(v) for v in op.operands]
        described = [op.name, *(f"{name} = {self.text(a)}" for name, a in sorted(op.properties.items()))]
        described += [str(region) for region in op.regions]
        digest = hashlib.blake2b("\n".join(described).encode(), digest_size=16)
        for _, part in keys:
            digest.update(part)
        height = 1 + max((-h for h, _ in keys), default=-1)
        for index, result in enumerate(op.results):
            own = digest.copy()
            own.update(f"{index} {self.text(result.type)}".encode())
            self.known[result] = (height, own.digest())


def commutes(op: Operation) -> bool:
    """Whether the operands of an op may change places: it computes the same either way."""
    if len(op.operands) != 2:
        return False
    kind = op.kind.data if isinstance(op, MapOp) else op.kind if isinstance(op, Elementwise) else ""
    return kind in COMMUTATIVE


def order_operands(function: FuncOp) -> None:
    """Sorts the operands of each commutative op, from the first op to the last."""
    structure = Structure()
    for op in function.body.block.ops:
        structure.visit(op)


def order_ops(function: FuncOp) -> None:
    """Moves the ops to the order of `walk`."""
    block = function.body.block
    ordered = list(walk(function))
    if ordered == list(block.ops):
        return
    for op in ordered:
        op.detach()
    block.add_ops(ordered)


def walk(function: FuncOp) -> Iterator[Operation]:
    """Every op after its operands, met from the returned values on, the first operand first; what nothing returned needs comes last but one."""
    block = function.body.block
    terminator = block.last_op
    assert terminator is not None
    seen: set[Operation] = {terminator}
    roots = [v.owner for v in terminator.operands if isinstance(v.owner, Operation)]
    for root in (*roots, *block.ops):
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(root.operands))]
        while stack:
            op, operands = stack[-1]
            before = next((v.owner for v in operands if isinstance(v.owner, Operation) and v.owner not in seen), None)
            if before is None:
                yield op
                stack.pop()
            else:
                seen.add(before)
                stack.append((before, iter(before.operands)))
    yield terminator


def name_weights(function: FuncOp) -> None:
    """Calls each weight after the first op that reads it, and which operand it is: `layers.0.attn.q.weight`."""
    place = {op: i for i, op in enumerate(function.body.block.ops)}
    for op in place:
        if not isinstance(op, WeightOp):
            continue
        uses = sorted(
            ((place[use.operation], use.index, use.operation) for use in op.result.uses if location(use.operation)), key=lambda u: u[:2]
        )
        if uses:
            _, index, user = uses[0]
            op.result.name_hint = f"{location(user)}.{operand_name(user, index)}"


def operand_name(op: Operation, index: int) -> str:
    """What the definition of an op calls one of its operands."""
    names = [name for name, _ in op.get_irdl_definition().operands] if isinstance(op, IRDLOperation) else []
    return names[index] if index < len(names) else f"operand{index}"

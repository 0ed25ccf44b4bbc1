"""The ops of a row launch go in; its parts leave: chains that need nothing of each other, each with rows, and programs, of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import ConstantOp, ReduceOp, ReshapeOp, ScatterOp

MAX_ROW = 8192
"""Columns of a row that a program has at once."""


@dataclass(frozen=True)
class Heads:
    """A row of `count` heads of `dim` columns, of which a program has one: [tokens, count·dim] in memory is [tokens·count, dim] to it."""

    tokens: int
    count: int
    dim: int

    @property
    def whole(self) -> tuple[int, int]:
        """The shape of whole rows."""
        return self.tokens, self.count * self.dim

    @property
    def single(self) -> tuple[int, int]:
        """The shape in which each head is a row."""
        return self.tokens * self.count, self.dim


@dataclass(frozen=True)
class RowPart:
    """Ops of a row launch that its other ops neither need nor feed, constants apart, and what they leave in memory: values, and caches that a scatter updates."""

    ops: tuple[Operation, ...]
    stored: tuple[SSAValue, ...]
    heads: Heads | None
    """Where the ops take rows apart into heads and put them together again: then a program has one head."""
    conflict: str = ""
    """Why the heads of the ops do not agree."""

    @property
    def rows(self) -> int:
        """Rows that the programs of the part divide between them."""
        if self.heads is not None:
            return self.heads.single[0]
        return max((result_rows(v.owner)[0] for v in self.stored if isinstance(v.owner, Operation) and result_rows(v.owner)), default=1)

    @property
    def width(self) -> int:
        """Columns that a program needs of the widest value; 0 where all are vectors."""
        if self.heads is not None:
            return self.heads.dim
        return max((sizes[-1] for op in self.ops if len(sizes := result_rows(op)) > 1), default=0)

    @property
    def alone(self) -> bool:
        """Whether the part has programs of its own: a reduction is a chain of waits, two in one program would run one after the other."""
        return self.heads is not None or any(isinstance(op, ReduceOp) for op in self.ops) or self.divided

    @property
    def divided(self) -> bool:
        """Whether several programs share each row: one would take it piece by piece, nothing needs the row as a whole, and all that is stored has its columns."""
        apart = self.heads is None and not any(isinstance(op, ReduceOp | ScatterOp) for op in self.ops)
        return apart and self.width > MAX_ROW and all(shape_of(v)[1:] == (self.width,) for v in self.stored)

    def pieces(self, columns: int) -> int:
        """Programs that share a row, where each takes so many columns."""
        return -(-self.width // columns) if self.divided else 1


def data_operands(op: Operation) -> Sequence[SSAValue]:
    """The operands that carry data between programs' tiles: all but a scatter's cache, which is memory, not a tile."""
    return (op.values, op.slots) if isinstance(op, ScatterOp) else op.operands


def result_rows(op: Operation) -> tuple[int, ...]:
    """The shape that tells an op's rows: that of the values of a scatter, else of the result."""
    return shape_of(op.values) if isinstance(op, ScatterOp) else shape_of(op.results[0])


def row_parts(ops: Sequence[Operation], stored: Sequence[SSAValue]) -> list[RowPart]:
    """The parts of some ops (in order) of which `stored` leave the launch, by their first op. What only moves numbers shares programs by rows."""
    chains = [part for chain in _chains(ops) if (part := _part(chain, stored)).stored]
    merged: dict[int, int] = {}
    out: list[RowPart] = []
    for part in chains:
        place = len(out) if part.alone else merged.setdefault(part.rows, len(out))
        if place == len(out):
            out.append(part)
            continue
        both = {*out[place].ops, *part.ops}
        out[place] = RowPart(tuple(op for op in ops if op in both), (*out[place].stored, *part.stored), None)
    return out


def _chains(ops: Sequence[Operation]) -> list[list[Operation]]:
    """Ops that feed each other, in order; a constant belongs to every chain that uses it."""
    chain_of: dict[Operation, list[Operation]] = {}
    for op in ops:
        if isinstance(op, ConstantOp):
            continue
        own = [op]
        chain_of[op] = own
        for value in data_operands(op):
            before = chain_of.get(value.owner) if isinstance(value.owner, Operation) else None
            if before is not None and before is not own:
                small, own = sorted((before, own), key=len)
                own.extend(small)
                chain_of.update(dict.fromkeys(small, own))
    place = {op: i for i, op in enumerate(ops)}
    chains = {id(chain): chain for chain in chain_of.values()}.values()
    ordered = sorted((sorted(chain, key=place.__getitem__) for chain in chains), key=lambda chain: place[chain[0]])
    constants = [op for op in ops if isinstance(op, ConstantOp)]
    for chain in ordered:
        used = set(chain)
        chain.extend(op for op in constants if any(use.operation in used for use in op.result.uses))
        chain.sort(key=place.__getitem__)
    return [*ordered, *([op] for op in constants if not any(use.operation in place for use in op.result.uses))]


def _part(chain: Sequence[Operation], stored: Sequence[SSAValue]) -> RowPart:
    inside = set(chain)
    heads: Heads | None = None
    conflict = ""
    for op in chain:
        if not isinstance(op, ReshapeOp) or op.input.owner not in inside:
            continue
        found = _heads(shape_of(op.input), shape_of(op.result))
        if found is None:
            conflict = "a reshape reads rows that other programs compute"
        elif heads not in (None, found):
            conflict = f"heads of {found.dim} columns and others meet: a program has one head"
        heads = found or heads
    left = set(stored)
    kept = tuple(r for op in chain for r in op.results if r in left or isinstance(op, ScatterOp))
    return RowPart(tuple(chain), kept, heads, conflict)


def _heads(a: tuple[int, ...], b: tuple[int, ...]) -> Heads | None:
    """The heads that a reshape between two shapes takes apart or puts together; None where it does something else."""
    if len(a) != 2 or len(b) != 2:
        return None
    (tokens, width), (rows, dim) = sorted((a, b))
    return None if rows % tokens or (rows // tokens) * dim != width else Heads(tokens, rows // tokens, dim)

"""Groups of tile ops on their way to become regions: who feeds whom, and which merges would close a cycle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase
from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import ELEMENT_BYTES, element_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import CastOp, ConstantOp, LedgerEntryAttr
from lamella.passes.region_parts import ANCHORS

HANDLES = frozenset({"transformer.weight", "transformer.rope_table", "tile.arrivals"})
HALF_STEP, COPY_STEP = 0.5, 2.0**-24
"""Ops are 1 apart in program order; copies stand between them, each at a place of its own."""


@dataclass(eq=False)
class Group:
    """Ops that will be one region, in program order, and the decisions taken about them."""

    ops: list[Operation]
    ledger: list[LedgerEntryAttr] = field(default_factory=list[LedgerEntryAttr])
    anchored: bool = False
    """Whether an op of the group decides which program computes what."""

    def __post_init__(self) -> None:
        self.anchored = any(isinstance(op, ANCHORS) for op in self.ops)

    @property
    def label(self) -> str:
        """What the group is called in the ledger: its last op that has a location, else its last op; a rounding names nothing else."""
        named = [op for op in self.ops if location(op)]
        telling = [op for op in named if not isinstance(op, CastOp)]
        op = telling[-1] if telling else named[-1] if named else self.ops[-1]
        return f"{op.name} at {location(op)}" if location(op) else op.name


class RegionGraph:
    """The ops of a function in groups. Every op belongs to one group; handles and the terminator to none."""

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        self.order: dict[Operation, float] = {op: i for i, op in enumerate(function.body.block.ops)}
        self.ops = [op for op in self.order if op.name not in HANDLES and not isinstance(op, func.ReturnOp)]
        self.group_of: dict[Operation, Group] = {op: Group([op]) for op in self.ops}
        self.overwriter = _overwriters(function)
        self.waits: dict[Operation, list[Operation]] = {
            writer: [use.operation for use in argument.uses if use.operation is not writer] for argument, writer in self.overwriter.items()
        }
        self.copies = 0
        # Whether everything an op waits for stands before it in the text; an overwrite may stand before a read of the old value.
        self.forward = all(self.order[reader] < self.order[op] for op, readers in self.waits.items() for reader in readers)

    def groups(self) -> list[Group]:
        """All groups, by their first op."""
        seen: dict[Group, None] = {}
        for op in self.ops:
            seen.setdefault(self.group_of[op])
        return self.sorted(seen)

    def producers(self, group: Group) -> set[Group]:
        """The groups that must run before `group`."""
        found: set[Group] = set()
        for op in group.ops:
            for before in _before(op, self.waits):
                owner = self.group_of.get(before)
                if owner is not None and owner is not group:
                    found.add(owner)
        return found

    def feeders(self, group: Group) -> list[Group]:
        """The groups whose results `group` reads, by their first op."""
        owners = {self.group_of.get(v.owner) for op in group.ops for v in op.operands if isinstance(v.owner, Operation)}
        return self.sorted(g for g in owners if g is not None and g is not group)

    def users(self, value: SSAValue) -> list[Group | None]:
        """The groups that use `value`; None stands for the function's terminator."""
        return list({self.group_of.get(use.operation): None for use in value.uses})

    def consumers(self, group: Group) -> set[Group | None]:
        """The groups that use results of `group`; None stands for the function's terminator."""
        return {user for op in group.ops for result in op.results for user in self.users(result) if user is not group}

    def readers(self, group: Group) -> list[Group]:
        """The groups that use results of `group`, by their first op."""
        return self.sorted(g for g in self.consumers(group) if g is not None)

    def reaches(self, source: Group, targets: Iterable[Group]) -> bool:
        """Whether some target depends on `source`, directly or not."""
        floor = self.order[source.ops[0]]
        seen: set[Group] = set()
        work = list(targets)
        while work:
            group = work.pop()
            if group is source:
                return True
            # In text order, a group whose ops all precede the source cannot depend on it.
            if group in seen or (self.forward and self.order[group.ops[-1]] < floor):
                continue
            seen.add(group)
            work.extend(self.producers(group))
        return False

    def closes_cycle(self, a: Group, b: Group) -> bool:
        """Whether merging two groups would make the merged one depend on itself through a third."""
        through_a = self.producers(a) - {a, b}
        through_b = self.producers(b) - {a, b}
        return self.reaches(a, through_b) or self.reaches(b, through_a)

    def in_order(self, ops: Iterable[Operation]) -> list[Operation]:
        """Ops in program order."""
        return sorted(ops, key=self.order.__getitem__)

    def merge(self, into: Group, other: Group, entry: LedgerEntryAttr | None = None) -> None:
        """Moves the ops of `other` to `into` and records the decision."""
        into.ledger.extend(other.ledger)
        if entry is not None:
            into.ledger.append(entry)
        into.ops = self.in_order([*into.ops, *other.ops])
        into.anchored = into.anchored or other.anchored
        for op in other.ops:
            self.group_of[op] = into

    def split(self, group: Group, ops: Collection[Operation]) -> Group:
        """Moves some ops of a group, and the constants that only they use, to a new one, which has no ledger yet."""
        own = {op for op in group.ops if isinstance(op, ConstantOp) and all(use.operation in ops for use in op.result.uses)}
        moved = Group([op for op in group.ops if op in ops or op in own])
        group.ops = [op for op in group.ops if op not in ops and op not in own]
        group.anchored = any(isinstance(op, ANCHORS) for op in group.ops)
        for op in moved.ops:
            self.group_of[op] = moved
        return moved

    def copy_for(self, group: Group, reader: Group) -> Group:
        """A copy of the ops of `group`, in order, that `reader` uses in their place; it stands before the first op that does."""
        results = {r for op in group.ops for r in op.results}
        first = next(op for op in reader.ops if any(v in results for v in op.operands))
        inside = set(reader.ops)
        mapped: dict[SSAValue, SSAValue] = {}
        made = Group([])
        for op in group.ops:
            copy = op.clone(value_mapper=mapped)
            for old, new in zip(op.results, copy.results, strict=True):
                new.name_hint = old.name_hint
                old.replace_uses_with_if(new, lambda use: use.operation in inside)
            self.function.body.block.insert_op_before(copy, first)
            self.copies += 1
            self.order[copy] = self.order[first] - HALF_STEP + self.copies * COPY_STEP
            self._wait_for(copy)
            made.ops.append(copy)
            self.group_of[copy] = made
        self.ops.extend(made.ops)
        return made

    def _wait_for(self, reader: Operation) -> None:
        """Keeps `reader` before the ops that overwrite its operands."""
        for value in reader.operands:
            writer = self.overwriter.get(value)
            if writer is not None:
                self.waits[writer].append(reader)
                self.forward = self.forward and self.order[reader] < self.order[writer]

    def remove(self, group: Group) -> None:
        """Erases the ops of a group that nothing uses any more."""
        gone = set(group.ops)
        for op in reversed(group.ops):
            del self.group_of[op], self.order[op]
            op.detach()
            op.erase()
        self.ops = [op for op in self.ops if op not in gone]

    def schedule(self) -> list[Group]:
        """The groups in an order that respects data and overwrites, nearest to program order. Raises AssertionError on a cycle."""
        state: dict[Group, bool] = {}
        ordered: list[Group] = []
        for root in self.groups():
            stack: list[tuple[Group, Iterator[Group]]] = []
            if root not in state:
                state[root] = False
                stack.append((root, iter(self.sorted(self.producers(root)))))
            while stack:
                group, pending = stack[-1]
                nxt = next(pending, None)
                if nxt is None:
                    state[group] = True
                    ordered.append(group)
                    stack.pop()
                elif nxt not in state:
                    state[nxt] = False
                    stack.append((nxt, iter(self.sorted(self.producers(nxt)))))
                else:
                    assert state[nxt], f"regions {group.label} and {nxt.label} wait for each other"
        return ordered

    def sorted(self, groups: Iterable[Group]) -> list[Group]:
        """Groups by their first op, those of equal place by their last."""
        return sorted(groups, key=lambda g: self.order[g.ops[0]])


def _before(op: Operation, waits: dict[Operation, list[Operation]]) -> Iterator[Operation]:
    for value in op.operands:
        if isinstance(value.owner, Operation):
            yield value.owner
    yield from waits.get(op, ())


def _overwriters(function: func.FuncOp) -> dict[SSAValue, Operation]:
    """For each argument whose storage a result takes over (`lamella.tied`): the op of that result; the argument's other readers come first."""
    tied = function.attributes.get("lamella.tied")
    terminator = function.body.block.last_op
    if not isinstance(tied, DenseArrayBase) or terminator is None:
        return {}
    return {
        function.body.block.args[int(index)]: value.owner
        for value, index in zip(terminator.operands, tied.get_values(), strict=True)
        if int(index) >= 0 and isinstance(value.owner, Operation)
    }


def value_bytes(value: SSAValue) -> int:
    """Bytes of a tensor; 0 for a cache, whose size is not static and which no launch moves as a whole."""
    size = ELEMENT_BYTES[element_of(value)]
    for n in shape_of(value):
        if n == DYNAMIC_INDEX:
            return 0
        size *= n
    return size

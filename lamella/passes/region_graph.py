"""Groups of tile ops on their way to become regions: who feeds whom, and which merges would close a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import DenseArrayBase
from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects.attributes import ELEMENT_BYTES, Value, element_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import LedgerEntryAttr

HANDLES = frozenset({"transformer.weight", "transformer.rope_table"})


@dataclass(eq=False)
class Group:
    """Ops that will be one region, in program order, and the decisions taken about them."""

    ops: list[Operation]
    ledger: list[LedgerEntryAttr] = field(default_factory=list[LedgerEntryAttr])

    @property
    def label(self) -> str:
        """What the group is called in the ledger: its last op that has a location, else its last op."""
        for op in reversed(self.ops):
            if location(op):
                return f"{op.name} at {location(op)}"
        return self.ops[-1].name


class RegionGraph:
    """The ops of a function in groups. Every op belongs to one group; handles and the terminator to none."""

    def __init__(self, function: func.FuncOp) -> None:
        self.function = function
        self.order = {op: i for i, op in enumerate(function.body.block.ops)}
        self.ops = [op for op in self.order if op.name not in HANDLES and not isinstance(op, func.ReturnOp)]
        self.group_of: dict[Operation, Group] = {op: Group([op]) for op in self.ops}
        self.waits: dict[Operation, list[Operation]] = _overwrites(function)
        # Whether everything an op waits for stands before it in the text; an overwrite may stand before a read of the old value.
        self.forward = all(self.order[reader] < self.order[op] for op, readers in self.waits.items() for reader in readers)

    def groups(self) -> list[Group]:
        """All groups, by their first op."""
        seen: dict[Group, None] = {}
        for op in self.ops:
            seen.setdefault(self.group_of[op])
        return list(seen)

    def producers(self, group: Group) -> set[Group]:
        """The groups that must run before `group`."""
        found: set[Group] = set()
        for op in group.ops:
            for before in _before(op, self.waits):
                owner = self.group_of.get(before)
                if owner is not None and owner is not group:
                    found.add(owner)
        return found

    def users(self, value: SSAValue) -> list[Group | None]:
        """The groups that use `value`; None stands for the function's terminator."""
        return list({self.group_of.get(use.operation): None for use in value.uses})

    def consumers(self, group: Group) -> set[Group | None]:
        """The groups that use results of `group`."""
        return {user for op in group.ops for result in op.results for user in self.users(result) if user is not group}

    def reaches(self, source: Group, targets: Iterable[Group]) -> bool:
        """Whether some target depends on `source`, directly or not."""
        floor = min(self.order[op] for op in source.ops)
        seen: set[Group] = set()
        work = list(targets)
        while work:
            group = work.pop()
            if group is source:
                return True
            # In text order, a group whose ops all precede the source cannot depend on it.
            if group in seen or (self.forward and max(self.order[op] for op in group.ops) < floor):
                continue
            seen.add(group)
            work.extend(self.producers(group))
        return False

    def closes_cycle(self, a: Group, b: Group) -> bool:
        """Whether merging two groups would make the merged one depend on itself through a third."""
        through_a = self.producers(a) - {a, b}
        through_b = self.producers(b) - {a, b}
        return self.reaches(a, through_b) or self.reaches(b, through_a)

    def merge(self, into: Group, other: Group, verdict: str, facts: dict[str, Value]) -> None:
        """Moves the ops of `other` to `into` and records the decision."""
        into.ledger.extend(other.ledger)
        into.ledger.append(LedgerEntryAttr.of(verdict, facts))
        into.ops = sorted([*into.ops, *other.ops], key=self.order.__getitem__)
        for op in other.ops:
            self.group_of[op] = into

    def schedule(self) -> list[Group]:
        """The groups in an order that respects data and overwrites, nearest to program order. Raises AssertionError on a cycle."""
        groups = self.groups()
        state: dict[Group, bool] = {}
        ordered: list[Group] = []
        for root in groups:
            stack: list[tuple[Group, Iterator[Group]]] = []
            if root not in state:
                state[root] = False
                stack.append((root, iter(self._sorted(self.producers(root)))))
            while stack:
                group, pending = stack[-1]
                nxt = next(pending, None)
                if nxt is None:
                    state[group] = True
                    ordered.append(group)
                    stack.pop()
                elif nxt not in state:
                    state[nxt] = False
                    stack.append((nxt, iter(self._sorted(self.producers(nxt)))))
                else:
                    assert state[nxt], f"regions {group.label} and {nxt.label} wait for each other"
        return ordered

    def _sorted(self, groups: set[Group]) -> list[Group]:
        return sorted(groups, key=lambda g: self.order[g.ops[0]])


def _before(op: Operation, waits: dict[Operation, list[Operation]]) -> Iterator[Operation]:
    for value in op.operands:
        if isinstance(value.owner, Operation):
            yield value.owner
    yield from waits.get(op, ())


def _overwrites(function: func.FuncOp) -> dict[Operation, list[Operation]]:
    """For each op whose result takes over an argument's storage (`lamella.tied`): the other readers of that argument, which come first."""
    tied = function.attributes.get("lamella.tied")
    terminator = function.body.block.last_op
    if not isinstance(tied, DenseArrayBase) or terminator is None:
        return {}
    waits: dict[Operation, list[Operation]] = {}
    for value, index in zip(terminator.operands, tied.get_values(), strict=True):
        if int(index) < 0 or isinstance(value, BlockArgument) or not isinstance(value.owner, Operation):
            continue
        argument = function.body.block.args[int(index)]
        readers = [use.operation for use in argument.uses if use.operation is not value.owner]
        waits.setdefault(value.owner, []).extend(readers)
    return waits


def value_bytes(value: SSAValue) -> int:
    """Bytes of a tensor with static shape."""
    size = ELEMENT_BYTES[element_of(value)]
    for n in shape_of(value):
        size *= n
    return size

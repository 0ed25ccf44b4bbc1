"""The groups that `fuse-regions` made and the names of two ops go in; why they share a launch, or why they do not, leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.ir import Operation

from lamella.dialects.messages import location
from lamella.errors import PassError, nearest
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.fusion import Fusion
from lamella.passes.fusion_policy import matches
from lamella.passes.region_graph import Group
from lamella.passes.region_parts import ANCHORS

LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True)
class Edge:
    """Two regions of which the second reads the first, and what the gate says of joining them."""

    kind: str
    producer: str
    consumer: str
    accepted: bool
    reason: str
    benefit_us: float | None = None
    """What the join would save less what it would cost; None where no schedule exists, so that there is nothing to price."""
    registers: int = 0


@dataclass(frozen=True)
class Answer:
    """Whether two ops share a launch, and why."""

    first: str
    second: str
    together: bool
    regions: tuple[tuple[str, ...], ...]
    """Locations of the ops in the region of each; one where it is the same."""
    edges: tuple[Edge, ...] = ()
    """From the region of the one to that of the other: their own edge, or those of the shortest path; none where neither needs the other."""
    alone: str = ""
    """What the oracle says of the two regions as one, whatever lies between them."""
    recorded: tuple[Mapping[str, object], ...] = ()
    """Entries of the ledger about the two."""

    def as_dict(self) -> dict[str, object]:
        """The answer as JSON."""
        edges = [vars(edge) for edge in self.edges]
        return {**vars(self), "edges": edges, "regions": [list(r) for r in self.regions], "recorded": [dict(e) for e in self.recorded]}


@dataclass(frozen=True)
class Questions:
    """Answers about one function, after `Fusion.run`."""

    fusion: Fusion
    layer: int | None = field(default=None)
    """The layer that a name without one stands for."""

    def find(self, name: str) -> list[Operation]:
        """The ops that a name means: a location, the end of one (`ffn.gate`, in one layer), the name or kind of an op. Raises PassError.

        Of the ops of a projection it is the contraction: what follows has a place of its own.
        """
        found = self.named(name)
        return [op for op in found if isinstance(op, ANCHORS)] or found

    def named(self, name: str) -> list[Operation]:
        """All ops that a name means."""
        ops = [op for op in self.fusion.graph.ops if location(op)]
        exact = [op for op in ops if location(op) == name]
        if exact:
            return exact
        ends = [op for op in ops if location(op).endswith(f".{name}")]
        found = ends or [op for op in ops if matches(op, name)]
        if not found:
            known = {location(op) for op in ops} | {LAYER.sub("", location(op)) for op in ops}
            raise PassError(f"no op '{name}'", remedy=nearest(name, known))
        return self.of_one_layer(found)

    def of_one_layer(self, ops: Sequence[Operation]) -> list[Operation]:
        """Of ops in several layers those of one: the second, which is like all that follow it, where nothing else is said."""
        layers = sorted({int(found[1]) for op in ops if (found := LAYER.match(location(op)))})
        if not layers:
            return list(ops)
        wanted = self.layer if self.layer in layers else layers[min(1, len(layers) - 1)]
        return [op for op in ops if location(op).startswith(f"layers.{wanted}.")]

    def ask(self, first: str, second: str) -> Answer:
        """Why the two are one launch or several. Raises PassError for a name no op has, with the nearest ones."""
        mine = self.find(first)
        own = LAYER.match(location(mine[0]))
        theirs = Questions(self.fusion, int(own[1]) if own else self.layer).find(second)
        groups = [self.groups_of(ops) for ops in (mine, theirs)]
        names = (location(mine[0]), location(theirs[0]))
        shared = next((g for g in groups[0] if g in groups[1]), None)
        if shared is not None:
            return Answer(*names, True, (runs(shared),), recorded=about(shared, names))
        path = self.path(groups[0], groups[1]) or self.path(groups[1], groups[0])
        ends = (path[0], path[-1]) if path else (groups[0][-1], groups[1][0])
        merged = self.fusion.graph.in_order([*ends[0].ops, *ends[1].ops])
        answer = feasible_schedules(merged)
        alone = f"{answer.skeletons[0]} would fit" if answer else "; ".join(answer.reasons)
        edges = tuple(self.edge(a, b) for a, b in pairwise(path))
        recorded = tuple(entry for group in ends for entry in about(group, names))
        return Answer(*names, False, (runs(ends[0]), runs(ends[1])), edges, alone, recorded)

    def groups_of(self, ops: Sequence[Operation]) -> list[Group]:
        """The groups that hold some ops, in program order."""
        return list(dict.fromkeys(self.fusion.graph.group_of[op] for op in ops))

    def path(self, sources: Sequence[Group], targets: Sequence[Group]) -> list[Group]:
        """The shortest way from one of some groups to one of others, along the values that are read; empty where there is none."""
        before: dict[Group, Group | None] = dict.fromkeys(sources)
        work = list(sources)
        for group in work:
            if group in targets:
                way = [group]
                while (step := before[way[0]]) is not None:
                    way.insert(0, step)
                return way
            for reader in self.fusion.graph.readers(group):
                if reader not in before:
                    before[reader] = group
                    work.append(reader)
        return []

    def edge(self, producer: Group, consumer: Group) -> Edge:
        """What the gate says of two neighbours."""
        kind = self.fusion.gate.kind_of(producer, consumer)
        answer = self.fusion.gate.judge(kind, producer, consumer)
        benefit = None if answer.account is None else round(answer.account.benefit(self.fusion.target), 3)
        return Edge(kind, producer.label, consumer.label, answer.accepted, answer.reason, benefit, answer.registers)


def runs(group: Group) -> tuple[str, ...]:
    """The locations of the ops in a group, in order."""
    return tuple(dict.fromkeys(location(op) for op in group.ops if location(op)))


def about(group: Group, names: Sequence[str]) -> tuple[Mapping[str, object], ...]:
    """The entries of a group's ledger that join or refuse the two by name; where there are none, those that name one of them, but for
    the joins within a chain."""
    both: list[Mapping[str, object]] = []
    either: list[Mapping[str, object]] = []
    for entry in (entry.as_dict() for entry in group.ledger):
        sides = {str(entry.get(side, "")).rpartition(" at ")[2] for side in ("producer", "consumer")}
        if sides == set(names):
            both.append(entry)
        elif sides & set(names) and entry.get("kind") != "vertical":
            either.append(entry)
    return tuple(both or either)

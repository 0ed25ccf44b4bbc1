"""A function of tile ops goes in; its ops in groups leave, each group to be one region, with the record of why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue

from lamella.dialects import signature
from lamella.dialects.attributes import Value
from lamella.dialects.tile import CastOp, ConstantOp, ContractExpertsOp, ContractOp, DequantizeOp, LedgerEntryAttr
from lamella.errors import PassError
from lamella.passes.choose_schedule import longest_query
from lamella.passes.device import Device
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.fusion_cost import Account, crossing_bytes, join_account
from lamella.passes.fusion_gate import STEP_OF, STEPS, Gate, Judgement, Limits, outputs_for, repeated_ops
from lamella.passes.fusion_policy import Policy
from lamella.passes.library import LibraryCall, call_of, in_library
from lamella.passes.region_graph import Group, RegionGraph, value_bytes
from lamella.passes.region_parts import ELEMENTWISE, parts
from lamella.passes.row_parts import data_operands


@dataclass
class Fusion:
    """The groups of one function while they grow, step by step; `gate` can be asked about any pair at any time."""

    function: func.FuncOp
    target: Device
    limits: Limits
    policy: Policy
    graph: RegionGraph = field(init=False)
    gate: Gate = field(init=False)
    joins: dict[str, int] = field(default_factory=dict[str, int])
    """Joins by kind."""
    misses: dict[str, tuple[float, str]] = field(default_factory=dict[str, "tuple[float, str]"])
    """For each kind the refusal with the largest benefit."""

    def __post_init__(self) -> None:
        self.graph = RegionGraph(self.function)
        self.gate = Gate(self.graph, self.target, self.limits, self.policy, longest_query(self.function))

    def run(self) -> None:
        """All steps, then what the policy forces, then a record of every edge that is left."""
        self.drop_unused()
        self.place_constants()
        self.join_library()
        if self.limits.max_depth != 0:
            self.join_decoders()
            self.join_vertical()
            self.join_horizontal()
            self.join_epilogues()
            self.join_prologues()
            self.join_shared()
            self.join_siblings()
            self.reunite()
        self.force()
        self.settle()

    def join(self, kind: str, producer: Group, consumer: Group, into: Group | None = None) -> Judgement:
        """Joins two groups if the gate lets them; records it in the ledger of the region."""
        answer = self.gate.judge(kind, producer, consumer)
        if answer.accepted:
            self.merge(kind, producer, consumer, answer, into)
        else:
            self.miss(kind, answer, producer, consumer)
        return answer

    def merge(self, kind: str, producer: Group, consumer: Group, answer: Judgement, into: Group | None = None) -> None:
        """Joins two groups and records it; the region keeps the identity of `into`, else that of its anchor, else of the consumer."""
        keep = into or (producer if producer.anchored else consumer)
        entry = self.entry(kind, producer, consumer, answer)
        self.graph.merge(keep, producer if keep is consumer else consumer, entry)
        self.joins[kind] = self.joins.get(kind, 0) + 1

    def entry(self, kind: str, producer: Group, consumer: Group, answer: Judgement) -> LedgerEntryAttr:
        """The record of an accepted join."""
        account = answer.account or Account(0, 1)
        facts: dict[str, Value] = {
            "kind": kind,
            "producer": producer.label,
            "consumer": consumer.label,
            "bytes": account.bytes,
            "launches": account.launches,
            "benefit_us": round(account.benefit(self.target), 3),
            "registers": answer.registers,
            "reason": answer.reason,
        }
        return LedgerEntryAttr.of("joined", facts)

    def miss(self, kind: str, answer: Judgement, producer: Group, consumer: Group) -> None:
        """Remembers the refusal of a kind that would have gained most."""
        benefit = (answer.account or join_account(producer, consumer)).benefit(self.target)
        if kind not in self.misses or benefit > self.misses[kind][0]:
            self.misses[kind] = (benefit, f"{producer.label} into {consumer.label}: {answer.reason}")

    # The steps

    def drop_unused(self) -> None:
        """Erases ops whose results nothing uses: they would be launches that leave nothing behind."""
        for op in reversed(list(self.graph.ops)):
            if not any(result.uses for result in op.results):
                self.graph.remove(self.graph.group_of[op])

    def place_constants(self) -> None:
        """Gives each user of a constant its own, in its group: a number is no launch."""
        for op in [op for op in self.graph.ops if isinstance(op, ConstantOp)]:
            group = self.graph.group_of[op]
            for reader in self.graph.readers(group):
                self.graph.merge(reader, self.graph.copy_for(group, reader))
            if not op.result.uses:
                self.graph.remove(group)

    def join_library(self) -> None:
        """Joins to each contraction of the library what one call of it computes: no choice is left, and the oracle refuses everything else."""
        for op in [op for op in self.graph.ops if isinstance(op, ContractOp) and in_library(op)]:
            call, group = call_of(op), self.graph.group_of[op]
            if not isinstance(call, LibraryCall):
                continue
            for other in call.ops[1:]:
                part = self.graph.group_of[other]
                # What is widened feeds the sum; the sum and its rounding follow the product.
                pair = (group, part) if any(v.owner in group.ops for v in other.operands) else (part, group)
                self.merge("library", *pair, Judgement(True, "part of the library's call", join_account(*pair)), into=group)

    def join_decoders(self) -> None:
        """Joins what unpacks a weight to the contraction that reads it; one that several read goes to each."""
        for op in [op for op in self.graph.ops if isinstance(op, DequantizeOp)]:
            group = self.graph.group_of[op]
            for reader in self.graph.readers(group)[1:]:
                self.join("decode", self.graph.copy_for(group, reader), reader)
            for reader in self.graph.readers(group):
                self.join("decode", group, reader)

    def join_vertical(self) -> None:
        """Joins maps, casts, reductions, rotations and gathers to their one consumer of the same kind, from the last op to the first.

        A widening cast with several consumers goes to each: storing the wider value would cost more than making it again.
        """
        for op in reversed(list(self.graph.ops)):
            group = self.graph.group_of[op]
            if group.anchored or isinstance(op, (ConstantOp, DequantizeOp)):
                continue
            if is_widening(op) and "vertical" in self.limits.on:
                for reader in self.graph.readers(group)[1:]:
                    copy = self.graph.copy_for(group, reader)
                    if not reader.anchored:
                        self.join("vertical", copy, reader)
            consumers = self.graph.consumers(group)
            consumer = next(iter(consumers)) if len(consumers) == 1 else None
            if consumer is None or consumer.anchored:
                continue
            if all(r in data_operands(use.operation) for r in op.results for use in r.uses):  # a scatter's cache is memory, not a tile
                self.join("vertical", group, consumer)

    def join_horizontal(self) -> None:
        """Joins contractions on one x: it is read once, and the grid is wider."""
        by_x: dict[SSAValue, list[Group]] = {}
        for op in self.graph.ops:
            if not isinstance(op, ContractOp | ContractExpertsOp):
                continue
            group = self.graph.group_of[op]
            known = by_x.setdefault(op.x, [])
            if group not in known and not any(self.join("horizontal", first, group, into=first).accepted for first in known):
                known.append(group)

    def join_epilogues(self) -> None:
        """Joins each chain to the anchor that feeds it, to the one of the largest benefit where there are several; else its first ops."""
        for group in self.graph.schedule():
            if self.gone(group) or group.anchored:
                continue
            anchors = [g for g in self.graph.feeders(group) if g.anchored]
            by_benefit = sorted(anchors, key=lambda a: (-join_account(a, group).benefit(self.target), -self.graph.order[a.ops[-1]]))
            if any(self.join("epilogue", anchor, group).accepted for anchor in by_benefit):
                continue
            if not any(self.leave_repeated(anchor, group) for anchor in by_benefit):
                any(self.peel(anchor, group) for anchor in by_benefit)

    def leave_repeated(self, anchor: Group, group: Group) -> bool:
        """Joins a chain without what does not depend on the anchor: a reduction, say, that every program would repeat."""
        merged = self.graph.in_order([*anchor.ops, *group.ops])
        apart = repeated_ops(parts(merged), group) if any(isinstance(op, ContractOp) for op in anchor.ops) else []
        if not apart or len(apart) == len(group.ops):
            return False
        part = self.graph.split(group, set(apart))
        if self.join("epilogue", anchor, group).accepted:
            return True
        self.graph.merge(group, part)
        return False

    def peel(self, anchor: Group, group: Group) -> bool:
        """Joins the first ops of a chain to the anchor before it, where the value at the cut is then smaller than what the anchor made."""
        inside, taken = set(group.ops), list[Operation]()
        best, fewest = list[Operation](), crossing_bytes(anchor.ops, inside, {*anchor.ops, *inside})
        for op in group.ops:
            if isinstance(op, ConstantOp) or not any(v.owner in (*anchor.ops, *taken) for v in op.operands):
                continue
            longer = self.graph.in_order({*taken, *self.chain_before(op, inside)})
            answer = feasible_schedules(self.graph.in_order([*anchor.ops, *longer]))
            if not answer or len(longer) == len(group.ops):  # the whole chain was refused, be it for a cycle
                continue
            taken = longer
            made = [*anchor.ops, *taken]
            crossing = crossing_bytes(made, inside - set(taken), {*anchor.ops, *inside})
            if crossing < fewest:
                best, fewest = list(taken), crossing
        if not best:
            return False
        part = self.graph.split(group, set(best))
        if self.join("epilogue", anchor, part).accepted:
            return True
        self.graph.merge(group, part)
        return False

    @staticmethod
    def chain_before(op: Operation, inside: set[Operation]) -> set[Operation]:
        """`op` and what it needs of its own chain."""
        found: set[Operation] = set()
        work = [op]
        while work:
            here = work.pop()
            if here not in found:
                found.add(here)
                work.extend(v.owner for v in here.operands if isinstance(v.owner, Operation) and v.owner in inside)
        return found

    def join_prologues(self) -> None:
        """Joins a chain to the contractions it feeds, where the launch and the bytes it saves outweigh computing it in every program."""
        for group in reversed(self.graph.schedule()):
            consumers = self.graph.consumers(group)
            consumer = next(iter(consumers)) if len(consumers) == 1 else None
            if consumer is not None and consumer.anchored and not group.anchored:
                self.join("prologue", group, consumer)

    def join_shared(self) -> None:
        """Joins a chain that several regions use: each computes it, if that costs less than a launch of it; else one of them stores it."""
        for group in reversed(self.graph.schedule()):
            if self.gone(group) or group.anchored or len(self.graph.consumers(group)) < 2:
                continue
            if self.copy_to_all(group):
                continue
            self.store_in_one(group)

    def store_in_one(self, group: Group) -> None:
        """Joins a group to the readers that can take it in, the one of the largest benefit first."""
        tried: set[Group] = set()
        while True:
            readers = [r for r in self.graph.readers(group) if not r.anchored and r not in tried]
            if not readers:
                return
            reader = max(readers, key=lambda r: join_account(group, r).benefit(self.target))
            tried.add(reader)
            if self.join("shared", group, reader).accepted:
                group = reader

    def copy_to_all(self, group: Group) -> bool:
        """Lets every reader of an elementwise chain compute it for itself, where that is possible for all and pays."""
        consumers = self.graph.consumers(group)
        readers = self.graph.readers(group)
        if None in consumers or "shared" not in self.limits.on or not all(isinstance(op, ELEMENTWISE) for op in group.ops):
            return False
        answers = [self.gate.judge("shared", group, reader, copied=True) for reader in readers]
        written = sum(value_bytes(v) for reader in readers[:1] for v in outputs_for(group, reader))
        gain = self.target.launch_us + written / self.target.bandwidth * 1e6
        benefit = gain + sum(a.account.benefit(self.target) for a in answers if a.account is not None)
        if not all(a.accepted for a in answers) or benefit <= 0:
            return False
        reason = f"each of {len(readers)} readers computes it: saves {benefit:.2f} us in all"
        for reader, answer in zip(readers, answers, strict=True):
            last = reader is readers[-1]
            copy = group if last else self.graph.copy_for(group, reader)
            assert answer.account is not None
            account = Account(
                answer.account.bytes + (written if last else 0),
                int(last),
                answer.account.recomputation,
                answer.account.parallelism,
                answer.account.compile,
            )
            self.merge("shared", copy, reader, Judgement(True, reason, account, answer.registers), into=reader)
        return True

    def join_siblings(self) -> None:
        """Joins row regions that need nothing of each other: those that wait for nothing, those nothing waits for, and readers of one anchor.

        One launch runs them, of the same programs where they have the same rows, else each by programs of its own.
        """
        for at_end in (False, True):
            self.join_apart(g for g in self.graph.groups() if not (self.graph.readers(g) if at_end else self.graph.producers(g)))
        # What an anchor computes is read nearby, but angles and slots are in all layers: their readers would make pairs of layers.
        for group in self.graph.schedule():
            if group.anchored:
                self.join_apart(self.graph.readers(group))

    def join_apart(self, groups: Iterable[Group]) -> None:
        """Joins the row groups among some, each to the first that takes it."""
        first: list[Group] = []
        for group in [g for g in groups if not g.anchored]:
            if not any(not self.follow_each_other(into, group) and self.join("sibling", into, group, into=into).accepted for into in first):
                first.append(group)

    def follow_each_other(self, a: Group, b: Group) -> bool:
        """Whether one of two groups depends on the other, be it that it overwrites what the other reads.

        One that updates a cache after the other does so elsewhere in it, which is no dependence of programs.
        """
        before, after = (a, b) if self.graph.reaches(a, [b]) else (b, a) if self.graph.reaches(b, [a]) else (None, None)
        if before is None or after is None:
            return False
        made = {r for op in before.ops for r in op.results}
        reads = [v in data_operands(op) for op in after.ops for v in op.operands if v in made]
        return not reads or any(reads)

    def reunite(self) -> None:
        """Takes back copies of a widening cast that no region took in: one of them serves all."""
        alone: dict[tuple[SSAValue, str], Group] = {}
        for group in self.graph.groups():
            op = group.ops[0]
            if len(group.ops) != 1 or not isinstance(op, CastOp):
                continue
            kept = alone.setdefault((op.input, str(op.result.type)), group)
            if kept is not group:
                op.result.replace_all_uses_with(kept.ops[0].results[0])
                self.graph.remove(group)

    def force(self) -> None:
        """Joins the pairs that the policy forces and no step took. Raises PassError where the oracle finds no schedule for a pair."""
        for rule in [r for r in self.policy.rules if r.action == "force"]:
            joined = True
            while joined:
                joined = False
                for producer, consumer in self.edges():
                    if self.policy.between(producer.ops, consumer.ops) is not rule:
                        continue
                    answer = self.join("forced", producer, consumer)
                    if not answer.accepted:
                        where = f"policy: {rule}"
                        raise PassError(f"{producer.label} and {consumer.label} cannot be one launch: {answer.reason}", where=where)
                    joined = True
                    break
            if not any(rule.covers(g.ops, g.ops) for g in self.graph.groups()):
                self.misses["policy"] = (0.0, f"no edge of the graph matches {rule}")

    def settle(self) -> None:
        """Records why each edge that is left stays an edge; joins what only now fits."""
        joined = self.limits.max_depth != 0
        while joined:
            joined = False
            for producer, consumer in self.edges():
                if self.gone(producer) or self.gone(consumer):
                    continue
                kind = self.gate.kind_of(producer, consumer)
                if kind != "anchors" and self.join(kind, producer, consumer).accepted:
                    joined = True
        for producer, consumer in self.edges():
            kind = self.gate.kind_of(producer, consumer)
            answer = self.gate.judge(kind, producer, consumer)
            self.refuse(kind, producer, consumer, answer.reason)

    def refuse(self, kind: str, producer: Group, consumer: Group, reason: str) -> None:
        """Records a join that was considered and not taken, with the consumer."""
        facts: dict[str, Value] = {"kind": kind, "producer": producer.label, "consumer": consumer.label, "reason": reason}
        consumer.ledger.append(LedgerEntryAttr.of("refused", facts))

    # Views

    def gone(self, group: Group) -> bool:
        """Whether another group has taken in this one."""
        return self.graph.group_of.get(group.ops[0]) is not group

    def edges(self) -> Iterator[tuple[Group, Group]]:
        """Pairs of groups of which the second reads a result of the first, by consumer."""
        for consumer in self.graph.groups():
            for producer in self.graph.feeders(consumer):
                yield producer, consumer

    def record_idle(self) -> None:
        """Notes on the function the steps that are on and joined nothing, with what came nearest."""
        kinds = {step: next((k for k, s in STEP_OF.items() if s == step), step) for step in STEPS if step in self.limits.on}
        idle = {step: self.misses.get(kind, (0.0, ""))[1] for step, kind in kinds.items() if not self.joins.get(kind)}
        if "policy" in self.misses:
            idle["policy"] = self.misses["policy"][1]
        notes = [{"pass": "fuse-regions", "step": step, "reason": f"nearest: {miss}"} for step, miss in idle.items() if miss]
        nothing = [step for step, miss in idle.items() if not miss]
        if nothing:
            notes.append({"pass": "fuse-regions", "step": ", ".join(nothing), "reason": "no pair to consider"})
        signature.note_idle(self.function, notes)


def is_widening(op: Operation) -> bool:
    """Whether an op is a cast to a type that takes at least as many bytes."""
    return isinstance(op, CastOp) and value_bytes(op.input) <= value_bytes(op.result)

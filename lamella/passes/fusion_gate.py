"""Two groups of ops go in; whether they become one region leaves, with the reason and the account of what it saves and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.tile import ContractExpertsOp, ContractOp, GatherOp, ReduceOp
from lamella.passes.choose_schedule import schedule_for
from lamella.passes.device import Device
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.fusion_cost import Account, depth, join_account, lost_parallelism, recomputation, spread, summed_beside
from lamella.passes.fusion_policy import Policy
from lamella.passes.region_graph import Group, RegionGraph
from lamella.passes.region_parts import Parts, parts
from lamella.passes.registers import registers

REASONS = {
    "vertical": "one consumer, same rows",
    "horizontal": "contractions on one x",
    "epilogue": "computed where its operands already are",
    "decode": "unpacked where it is read: its floats are never stored",
    "shared": "its value leaves the region too, for the other readers",
    "sibling": "no dependence: programs of one launch",
    "forced": "the policy asks for it",
}
STEPS = ("vertical", "horizontal", "epilogue", "prologue", "shared", "siblings")
"""The steps that options switch."""
STEP_OF = {"sibling": "siblings"}
"""The option that switches a kind of join, where it is not called like the kind."""


@dataclass(frozen=True)
class Limits:
    """What the pass was told: the steps that are on, and how far a region may grow."""

    on: frozenset[str]
    max_depth: int | None = None
    max_registers: int = 255


@dataclass(frozen=True)
class Judgement:
    """The answer about one pair: whether they join, why or why not, and the account, where it came to that."""

    accepted: bool
    reason: str
    account: Account | None = None
    registers: int = 0
    near: bool = False
    """Refused by a limit, a switch or the price, not by the oracle."""


@dataclass(frozen=True)
class Gate:
    """What every join passes: the policy, cycles, the oracle, the limits and the price. It can be asked at any time."""

    graph: RegionGraph
    target: Device
    limits: Limits
    policy: Policy
    longest: int
    """The most tokens one sequence has in a step."""

    def judge(self, kind: str, producer: Group, consumer: Group, *, copied: bool = False) -> Judgement:
        """Whether two groups join. `copied`: the consumer would compute the producer for itself, the original stays for others."""
        rule = self.policy.between(producer.ops, consumer.ops)
        if rule is not None and rule.action == "forbid":
            return Judgement(False, f"the policy says {rule}")
        forced = rule is not None
        if not copied and self.graph.closes_cycle(producer, consumer):
            return Judgement(False, "another region between them needs the one and feeds the other")
        merged = self.graph.in_order([*producer.ops, *consumer.ops])
        answer = feasible_schedules(merged, producer.ops if copied else ())
        if not answer:
            return Judgement(False, "; ".join(answer.reasons))
        account, used = self.account(kind, producer, consumer, merged, answer.skeletons[0], copied=copied)
        if forced:
            return Judgement(True, f"the policy says {rule}", account, used)
        limit = self.beyond(kind, merged, producer, consumer, used)
        if limit is not None:
            return Judgement(False, limit, account, used, near=True)
        if account.benefit(self.target) <= 0 and not copied:
            return Judgement(False, self.price(kind, account), account, used, near=True)
        reason = self.price(kind, account) if account.cost or kind == "prologue" else REASONS[kind]
        return Judgement(True, reason, account, used)

    def account(
        self, kind: str, producer: Group, consumer: Group, merged: Sequence[Operation], skeleton: str, *, copied: bool
    ) -> tuple[Account, int]:
        """What a feasible join saves and costs, and the registers of the region."""
        schedule = schedule_for(skeleton, merged, self.longest, self.target)
        plain = join_account(producer, consumer, copied=copied)
        repeated, parallelism = 0.0, 0.0
        if skeleton in ("gemv", "mma"):
            anchor, other = (producer, consumer) if producer.anchored else (consumer, producer)
            split = parts(merged)
            before = repeated_ops(split, other)
            if before:
                repeated = recomputation(before, anchor.ops, results_of(before), self.target)
                repeated += summed_beside(split, before, schedule, self.target)
            parallelism = lost_parallelism(split, schedule, self.target)
        else:
            repeated = spread(producer, consumer, self.target)
        work = self.target.compile_us * len(producer.ops) if copied else 0.0
        return Account(plain.bytes, plain.launches, repeated, parallelism, work), registers(merged, schedule)

    def beyond(self, kind: str, merged: Sequence[Operation], producer: Group, consumer: Group, used: int) -> str | None:
        """The limit or switch that a join runs into."""
        step = STEP_OF.get(kind, kind)
        if step in STEPS and step not in self.limits.on:
            return f"{step} is off"
        most = self.limits.max_depth
        if most == 0:
            return "max-depth is 0: every op is its own launch"
        if most is not None and depth(merged) > most:
            return f"max-depth is {most}, the region would be {depth(merged)} deep"
        if used > self.limits.max_registers and used > max(self.registers(producer), self.registers(consumer)):
            return f"about {used} registers a thread, at most {self.limits.max_registers}: it would spill"
        return None

    def registers(self, group: Group) -> int:
        """The estimate for a group by itself; 0 where it has no schedule of its own."""
        answer = feasible_schedules(group.ops)
        return registers(group.ops, schedule_for(answer.skeletons[0], group.ops, self.longest, self.target)) if answer else 0

    def price(self, kind: str, account: Account) -> str:
        """The terms of an account as text."""
        gain = f"saves {account.gain(self.target):.2f} us"
        terms = {
            "recomputation": account.recomputation,
            "lost parallelism": account.parallelism,
            "compilation": account.compile,
        }
        costs = " and ".join(f"{value:.2f} us of {name}" for name, value in terms.items() if value)
        if kind == "prologue" and account.benefit(self.target) <= 0:
            return f"{gain}, costs {account.cost:.2f} us: every program of the contraction would recompute it"
        return f"{gain}, costs {costs or '0.00 us of recomputation'}"

    def kind_of(self, producer: Group, consumer: Group) -> str:
        """What a join of two neighbours would be called."""
        if producer.anchored and consumer.anchored:
            xs = [{op.x for op in group.ops if isinstance(op, ContractOp | ContractExpertsOp)} for group in (producer, consumer)]
            return "horizontal" if xs[0] & xs[1] else "anchors"
        if producer.anchored:
            return "epilogue"
        if consumer.anchored:
            return "prologue"
        return "vertical" if len(self.graph.consumers(producer)) == 1 else "shared"


def repeated_ops(split: Parts, other: Group) -> list[Operation]:
    """The ops of `other` that every program of a region with contractions would run: those before x, reductions of loaded rows and what
    follows them."""
    work: list[Operation] = [op for op in split.prologue if isinstance(op, ReduceOp | GatherOp)]
    work += [c.x.owner for c in split.contracts if isinstance(c.x.owner, Operation)]
    loose, found = set(split.prologue), set[Operation]()
    while work:
        op = work.pop()
        if op in loose and op not in found:
            found.add(op)
            work.extend(v.owner for v in op.operands if isinstance(v.owner, Operation))
    for op in split.prologue:
        if any(v.owner in found for v in op.operands):
            found.add(op)
    return [op for op in other.ops if op in found]


def results_of(ops: Sequence[Operation]) -> list[SSAValue]:
    """The values of some ops that other ops use."""
    inside = set(ops)
    return [r for op in ops for r in op.results if any(use.operation not in inside for use in r.uses)]


def outputs_for(producer: Group, consumer: Group) -> list[SSAValue]:
    """The results of `producer` that `consumer` reads."""
    fed = set(consumer.ops)
    return [r for op in producer.ops for r in op.results if any(use.operation in fed for use in r.uses)]

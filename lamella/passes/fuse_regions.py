"""Which ops run together: groups of tile ops become `tile.fused` regions, each one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import Value, shape_of
from lamella.dialects.tile import CastOp, ConstantOp, ContractOp, LedgerEntryAttr, ScatterOp
from lamella.passes.device import Device, device
from lamella.passes.feasibility import ANCHORS, data_operands, feasible_schedules, parts
from lamella.passes.outline import outline
from lamella.passes.region_graph import Group, RegionGraph, value_bytes


@dataclass(frozen=True)
class FuseRegions(ModulePass):
    """Groups the ops of a function into regions, and records each decision with its reason.

    Before:
        %c = tile.contract %x, %w : tensor<1x8xf32>, tensor<4x8xf32> -> tensor<1x4xf32>
        %y = tile.map "add"(%c, %r) : tensor<1x4xf32>, tensor<1x4xf32> -> tensor<1x4xf32>
    After:
        %y = tile.fused ins(%x, %w, %r : …) ledger [#tile.ledger<joined, {kind = "epilogue", …}>] {
        ^bb0(%0 : tensor<1x8xf32>, %1 : tensor<4x8xf32>, %2 : tensor<1x4xf32>):
          %c = tile.contract %0, %1 : …
          %y = tile.map "add"(%c, %2) : …
          tile.yield %y : tensor<1x4xf32>
        } -> tensor<1x4xf32>

    Five steps, each asking `feasible_schedules`: chains of maps and reductions join (vertical); contractions on one x join (horizontal);
    a chain after a contraction joins it (epilogue: nothing is computed twice); a chain before one joins it where that pays (prologue: every
    program recomputes it); what is left over at the start and the end of the function joins (siblings). A value used by several regions
    becomes an extra result, except widening casts and constants, which each user recomputes.

    Expects static tile ops (`transformer-to-tile`); leaves only handles, `tile.fused` and the terminator.
    """

    name = "fuse-regions"

    arch: str = "sm_90"
    prologue: bool = True
    epilogue: bool = True
    horizontal: bool = True
    vertical: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = device(self.arch)
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                duplicate_cheap(function)
                graph = RegionGraph(function)
                if self.vertical:
                    join_vertical(graph)
                if self.horizontal:
                    join_horizontal(graph)
                if self.epilogue:
                    join_epilogues(graph)
                if self.prologue:
                    join_prologues(graph, target)
                if self.horizontal:
                    join_siblings(graph)
                note_boundaries(graph)
                outline(graph)


def duplicate_cheap(function: func.FuncOp) -> None:
    """Gives each user of a constant or a widening cast its own copy: storing the wider value would cost more than making it again."""
    for op in list(function.body.block.ops):
        if not is_cheap(op):
            continue
        users = list(dict.fromkeys(use.operation for use in op.results[0].uses))
        for user in users[1:]:
            copy = op.clone()
            copy.results[0].name_hint = op.results[0].name_hint
            function.body.block.insert_op_before(copy, user)
            for index, value in enumerate(user.operands):
                if value is op.results[0]:
                    user.operands[index] = copy.results[0]


def is_cheap(op: Operation) -> bool:
    """Whether an op is made again by each user rather than stored."""
    if isinstance(op, ConstantOp):
        return True
    return isinstance(op, CastOp) and value_bytes(op.input) <= value_bytes(op.result)


def join_vertical(graph: RegionGraph) -> None:
    """Joins maps, casts, reductions, rotations and gathers to their one consumer of the same kind, from the last op to the first."""
    for op in reversed(graph.ops):
        if isinstance(op, ANCHORS):
            continue
        users = graph.users(op.results[0])
        consumer = users[0] if len(users) == 1 else None
        if consumer is None or any(isinstance(o, ANCHORS) for o in consumer.ops):
            continue
        if not all(op.results[0] in data_operands(use.operation) for use in op.results[0].uses):
            continue  # a scatter's cache: memory, not a tile
        group = graph.group_of[op]
        if not same_rows(op, consumer.ops):
            continue
        if feasible_schedules([*group.ops, *consumer.ops]) and not graph.closes_cycle(group, consumer):
            graph.merge(consumer, group, "joined", facts("vertical", group, consumer, op.results, "one consumer, same rows"))


def same_rows(op: Operation, consumers: Sequence[Operation]) -> bool:
    """Whether an op's rows are those of its consumers: they then divide into the same programs. Vectors along columns fit any rows."""
    shape = shape_of(op.results[0])
    ranks = [len(shape_of(c.results[0])) for c in consumers]
    if len(shape) == 0 or (len(shape) == 1 and max(ranks) > 1):
        return True
    return all(len(s) < len(shape) or s[0] == shape[0] for s in (result_rows(c) for c in consumers))


def result_rows(op: Operation) -> tuple[int, ...]:
    """The shape that tells an op's rows: that of the values of a scatter, else of the result."""
    return shape_of(op.values) if isinstance(op, ScatterOp) else shape_of(op.results[0])


def join_horizontal(graph: RegionGraph) -> None:
    """Joins contractions on one x: it is read once, and the grid is wider."""
    first: dict[SSAValue, Group] = {}
    for op in graph.ops:
        if not isinstance(op, ContractOp):
            continue
        group = graph.group_of[op]
        into = first.setdefault(op.x, group)
        if into is not group and not graph.closes_cycle(into, group):
            graph.merge(into, group, "joined", facts("horizontal", into, group, [op.x], "contractions on one x"))


def join_epilogues(graph: RegionGraph) -> None:
    """Joins each chain to the anchor that feeds it, in program order, where the oracle finds a schedule for both."""
    for group in graph.groups():
        if graph.group_of[group.ops[0]] is not group or any(isinstance(op, ANCHORS) for op in group.ops):
            continue
        feeders = {
            graph.group_of[v.owner]
            for op in group.ops
            for v in data_operands(op)
            if isinstance(v.owner, Operation) and v.owner in graph.group_of and graph.group_of[v.owner] is not group
        }
        anchored = [f for f in feeders if any(isinstance(o, ANCHORS) for o in f.ops)]
        for anchor in sorted(anchored, key=lambda g: -graph.order[g.ops[-1]]):
            if graph.closes_cycle(anchor, group):
                refuse(group, "epilogue", anchor, group, "another region between them needs the one and feeds the other")
                continue
            merged = sorted([*anchor.ops, *group.ops], key=graph.order.__getitem__)
            answer = feasible_schedules(merged)
            if answer:
                saved = [
                    v
                    for op in group.ops
                    for v in data_operands(op)
                    if isinstance(v.owner, Operation) and graph.group_of.get(v.owner) is anchor
                ]
                graph.merge(anchor, group, "joined", facts("epilogue", anchor, group, saved, "computed where its operands already are"))
                break
            refuse(group, "epilogue", anchor, group, "; ".join(answer.reasons))


def join_prologues(graph: RegionGraph, target: Device) -> None:
    """Joins a chain to the contractions it feeds, where the launch and the bytes it saves outweigh computing it in every program."""
    for group in graph.groups():
        if graph.group_of[group.ops[0]] is not group or any(isinstance(op, ANCHORS) for op in group.ops):
            continue
        consumers = graph.consumers(group)
        consumer = next(iter(consumers)) if len(consumers) == 1 else None
        if consumer is None or not any(isinstance(op, ANCHORS) for op in consumer.ops):
            continue
        answer = feasible_schedules(sorted([*group.ops, *consumer.ops], key=graph.order.__getitem__))
        if not answer or graph.closes_cycle(group, consumer):
            refuse(consumer, "prologue", group, consumer, "; ".join(answer.reasons) or "another region lies between them")
            continue
        outputs = [r for op in group.ops for r in op.results if any(u is consumer for u in graph.users(r))]
        gain, cost = prologue_benefit(group, consumer, outputs, target)
        account = f"saves {gain:.2f} us, costs {cost:.2f} us"
        if gain > cost:
            graph.merge(consumer, group, "joined", facts("prologue", group, consumer, outputs, f"{account} of recomputation"))
        else:
            refuse(consumer, "prologue", group, consumer, f"{account}: every program of the contraction would recompute it")


def prologue_benefit(group: Group, consumer: Group, outputs: Sequence[SSAValue], target: Device) -> tuple[float, float]:
    """Microseconds saved (a launch, the outputs' round trip) and spent (what the programs read more than the outputs) by a prologue.

    What programs read again comes from the L2 cache while weights stream from memory: it costs only what exceeds that stream (roofline).
    """
    saved = 2 * sum(value_bytes(v) for v in outputs)
    gain = target.launch_us + saved / target.bandwidth * 1e6
    inside = set(group.ops)
    inputs = {v for op in group.ops for v in op.operands if v.owner not in inside}
    tokens = shape_of(outputs[0])[0]
    # A program that tiles K reads x once for the reduction and once for the product; at one token a whole row stays in registers.
    passes = 1 if tokens == 1 else 2
    # What the contraction reads anyway: x itself, where only a row scale of it is in question.
    read_anyway = {v for op in consumer.ops for v in op.operands} & inputs
    x_bytes = sum(value_bytes(v) for v in (*outputs, *read_anyway))
    input_bytes = passes * sum(value_bytes(v) for v in inputs if len(shape_of(v)) < 2 or shape_of(v)[0] <= tokens)
    contracts = parts(consumer.ops).contracts
    weights = sum(value_bytes(c.weight) for c in contracts)
    columns = sum(shape_of(c.result)[1] for c in contracts)
    # Tiles as choose-schedule makes them: 4 rows of weights at one token, else tiles of up to 128 tokens and 64 columns.
    column_programs = max(1, columns // (4 if tokens == 1 else 64))
    row_programs = -(-tokens // 128)
    stream = weights / target.bandwidth

    def seconds(bytes_of_x: int) -> float:
        return max(stream, (weights * row_programs + bytes_of_x * column_programs) / target.cache_bandwidth)

    return gain, max(0.0, (seconds(input_bytes) - seconds(x_bytes)) * 1e6)


def join_siblings(graph: RegionGraph) -> None:
    """Joins row regions of equal rows that wait for nothing, and likewise those nothing waits for: one launch at each end of the step."""
    for is_end in (_is_source, _is_sink):
        first: dict[int, Group] = {}
        for group in graph.groups():
            if any(isinstance(op, ANCHORS) for op in group.ops) or not is_end(graph, group):
                continue
            rows = max(((result_rows(op) or (1,))[0] for op in group.ops), default=1)
            into = first.setdefault(rows, group)
            if into is not group and not graph.closes_cycle(into, group) and not _overwrites_each_other(graph, into, group):
                graph.merge(into, group, "joined", facts("sibling", into, group, [], "same rows, no dependence"))


def _is_source(graph: RegionGraph, group: Group) -> bool:
    return not graph.producers(group)


def _is_sink(graph: RegionGraph, group: Group) -> bool:
    return not {c for c in graph.consumers(group) if c is not None}


def _overwrites_each_other(graph: RegionGraph, a: Group, b: Group) -> bool:
    return graph.reaches(a, [b]) or graph.reaches(b, [a])


def note_boundaries(graph: RegionGraph) -> None:
    """Records why two regions that each have an anchor, and follow each other, stay two launches: gate and up before down, q before attention."""
    for group in graph.groups():
        for consumer in graph.consumers(group):
            if consumer is not None and all(any(isinstance(op, ANCHORS) for op in g.ops) for g in (group, consumer)):
                answer = feasible_schedules(sorted([*group.ops, *consumer.ops], key=graph.order.__getitem__))
                refuse(consumer, "anchors", group, consumer, "; ".join(answer.reasons))


def facts(kind: str, producer: Group, consumer: Group, kept: Sequence[SSAValue], reason: str) -> dict[str, Value]:
    """The facts of an accepted join: what stays on chip, and the launch it saves."""
    unique = list(dict.fromkeys(kept))
    return {
        "kind": kind,
        "producer": producer.label,
        "consumer": consumer.label,
        "bytes": 2 * sum(value_bytes(v) for v in unique),
        "launches": 1,
        "reason": reason,
    }


def refuse(group: Group, kind: str, producer: Group, consumer: Group, reason: str) -> None:
    """Records a join that was considered and not taken."""
    entry: dict[str, Value] = {"kind": kind, "producer": producer.label, "consumer": consumer.label, "reason": reason}
    group.ledger.append(LedgerEntryAttr.of("refused", entry))

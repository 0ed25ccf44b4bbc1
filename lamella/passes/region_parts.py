"""What a region is made of: the ops that decide its skeleton, and, around contractions, what comes before, between and after them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from lamella.dialects.tile import (
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    CastOp,
    ConstantOp,
    ContractExpertsOp,
    ContractOp,
    ContractPartialOp,
    DequantizeOp,
    MapOp,
    RouteOp,
    SampleOp,
    SampleTopOp,
    SortChoicesOp,
    TopPartialOp,
)
from lamella.passes.row_parts import data_operands

SAMPLERS = SampleOp | SampleTopOp | TopPartialOp
ALONE = SAMPLERS | SortChoicesOp
"""Ops that share a launch with nothing."""

ANCHORS = (
    ContractOp,
    AttendOp,
    AttendPartialOp,
    AttendMergeOp,
    SampleOp,
    SampleTopOp,
    TopPartialOp,
    RouteOp,
    SortChoicesOp,
    ContractExpertsOp,
)
"""Ops that decide the skeleton of their region; everything else adapts to its neighbours."""

ELEMENTWISE = (ConstantOp, MapOp, CastOp)
"""Ops that need, of each operand, only the element they compute."""


@dataclass
class Parts:
    """A region around contractions: what depends on none of them, the contractions by epilogue, and what follows them."""

    prologue: list[Operation] = field(default_factory=list[Operation])
    decoders: list[DequantizeOp] = field(default_factory=list[DequantizeOp])
    """What stands between contractions and their packed weights."""
    contracts: list[ContractOp | ContractPartialOp] = field(default_factory=list["ContractOp | ContractPartialOp"])
    epilogue: list[Operation] = field(default_factory=list[Operation])
    components: list[list[ContractOp | ContractPartialOp]] = field(default_factory=list["list[ContractOp | ContractPartialOp]"])
    """Contractions whose results meet in one epilogue: they are computed side by side on the same columns."""
    component_of: dict[Operation, int] = field(default_factory=dict[Operation, int])
    """Contraction or epilogue op -> its component."""


def stored_values(ops: Sequence[Operation], copied: Collection[Operation] = ()) -> list[SSAValue]:
    """The results that ops outside of the region use: what its launch leaves in memory. Ops that are `copied` leave that to the original."""
    inside = set(ops)
    return [r for op in ops if op not in copied for r in op.results if any(use.operation not in inside for use in r.uses)]


def parts(ops: Sequence[Operation]) -> Parts:
    """Splits the ops of a region (in order) around its contractions."""
    out = Parts()
    roots: dict[int, int] = {}

    def find(i: int) -> int:
        while roots[i] != i:
            i = roots[i]
        return i

    for op in ops:
        if isinstance(op, ContractOp | ContractPartialOp):
            number = len(out.contracts)
            roots[number] = number
            out.component_of[op] = number
            out.contracts.append(op)
            continue
        owners = [out.component_of[v.owner] for v in data_operands(op) if isinstance(v.owner, Operation) and v.owner in out.component_of]
        if owners:
            first = find(owners[0])
            for other in owners[1:]:
                roots[find(other)] = first
            out.component_of[op] = first
            out.epilogue.append(op)
    # What no contraction feeds is computed from loaded values wherever it is needed: before x, or for the epilogue (a row scale, a bias).
    out.decoders = [op for op in ops if isinstance(op, DequantizeOp)]
    out.prologue = [op for op in ops if op not in out.component_of and not isinstance(op, DequantizeOp)]
    leaders = sorted({find(i) for i in roots})
    rank = {leader: i for i, leader in enumerate(leaders)}
    out.component_of = {op: rank[find(i)] for op, i in out.component_of.items()}
    out.components = [[c for c in out.contracts if out.component_of[c] == i] for i in range(len(leaders))]
    return out


def ancestors(values: Iterable[SSAValue], inside: Collection[Operation]) -> set[Operation]:
    """The ops of `inside` that `values` depend on, those that make them included."""
    seen: set[Operation] = set()
    work = [v.owner for v in values]
    while work:
        op = work.pop()
        if isinstance(op, Operation) and op in inside and op not in seen:
            seen.add(op)
            work.extend(v.owner for v in op.operands)
    return seen

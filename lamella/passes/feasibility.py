"""The oracle of `fuse-regions`: which kernel skeletons can run a set of tile ops as one launch, and why the others cannot.

A skeleton fixes which program computes which rows and columns. An op fits when everything it needs is in the program that needs it:
a paired rotation needs both partner columns, a reduction a whole row, a scatter only its own row and column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.tile import (
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    CastOp,
    ConstantOp,
    ContractOp,
    GatherOp,
    MapOp,
    ReduceOp,
    RotateOp,
    SampleOp,
    ScatterOp,
)

ANCHORS = (ContractOp, AttendOp, AttendPartialOp, AttendMergeOp, SampleOp)
"""Ops that decide the skeleton of their region; everything else adapts to its neighbours."""

MAX_ROW_EPILOGUE = 256
"""Columns a program can hold when an epilogue reduces whole rows: a tile of 16 by 256 float32 accumulators is 4096 registers a warp."""


@dataclass(frozen=True)
class Feasible:
    """The oracle's answer. `skeletons` is empty when the ops cannot be one launch; `reasons` then says why, one line a skeleton."""

    skeletons: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.skeletons)


@dataclass
class Parts:
    """A region around contractions: what comes before x, the contractions by epilogue, and what follows them."""

    prologue: list[Operation] = field(default_factory=list[Operation])
    contracts: list[ContractOp] = field(default_factory=list[ContractOp])
    epilogue: list[Operation] = field(default_factory=list[Operation])
    components: list[list[ContractOp]] = field(default_factory=list["list[ContractOp]"])
    """Contractions whose results meet in one epilogue: they are computed side by side on the same columns."""
    component_of: dict[Operation, int] = field(default_factory=dict[Operation, int])
    """Contraction or epilogue op -> its component."""


def data_operands(op: Operation) -> Sequence[SSAValue]:
    """The operands that carry data between programs' tiles: all but a scatter's cache, which is memory, not a tile."""
    return (op.values, op.slots) if isinstance(op, ScatterOp) else op.operands


def parts(ops: Sequence[Operation]) -> Parts:
    """Splits the ops of a region (in order) around its contractions."""
    out = Parts()
    inside = set(ops)
    roots: dict[int, int] = {}

    def find(i: int) -> int:
        while roots[i] != i:
            i = roots[i]
        return i

    for op in ops:
        if isinstance(op, ContractOp):
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
    feeding = _ancestors((c.x for c in out.contracts), inside)
    for op in ops:
        if op not in out.component_of and op in feeding:
            out.prologue.append(op)
        elif op not in out.component_of:
            out.epilogue.append(op)
    out.epilogue = [op for op in ops if op in set(out.epilogue)]
    leaders = sorted({find(i) for i in roots})
    rank = {leader: i for i, leader in enumerate(leaders)}
    out.component_of = {op: rank[find(i)] for op, i in out.component_of.items()}
    out.components = [[c for c in out.contracts if out.component_of[c] == i] for i in range(len(leaders))]
    return out


def _ancestors(values: Iterable[SSAValue], inside: set[Operation]) -> set[Operation]:
    seen: set[Operation] = set()
    work = [v.owner for v in values]
    while work:
        op = work.pop()
        if isinstance(op, Operation) and op in inside and op not in seen:
            seen.add(op)
            work.extend(v.owner for v in op.operands)
    return seen


def feasible_schedules(ops: Sequence[Operation]) -> Feasible:
    """The skeletons that can run `ops` (in program order) as one launch."""
    anchors = [op for op in ops if isinstance(op, ANCHORS)]
    if not anchors:
        return _row(ops)
    if all(isinstance(a, ContractOp) for a in anchors):
        return _contract(ops)
    if len(anchors) > 1:
        names = ", ".join(sorted({a.name for a in anchors}))
        return Feasible((), (f"{names} each decide which program computes what",))
    return _single(anchors[0], ops)


def _row(ops: Sequence[Operation]) -> Feasible:
    inside = set(ops)
    for op in ops:
        if isinstance(op, GatherOp) and op.table.owner in inside:
            return Feasible((), ("row: a gather reads rows that other programs compute",))
        if isinstance(op, RotateOp) and any(isinstance(o, ReduceOp) for o in _ancestors([op.x], inside)):
            return Feasible((), ("row: a rotation of a value that needs a reduction would run it once a partner",))
    return Feasible(("row",))


def _contract(ops: Sequence[Operation]) -> Feasible:
    split = parts(ops)
    xs = {c.x for c in split.contracts}
    if len(xs) > 1:
        return Feasible((), ("contract: one contraction would wait for another, or they read different x: a program holds one row of x",))
    x = next(iter(xs))
    if x.owner in split.component_of:
        return Feasible((), ("contract: x depends on a contraction of the same region, whose columns lie in other programs",))
    inside = set(ops)
    for op in split.prologue:
        if not isinstance(op, MapOp | CastOp | ReduceOp | ConstantOp | GatherOp):
            return Feasible((), (f"contract: {op.name} has no form as a prologue",))
        if isinstance(op, GatherOp) and op.table.owner in inside:
            return Feasible((), ("contract: a gather in the prologue reads rows that are not stored yet",))
    for component in split.components:
        if len({shape_of(c.result)[1] for c in component}) > 1:
            return Feasible((), ("contract: contractions that meet in one epilogue have different widths",))
    for op in split.epilogue:
        reason = _epilogue_reason(op, split)
        if reason:
            return Feasible((), (f"contract: {reason}",))
    tokens = shape_of(split.contracts[0].x)[0]
    return Feasible(("gemv",)) if tokens == 1 else Feasible(("mma",))


def _epilogue_reason(op: Operation, split: Parts) -> str | None:
    if isinstance(op, ConstantOp) or op not in split.component_of:
        return None if isinstance(op, ConstantOp | CastOp | MapOp) else f"{op.name} depends on no contraction"
    width = shape_of(split.components[split.component_of[op]][0].result)[1]
    if isinstance(op, CastOp | MapOp | ScatterOp):
        return None
    if isinstance(op, ReduceOp):
        return (
            None
            if width <= MAX_ROW_EPILOGUE
            else f"a reduction needs the whole row of {width} columns in one program, at most {MAX_ROW_EPILOGUE}"
        )
    if isinstance(op, RotateOp):
        if op.style.data == "paired":
            return None
        return "a half-split rotation needs columns half a head apart; propagate-layout pairs them"
    return f"{op.name} has no form as an epilogue"


def _single(anchor: Operation, ops: Sequence[Operation]) -> Feasible:
    """An attend, merge or sample with elementwise ops after it."""
    skeleton = {AttendOp: "attend", AttendPartialOp: "attend", AttendMergeOp: "merge", SampleOp: "sample"}[type(anchor)]  # pyright: ignore[reportArgumentType]
    after: set[Operation] = {anchor}
    for op in ops:
        if op is anchor or isinstance(op, ConstantOp):
            continue
        if not any(v.owner in after for v in op.operands):
            return Feasible((), (f"{skeleton}: {op.name} comes before the {anchor.name}, whose programs read other rows",))
        if not isinstance(op, CastOp | MapOp) or isinstance(anchor, SampleOp):
            return Feasible((), (f"{skeleton}: {op.name} has no form after {anchor.name}",))
        after.add(op)
    return Feasible((skeleton,))

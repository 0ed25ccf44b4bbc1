"""The oracle of `fuse-regions`: which kernel skeletons can run a set of tile ops as one launch, and why the others cannot.

A skeleton fixes which program computes which rows and columns. An op fits when everything it needs is in the program that needs it:
a paired rotation needs both partner columns, a reduction a whole row, a scatter only its own row and column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import (
    AddColumnsOp,
    AddRowsOp,
    AttendMergeOp,
    AttendOp,
    AttendPartialOp,
    CastOp,
    ConstantOp,
    ContractExpertsOp,
    ContractMergeOp,
    ContractOp,
    ContractPartialOp,
    DequantizeOp,
    GatherColumnsOp,
    GatherOp,
    MapOp,
    ReduceOp,
    ReshapeOp,
    RotateOp,
    RouteOp,
    ScatterOp,
    SlotsOp,
    SortChoicesOp,
)
from lamella.passes.byte_products import products_reason
from lamella.passes.descriptors import by_descriptors, described_reason
from lamella.passes.library import LIBRARY, in_library, region_reason
from lamella.passes.packed_columns import in_runs, in_step, streamed, streams
from lamella.passes.region_parts import ALONE, ANCHORS, ELEMENTWISE, SAMPLERS, Parts, ancestors, parts, stored_values
from lamella.passes.row_parts import Heads, RowPart, result_rows, row_parts

MAX_ROW_EPILOGUE = 256
"""Columns a program can hold when an epilogue reduces whole rows: a tile of 16 by 256 float32 accumulators is 4096 registers a warp."""


@dataclass(frozen=True)
class Feasible:
    """The oracle's answer. `skeletons` is empty when the ops cannot be one launch; `reasons` then says why, one line a skeleton."""

    skeletons: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.skeletons)


def feasible_schedules(ops: Sequence[Operation], copied: Collection[Operation] = ()) -> Feasible:
    """The skeletons that can run `ops` (in program order) as one launch.

    Some of them may be `copied`: this launch would compute them for itself only, and others that need them compute them too.
    """
    anchors = [op for op in ops if isinstance(op, ANCHORS)]
    summed = [op.result for op in ops if isinstance(op, AddColumnsOp)]
    if any(use.operation in ops for value in summed for use in value.uses):
        return Feasible((), ("sums of columns are read when all programs that make some have ended",))
    split_op = next((op for op in ops if isinstance(op, ContractPartialOp | ContractMergeOp)), None)
    if split_op is not None:
        return Feasible((), (f"contract: {split_op.name} is what choose-schedule makes of tile.contract",))
    if not anchors:
        return _answer("row", _row(ops, stored_values(ops, copied)))
    if any(in_library(a) for a in anchors):
        return _answer(LIBRARY, region_reason(ops))
    if all(isinstance(a, ContractOp) for a in anchors):
        split = parts(ops)
        reason = _contract(ops, split, stored_values(ops, copied))
        one = shape_of(split.contracts[0].x)[0] == 1 and (in_runs(split.contracts) or not streams(split.contracts))
        return _answer("gemv" if one else "mma", reason, "contract")
    experts = [a for a in anchors if isinstance(a, ContractExpertsOp)]
    if len(experts) == len(anchors):
        return _answer("experts" if experts[0].order is None else "expert_tiles", _experts(ops, stored_values(ops, copied)), "experts")
    if len(anchors) > 1:
        return Feasible((), (_several(anchors),))
    return _single(anchors[0], ops, stored_values(ops, copied))


def _answer(skeleton: str, reason: str | None, family: str | None = None) -> Feasible:
    return Feasible((skeleton,)) if reason is None else Feasible((), (f"{family or skeleton}: {reason}",))


def _several(anchors: Sequence[Operation]) -> str:
    names = ", ".join(sorted({a.name for a in anchors}))
    return f"{names} each decide which program computes what"


# Places: what a program of `rows` rows must find in itself


def _needs(
    values: Iterable[SSAValue], rows: int, inside: Collection[Operation], given: Collection[SSAValue], heads: Heads | None = None
) -> str | None:
    """Why a program that computes the rows of `values` cannot compute what they need; None when it can.

    `rows` is how many rows the programs divide between them, `given` what the skeleton computed itself. A value is needed at some columns
    (then `columns` is how many there are in all) or along the rows, one number a row (None): a vector means either, by its user. Programs
    of `heads` have one head of a row: what they compute has rows of its own, or those of whole rows.
    """

    def place(v: SSAValue) -> tuple[SSAValue, int | None, int]:
        sizes = result_rows(v.owner) if heads is not None and isinstance(v.owner, Operation) else ()
        return v, shape_of(v)[1] if len(shape_of(v)) == 2 else None, sizes[0] if sizes else rows

    work = [place(v) for v in values]
    seen: set[tuple[SSAValue, int | None, int]] = set()
    while work:
        value, columns, rows = work.pop()
        if (value, columns, rows) in seen or value in given:
            continue
        seen.add((value, columns, rows))
        sizes, op = shape_of(value), value.owner
        if isinstance(op, ScatterOp):
            if op in inside:
                # Where heads are rows of their own, a token has several of them.
                tokens = shape_of(op.slots)[0] if heads is not None else rows
                work += [(op.values, shape_of(op.values)[1], rows), (op.slots, None, tokens), (op.cache, None, rows)]
            continue
        if len(sizes) > 2 and op in inside:
            return f"a value of shape {_shape(sizes)} is no matrix of rows"
        if len(sizes) == 1 and columns is None and sizes[0] != rows:
            return f"a vector of {sizes[0]} is not one number for each of {rows} rows"
        if len(sizes) == 1 and columns is not None and (sizes[0] != columns or columns == 1):
            return f"a vector of {sizes[0]} is not one number for each of {columns} columns"
        if not isinstance(op, Operation) or op not in inside:
            continue
        reason = _misplaced(op, rows, columns is not None, inside, heads)
        if reason is not None:
            return reason
        match op:
            case GatherOp():
                work.append((op.rows, None, rows))
            case SlotsOp():
                work.append((op.positions, None, rows))
            case AddRowsOp():
                pass
            case ReshapeOp():
                if op.input.owner in inside:
                    work.append((op.input, shape_of(op.input)[1], shape_of(op.input)[0]))
            case ReduceOp():
                work.append((op.input, shape_of(op.input)[1], rows))
            case AddColumnsOp():
                work.append((op.x, shape_of(op.x)[1], rows))
            case RotateOp():
                work += [(op.x, columns, rows), (op.rows, shape_of(op.rows)[1], rows)]
            case GatherColumnsOp():
                work += [(op.x, shape_of(op.x)[1], rows), (op.columns, columns, rows)]
            case _:
                work += [(v, columns, rows) for v in op.operands]
    return None


def _misplaced(op: Operation, rows: int, columns: bool, inside: Collection[Operation], heads: Heads | None) -> str | None:
    """Why `op`, needed by columns or not, cannot run in a program that has some of `rows` rows."""
    sizes = shape_of(op.results[0])
    match op:
        case ReduceOp() if len(shape_of(op.input)) != 2:
            return "a reduction of a vector has no rows to divide"
        case ReduceOp() if heads is not None and shape_of(op.input) != heads.single:
            return f"a reduction of {shape_of(op.input)[1]} columns, where a program has a head of {heads.dim}"
        case RotateOp() if heads is not None and (sizes != heads.whole or heads.dim % op.head_dim.value.data):
            return f"a rotation of heads of {op.head_dim.value.data} columns, where a program has a head of {heads.dim}"
        case AddColumnsOp() if heads is not None:
            return f"sums of columns of whole rows, where a program has a head of {heads.dim}"
        case GatherColumnsOp() if heads is not None:
            return f"a gather of columns of whole rows, where a program has a head of {heads.dim}"
        case ReshapeOp() if op.input.owner in inside and heads is None:
            return "a reshape reads rows that other programs compute"
        case GatherOp() if op.table.owner in inside:
            return "a gather reads rows that other programs compute"
        case AddRowsOp() if op.x.owner in inside:
            return "a sum of rows reads rows that other programs compute"
        case AddRowsOp() if sizes[0] != rows:
            return f"sums of rows make {sizes[0]} rows, not {rows}"
        case GatherOp() | SlotsOp() if len(sizes) == 1 and columns:
            return f"{op.name} finds one number a row, but its user reads one a column"
        case GatherOp() if sizes[0] != rows:
            return f"a gather of {sizes[0]} rows serves {rows}"
        case SlotsOp() if op.query_start.owner in inside or op.block_table.owner in inside:
            return "the slots' tables are computed by other programs"
        case _:
            return None


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


# Skeletons


def _row(ops: Sequence[Operation], stored: Sequence[SSAValue]) -> str | None:
    inside = set(ops)
    found = row_parts(ops, stored)
    for op in ops:
        if isinstance(op, ScatterOp) and updated_cache(op, inside).owner in inside:
            return "a scatter needs its cache in memory"
    for part in found:
        reason = part.conflict or (_whole_rows(part) if part.heads is None else _of_heads(part, part.heads))
        if reason:
            return reason
    return _written_twice([[op for op in part.ops if isinstance(op, ScatterOp)] for part in found], inside)


def _whole_rows(part: RowPart) -> str | None:
    """Why programs that take whole rows cannot compute a part."""
    shapes = {result_rows(v.owner) for v in part.stored if isinstance(v.owner, Operation)}
    wrong = [s for s in shapes if len(s) not in (1, 2)]
    if wrong:
        return f"a value of shape {_shape(wrong[0]) or '()'} has no rows to divide"
    rows = sorted({s[0] for s in shapes})
    if len(rows) > 1:
        return f"values of {rows[0]} and of {rows[1]} rows are stored: a program takes the same rows of each"
    return _needs(part.stored, rows[0], set(part.ops), ())


def _of_heads(part: RowPart, heads: Heads) -> str | None:
    """Why programs that take a head each cannot compute a part."""
    for value in part.stored:
        assert isinstance(value.owner, Operation)
        sizes = result_rows(value.owner)
        if sizes not in (heads.whole, heads.single, (heads.single[0], 1)):
            return f"a value of shape {_shape(sizes)} is stored beside heads of {heads.dim} columns: a program has one head"
    return _needs(part.stored, heads.single[0], set(part.ops), (), heads)


def updated_cache(scatter: ScatterOp, inside: Collection[Operation]) -> SSAValue:
    """The cache that a chain of scatters updates, up to `scatter`, as it is before all those `inside`."""
    cache = scatter.cache
    while isinstance(cache.owner, ScatterOp) and cache.owner in inside:
        cache = cache.owner.cache
    return cache


def _written_twice(parts_scatters: Sequence[Sequence[ScatterOp]], inside: Collection[Operation]) -> str | None:
    """Why scatters that different programs run, in any order, may not share a launch: they write the same half of a cache."""
    written: dict[tuple[SSAValue, int], int] = {}
    for number, scatters in enumerate(parts_scatters):
        for op in scatters:
            if written.setdefault((updated_cache(op, inside), op.part.value.data), number) != number:
                return "two parts write the same half of a cache, in any order"
    return None


def _contract(ops: Sequence[Operation], split: Parts, stored: Sequence[SSAValue]) -> str | None:
    inside = set(ops)
    if any(by_descriptors(c) for c in split.contracts):
        reason = described_reason(ops)
        if reason is not None:
            return reason
    for contract in split.contracts:
        before = ancestors([contract.x, contract.weight], inside)
        earlier = next((c for c in split.contracts if c in before), None)
        if earlier is not None:
            return _waits(contract, earlier)
        if isinstance(contract.weight.owner, Operation) and contract.weight.owner in inside:
            reason = _decoder_reason(contract, contract.weight.owner, inside)
            if reason is not None:
                return reason
    stray = next((d for d in split.decoders if not any(c.weight is d.result for c in split.contracts)), None)
    if stray is not None:
        return f"{stray.name} unpacks what no contraction here multiplies"
    if len({c.x for c in split.contracts}) > 1:
        return "the contractions read different x: a program holds one row of x"
    tokens = shape_of(split.contracts[0].x)[0]
    for op in split.prologue:
        if not isinstance(op, MapOp | CastOp | ReduceOp | ConstantOp | GatherOp | GatherColumnsOp):
            return f"{op.name} has no form as a prologue"
    reason = products_reason(split.contracts, split.prologue, inside) or _needs([split.contracts[0].x], tokens, inside, ())
    if reason is not None:
        return reason
    for component in split.components:
        if len({shape_of(c.result)[1] for c in component}) > 1:
            return "contractions that meet in one epilogue have different widths"
        if (tokens > 1 or streamed(component, tokens)) and not in_step(component):
            return (
                "halves of bytes of one weight lie further apart than the columns that share a scale in another: no step over K suits both"
            )
    for op in split.epilogue:
        reason = _epilogue_reason(op, split, tokens)
        if reason is not None:
            return reason
    apart = next((v.owner for v in stored if v.owner not in split.component_of), None)
    if isinstance(apart, Operation):
        return f"other regions need {_where(apart)} too, which every program would compute and store"
    return _needs(stored, tokens, inside, {c.result for c in split.contracts})


def _decoder_reason(
    contract: ContractOp | ContractPartialOp | ContractExpertsOp, made_by: Operation, inside: Collection[Operation]
) -> str | None:
    """Why a program cannot make the rows of a weight that it multiplies; None where it unpacks them from memory."""
    if not isinstance(made_by, DequantizeOp) or any(v.owner in inside for v in made_by.operands):
        return f"the weight of {_where(contract)} is computed in the region: each program would need rows of it that others compute"
    group = made_by.packing.group.data
    if made_by.groups > 1 and group & (group - 1):
        return f"groups of {group} columns share a scale: pieces of K, which have powers of two, do not end with them"
    if any(not isinstance(use.operation, ContractOp | ContractExpertsOp) for use in made_by.result.uses):
        return f"what unpacks the weight of {_where(contract)} is read by others too"
    return None


def _waits(contract: ContractOp | ContractPartialOp, earlier: ContractOp | ContractPartialOp) -> str:
    width, outputs = shape_of(contract.x)[1], shape_of(earlier.result)[1]
    return (
        f"{_where(contract)} needs a whole row of x, {width} columns, and no program of {_where(earlier)} holds more than a few of its "
        f"{outputs}: the one has to wait until all programs of the other have ended"
    )


def _where(op: Operation) -> str:
    return location(op) or op.name


def _epilogue_reason(op: Operation, split: Parts, tokens: int) -> str | None:
    width = shape_of(split.components[split.component_of[op]][0].result)[1]
    sizes = result_rows(op)
    if isinstance(op, AddColumnsOp):
        return None if tokens == 1 else "sums of columns are those of one token, of which a program has them in a row"
    if len(sizes) != 2 or sizes[0] != tokens or sizes[1] not in (1, width):
        return f"{op.name} spreads {_shape((tokens, width))} over {_shape(sizes)}: a program holds only its own columns"
    match op:
        case ReduceOp() if width > MAX_ROW_EPILOGUE:
            return f"a reduction needs the whole row of {width} columns in one program, at most {MAX_ROW_EPILOGUE}"
        case RotateOp() if op.style.data != "paired":
            return "a half-split rotation needs columns half a head apart; propagate-layout pairs them"
        case RotateOp() if op.rows.owner in split.component_of:
            return "a rotation by angles that other programs compute"
        case MapOp() | CastOp() | ScatterOp() | ReduceOp() | RotateOp():
            return None
        case _:
            return f"{op.name} has no form as an epilogue"


def _single(anchor: Operation, ops: Sequence[Operation], stored: Sequence[SSAValue]) -> Feasible:
    """An attend with elementwise ops after it, and before its queries; a sample by itself."""
    names = ((SAMPLERS, "sample"), (RouteOp, "route"), (SortChoicesOp, "sort"), (Operation, "attend"))
    skeleton = next(name for kind, name in names if isinstance(anchor, kind))
    if isinstance(anchor, AttendPartialOp | AttendMergeOp):
        return Feasible((), (f"{skeleton}: {anchor.name} is what choose-schedule makes of tile.attend",))
    return _answer(skeleton, _around(anchor, ops, stored))


def _around(anchor: Operation, ops: Sequence[Operation], stored: Sequence[SSAValue]) -> str | None:
    inside = set(ops)
    after: set[Operation] = {anchor}
    result = anchor.results[0]
    before = ancestors(anchor.operands, inside)
    on_queries = ancestors([anchor.q], inside) if isinstance(anchor, AttendOp) else set[Operation]()
    for op in ops:
        if op is anchor:
            continue
        if op in before:
            if op not in on_queries or not isinstance(op, (*ELEMENTWISE, RotateOp, ReshapeOp)):
                return f"{op.name} comes before the {anchor.name}, whose programs read other rows"
            continue
        if not isinstance(op, ELEMENTWISE) or isinstance(anchor, ALONE):
            return f"{op.name} has no form after {anchor.name}"
        if any(v.owner in after for v in op.operands):
            if shape_of(op.results[0]) != shape_of(result):
                return f"{op.name} spreads {_shape(shape_of(result))} over {_shape(shape_of(op.results[0]))}"
            after.add(op)
    apart = next((v.owner for v in stored if v.owner not in after), None)
    if isinstance(apart, Operation):
        return f"other regions need {_where(apart)} too, which several programs would compute and store"
    rows = shape_of(result)[0]
    if isinstance(anchor, AttendOp):
        reason = _needs([anchor.q], rows, inside, ())
        if reason is not None:
            return reason
    return None if isinstance(anchor, ALONE) else _needs(stored, rows, inside, set(anchor.results))


def _experts(ops: Sequence[Operation], stored: Sequence[SSAValue]) -> str | None:
    """Contractions by one choice, side by side, with elementwise ops behind them: a program has some columns of one row."""
    inside = set(ops)
    contracts = [op for op in ops if isinstance(op, ContractExpertsOp)]
    first, shape = contracts[0], shape_of(contracts[0].result)
    for op in contracts:
        decoder = op.weight.owner
        if isinstance(decoder, DequantizeOp) and decoder in inside:
            reason = _decoder_reason(op, decoder, inside)
            if reason is not None:
                return reason
        before = [v.owner for v in op.operands if v is not op.weight or not isinstance(decoder, DequantizeOp)]
        if any(isinstance(owner, Operation) and owner in inside for owner in before):
            return f"{_where(op)} needs whole rows of x, of its weight and of the choices, which other programs compute"
        if op.x is not first.x or op.chosen is not first.chosen or op.order is not first.order or shape_of(op.result) != shape:
            return "contractions of different x, choices or widths: a program holds the same columns of one row of each"
    after: set[Operation] = set(contracts)
    for op in ops:
        if op in contracts:
            continue
        if isinstance(op, DequantizeOp):
            if not any(contract.weight is op.result for contract in contracts):
                return f"{op.name} unpacks what no contraction here multiplies"
            continue
        if not isinstance(op, (*ELEMENTWISE, ReshapeOp)):
            return f"{op.name} has no form beside {first.name}"
        if any(v.owner in after for v in op.operands):
            if shape_of(op.results[0]) != shape:
                return f"{op.name} spreads {_shape(shape)} over {_shape(shape_of(op.results[0]))}"
            after.add(op)
    apart = next((v.owner for v in stored if v.owner not in after), None)
    if isinstance(apart, Operation):
        return f"other regions need {_where(apart)} too, which every program would compute and store"
    return _needs(stored, shape[0], inside, {op.result for op in contracts})

"""The row skeleton: a program takes one row, or a head or a piece of one (or a block of a vector's numbers), of every value its part of the region stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects import kernel
from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import location, subject
from lamella.dialects.tile import FusedOp, ReshapeOp, ScatterOp, ScheduleAttr, YieldOp
from lamella.errors import PassError
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.divided_grid import over_parts
from lamella.lowering.tile_to_kernel.emitter import Emitter
from lamella.lowering.tile_to_kernel.places import Place, Store
from lamella.passes.row_parts import Heads, RowPart, row_parts


def lower(fused: FusedOp, name: str, schedule: ScheduleAttr) -> tuple[kernel.FuncOp, tuple[int, int, int]]:
    """The kernel of a row region and its grid: its parts divide the programs between them."""
    e = RowEmitter(fused, name, schedule)
    ops = [op for op in fused.body.block.ops if not isinstance(op, YieldOp)]
    found = row_parts(ops, fused.terminator.values)
    stores = [[s for s in e.stores if s.owner in part.ops] for part in found]
    block = schedule.get("rows")
    programs = [-(-part.rows // block) * part.pieces(e.chunk) for part in found]
    if len(found) == 1:
        lower_part(e, found[0], stores[0], None)
    else:
        over_parts(e, programs, part_names(found), lambda number, program: lower_part(e, found[number], stores[number], program))
    return e.b.finish(), (sum(programs), 1, 1)


def part_names(found: Sequence[RowPart]) -> list[str]:
    """What the parts are called in the printed text: the end of the location of what they store."""
    names: list[str] = []
    for part in found:
        owners = [v.owner for v in part.stored if isinstance(v.owner, Operation)]
        name = next((location(op).rpartition(".")[2] for op in owners if location(op)), "part")
        halves = [("keys", "values")[op.part.value.data] for op in owners if isinstance(op, ScatterOp)]
        names.append("_".join([name, *halves[:1]]))
    return names


@dataclass(frozen=True)
class HeadPlaces:
    """The head of a program, seen as a row of its own and as columns of a whole row: places of the one and of the other."""

    heads: Heads
    row: Operand
    """Its number among all heads."""
    token: Operand
    first: Operand
    """Its first column in the row of its token."""
    others: dict[Place, Place] = field(default_factory=dict[Place, Place])


class RowEmitter(Emitter):
    """An emitter that follows a reshape between whole rows and heads: a program has the same numbers of both."""

    head: HeadPlaces | None = None

    def emit(self, value: SSAValue, place: Place) -> SSAValue:
        op = value.owner
        if not isinstance(op, ReshapeOp) or isinstance(op.input, BlockArgument):
            return super().emit(value, place)
        if self.head is None:
            raise PassError("a reshape of a value that this kernel computes", where=subject(self.fused))
        return self.emit(op.input, self.other(self.head, shape_of(value), place))

    def other(self, head: HeadPlaces, sizes: tuple[int, ...], place: Place) -> Place:
        """The place of a head on the other side of a reshape to `sizes`."""
        found = head.others.get(place)
        if found is not None:
            return found
        assert place.cols is not None
        if sizes == head.heads.whole:
            found = Place(head.row, self.b.mod(place.cols, head.heads.dim), place.row_mask, place.col_mask)
        else:
            found = Place(head.token, self.b.add(place.cols, head.first), place.row_mask, place.col_mask)
        head.others[place], head.others[found] = found, place
        return found


def lower_part(e: RowEmitter, part: RowPart, stores: Sequence[Store], program: Operand | None) -> None:
    """What one program of a part computes and stores; `program` is its number among those of the part, None where the grid has no others."""
    if part.heads is not None:
        lower_head(e, part.heads, stores, program)
        return
    pieces = part.pieces(e.chunk)
    if pieces > 1:
        program = e.b.program_id(0) if program is None else program
        start = e.hinted("start", e.b.mul(e.b.mod(program, pieces), e.chunk))
        rows, mask = row_block(e, part.rows, e.schedule.get("rows"), e.b.floordiv(program, pieces))
        for item in stores:
            e.store(item, e.columns(rows, mask, start, e.chunk, shape_of(item.value)[-1]))
        return
    rows, mask = row_block(e, part.rows, e.schedule.get("rows"), program)
    for item in stores:
        if len(shape_of(item.value)) == 1:
            e.store(item, Place(rows, None, mask))
            continue
        width = shape_of(item.value)[-1]
        if width <= e.chunk:
            e.store(item, e.whole(rows, mask, width))
            continue
        first = Place(rows, None, mask)
        e.stage([item.value], first)
        with e.b.for_(0, width, e.chunk) as loop, e.scope():
            e.store(item, e.columns(rows, mask, loop.index, e.chunk, width))


def lower_head(e: RowEmitter, heads: Heads, stores: Sequence[Store], program: Operand | None) -> None:
    """A program that has one head of one token."""
    b = e.b
    row = b.named("head_row", b.program_id(0)) if program is None else program
    alone = heads.tokens == 1
    token: Operand = 0 if alone else b.named("row", b.floordiv(row, heads.count))
    first = b.named("head_start", b.mul(row if alone else b.mod(row, heads.count), heads.dim))
    e.head = HeadPlaces(heads, row, token, first)
    single = e.whole(row, None, heads.dim)
    whole = e.other(e.head, heads.single, single)
    for item in stores:
        e.store(item, whole if shape_of(item.value) == heads.whole else single)
    e.head = None


def row_block(e: Emitter, count: int, block: int, program: Operand | None) -> tuple[Operand, SSAValue | None]:
    """This program's rows and their mask: a scalar where it has one."""
    b = e.b
    if block == 1:
        return (0 if count == 1 else b.named("row", b.program_id(0)) if program is None else program), None
    start = b.mul(b.program_id(0) if program is None else program, block)
    rows = b.named("rows", b.add(start, b.arange(block)))
    return rows, None if count % block == 0 else b.lt(rows, count)

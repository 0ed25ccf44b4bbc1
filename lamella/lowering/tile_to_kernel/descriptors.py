"""Tiles through tensor descriptors: which arguments of a region a kernel takes as descriptors, and the loop over K that asks for their blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import f32, i8, i32
from xdsl.ir import BlockArgument, SSAValue

from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.kernel import DescriptorType
from lamella.dialects.kernel.types import shape
from lamella.dialects.messages import subject
from lamella.dialects.tile import ContractOp, ContractPartialOp, FusedOp, ReduceOp, RotateOp, ScheduleAttr, YieldOp
from lamella.errors import PassError
from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.contract import Component, ContractEmitter, finish_component
from lamella.lowering.tile_to_kernel.emitter import source_of
from lamella.lowering.tile_to_kernel.places import Place
from lamella.lowering.tile_to_kernel.weight import Rows, Weight
from lamella.passes.descriptors import DESCRIPTORS, describable, stored_weight

WIDE = 256
"""Columns of a tile, of all contractions side by side, from which on a rotation takes them in halves."""


def described_arguments(fused: FusedOp, schedule: ScheduleAttr) -> Mapping[SSAValue, DescriptorType]:
    """The arguments that are read through descriptors: x in blocks of [m, k] and weights of [n, k]; none where the schedule asks for none.

    Raises PassError for a region that its schedule does not fit.
    """
    if DESCRIPTORS not in schedule.options.data or not schedule.get(DESCRIPTORS):
        return {}
    if not describable([op for op in fused.body.block.ops if not isinstance(op, YieldOp)]):
        raise PassError(
            "a schedule with descriptors", where=subject(fused), expected="x and weights that nothing but its contractions reads"
        )
    blocks: dict[SSAValue, tuple[int, int]] = {}
    for contract in [op for op in fused.body.block.ops if isinstance(op, ContractOp)]:
        blocks[contract.x] = schedule.get("m"), schedule.get("k")
        blocks[stored_weight(contract)] = schedule.get("n"), schedule.get("k")
    inside = next((v for v in blocks if not isinstance(v, BlockArgument)), None)
    if inside is not None:
        raise PassError("a schedule with descriptors", where=subject(fused), expected="x and weights in memory")
    elements = {value: i8 if element_type_of(value) == i32 else element_type_of(value) for value in blocks}
    return {value: DescriptorType.of(block, elements[value]) for value, block in blocks.items()}


def described_products(
    e: ContractEmitter, contracts: Sequence[ContractOp | ContractPartialOp], schedule: ScheduleAttr, first: Operand, start: Operand
) -> list[SSAValue]:
    """The products [m, n] of the tokens from `first` on with the weight rows from `start` on, of each contraction.

    Sums of bytes, whole numbers, leave as floats. Blocks reach past the ends of the matrices: what they bring from there is 0, and rows of the
    result past the last are not stored.
    """
    b, x = e.b, contracts[0].x
    block_m, block_n, block_k = (schedule.get(name) for name in ("m", "n", "k"))
    k = shape_of(x)[1]
    stages = schedule.get("stages") if k > block_k else None
    whole = element_type_of(x) == i8
    zeros = [b.named("acc", b.full((block_m, block_n), 0 if whole else 0.0, i32 if whole else f32)) for _ in contracts]
    with b.for_(0, k, block_k, init=zeros, num_stages=stages) as loop, e.scope():
        with b.source("load"):
            tile = b.named("x", b.load_block(e.pointers[x], first, loop.index))
        sums: list[SSAValue] = []
        for contract, acc in zip(contracts, loop.values, strict=True):
            with b.source(source_of(contract)):
                rows = b.named("w", b.load_block(e.pointers[stored_weight(contract)], start, loop.index))
                sums.append(b.dot(tile, b.trans(rows), acc))
        loop.yields(*sums)
    return [b.named("sums", b.cast(total, f32)) for total in loop.results] if whole else list(loop.results)


def in_halves(component: Component, columns: int) -> bool:
    """Whether what follows a component's products of so many columns runs on one half of them, then on the other.

    A rotation holds angles beside the products, which fill half of the registers where a tile is as wide as it can be.
    """
    whole_rows = any(isinstance(op, ReduceOp) for op in component.ops)
    return columns * len(component.contracts) >= WIDE and not whole_rows and any(isinstance(op, RotateOp) for op in component.ops)


def finish_halves(
    e: ContractEmitter, component: Component, weights: Sequence[Weight], rows: Place, start: Operand, totals: Sequence[SSAValue]
) -> None:
    """Scales the products of a component and runs its epilogue on the left half of its columns, and on the right one."""
    b = e.b
    tokens, columns = shape(totals[0])
    split = [b.split(b.trans(b.reshape(total, (tokens, 2, columns // 2)), (0, 2, 1))) for total in totals]
    for number, halves in enumerate(zip(*split, strict=True)):
        first = e.hinted("half", b.add(start, number * columns // 2))
        vector = b.add(first, b.arange(columns // 2))
        n = b.named("n", b.expand(vector, 0))
        inside = None if component.width % columns == 0 else b.lt(n, component.width)
        results = tuple(w.scaled(half, Rows(vector, None, n, inside)) for w, half in zip(weights, halves, strict=True))
        finish_component(e, component, Place(rows.rows, n, rows.row_mask, inside), first, results, whole=False)

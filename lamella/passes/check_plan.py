"""A planned function goes in; its memory figures leave, or an IRError names two buffers that are live in the same bytes.

It shares no code with the planner: the planner takes each buffer from its first access to its last, the checker runs the launches
backwards with the set of values that are still wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import DictionaryAttr, FixedBitwidthType, IntegerAttr, MemRefType, ModuleOp, StridedLayoutAttr, i8
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import host
from lamella.dialects.attributes import element_type_of, python_value, shape_of, shaped
from lamella.dialects.messages import subject
from lamella.dialects.tile import FusedOp
from lamella.errors import IRError

ALIGNMENT = 256
LAUNCHES = FusedOp | host.LaunchOp | host.LibraryMatmulOp


@dataclass(frozen=True)
class Extent:
    """The bytes [start, stop) of the arena."""

    start: int
    stop: int

    def meets(self, other: Extent) -> bool:
        """Whether both have a byte in common."""
        return self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


@dataclass(frozen=True)
class Figures:
    """Bytes of the arena, of all buffers together, and of the buffers live at the worst launch."""

    arena: int
    buffers: int
    max_live: int


@dataclass
class _Check:
    function: func.FuncOp
    limit: int = 0
    """Bytes that the arena may have at most; 0 means any number."""
    extents: dict[SSAValue, Extent] = field(default_factory=dict[SSAValue, Extent])
    """Each view of the arena."""
    part_of: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Each value that lies in the arena -> the view it is or is part of."""
    numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    steps: list[Operation] = field(default_factory=list[Operation])

    def run(self) -> Figures:
        """Scan forwards for views and launches, then backwards for what is live. Raises IRError."""
        arena = self.arena()
        size = shape_of(arena)[0]
        for op in self.function.body.block.ops:
            self.scan(op, arena, size)
        live = self.live_at_end()
        most = self.bytes_of(live)
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            reads, writes = self.accesses(step)
            for view in (*writes, *reads):
                self.enter(view, live, index)
            most = max(most, self.bytes_of(live))
            live -= writes - reads
        for view in live:
            raise IRError(f"{self.where()}: {self.name(view)} is read before anything is written to it")
        figures = Figures(size, sum(_rounded(e) for e in self.extents.values()), most)
        if size < most:
            raise IRError(f"{self.where()}: the arena has {size} bytes, expected at least {most}, which are live at once")
        if 0 < self.limit < size:
            raise IRError(f"{self.where()}: the arena has {size} bytes, expected at most {self.limit}, its limit")
        self.compare(figures)
        return figures

    def arena(self) -> BlockArgument:
        args = self.function.body.block.args
        if not args or not isinstance(args[-1].type, MemRefType) or element_type_of(args[-1]) != i8 or len(shape_of(args[-1])) != 1:
            raise IRError(f"{self.where()}: the last argument is no arena, expected memref<BYTESxi8>")
        return args[-1]

    def scan(self, op: Operation, arena: SSAValue, size: int) -> None:
        """Records a view or a launch."""
        if isinstance(op, memref.AllocOp):
            raise IRError(f"{subject(op)}: an allocation outside of the arena in {self.where()}")
        if isinstance(op, memref.ViewOp) and op.source is arena:
            self.numbers[op.result] = len(self.numbers)
            self.part_of[op.result] = op.result
            self.extents[op.result] = extent = self.extent(op)
            if extent.start % ALIGNMENT:
                raise IRError(f"{self.where()}: {self.name(op.result)} at {extent} is not aligned to {ALIGNMENT} bytes")
            if extent.start < 0 or extent.stop > size:
                raise IRError(f"{self.where()}: {self.name(op.result)} at {extent} lies outside of the arena of {size} bytes")
            return
        if isinstance(op, LAUNCHES):
            self.steps.append(op)
            return
        owner = next((self.part_of[v] for v in op.operands if v in self.part_of), None)
        if owner is not None and op.results:
            self.part_of.update(dict.fromkeys(op.results, owner))
        elif owner is not None and not isinstance(op, func.ReturnOp):
            self.steps.append(op)

    def extent(self, view: memref.ViewOp) -> Extent:
        shift = view.byte_shift.owner
        if not isinstance(shift, arith.ConstantOp) or not isinstance(shift.value, IntegerAttr):
            raise IRError(f"{self.where()}: the offset of {self.name(view.result)} is not a constant")
        type = shaped(view.result.type)
        strided = isinstance(type, MemRefType) and isinstance(type.layout, StridedLayoutAttr)
        if strided or not isinstance(type.element_type, FixedBitwidthType):
            raise IRError(f"{self.where()}: {self.name(view.result)} has type {type}, expected contiguous elements")
        size = (type.element_type.bitwidth + 7) // 8
        for axis in type.get_shape():
            size *= axis
        return Extent(shift.value.value.data, shift.value.value.data + size)

    def live_at_end(self) -> set[SSAValue]:
        live: set[SSAValue] = set()
        terminator = self.function.body.block.last_op
        for value in terminator.operands if terminator is not None else ():
            if value in self.part_of:
                self.enter(self.part_of[value], live, len(self.steps))
        return live

    def accesses(self, step: Operation) -> tuple[set[SSAValue], set[SSAValue]]:
        """The views that a launch reads and writes. An op we do not know may do both; writing a part keeps the rest wanted."""
        if not isinstance(step, LAUNCHES):
            both = self.views(step.operands)
            return both, both
        parts = {self.part_of[v] for v in step.outs if v in self.part_of and v not in self.extents}
        return self.views(step.ins) | parts, self.views(step.outs)

    def views(self, values: Iterable[SSAValue]) -> set[SSAValue]:
        return {self.part_of[v] for v in values if v in self.part_of}

    def enter(self, view: SSAValue, live: set[SSAValue], index: int) -> None:
        """`view` is wanted at launch `index`: it must not meet what else is."""
        if view in live:
            return
        for other in live:
            if self.extents[view].meets(self.extents[other]):
                first, second = sorted((view, other), key=lambda v: self.numbers[v])
                raise IRError(
                    f"{self.where()}: {self.name(first)} at {self.extents[first]} and {self.name(second)} at {self.extents[second]} overlap, "
                    f"and both are live at {self.launch(index)}; {self.span(first)}, {self.span(second)}"
                )
        live.add(view)

    def span(self, view: SSAValue) -> str:
        """`%y is accessed by launches 1 (tile.fused at layers.0.attn) to 3 (…)`."""
        touched = [i for i, step in enumerate(self.steps) if view in self.views(step.operands)]
        if not touched:
            return f"{self.name(view)} is accessed by no launch"
        return f"{self.name(view)} is accessed from {self.launch(touched[0])} to {self.launch(touched[-1])}"

    def launch(self, index: int) -> str:
        return f"launch {index} ({subject(self.steps[index])})" if index < len(self.steps) else "the end"

    def name(self, view: SSAValue) -> str:
        return f"%{view.name_hint}" if view.name_hint else f"view {self.numbers.get(view, len(self.numbers))}"

    def where(self) -> str:
        return f"plan of @{self.function.sym_name.data}"

    def bytes_of(self, live: Iterable[SSAValue]) -> int:
        return sum(_rounded(self.extents[view]) for view in live)

    def compare(self, figures: Figures) -> None:
        """What the planner claims is what is there (its max-live counts buffers between a dead write and the next one, so it may be larger)."""
        recorded = self.function.attributes.get("lamella.memory")
        if not isinstance(recorded, DictionaryAttr):
            return
        for key, got in (("arena", figures.arena), ("buffers", figures.buffers)):
            claim = python_value(recorded.data[key]) if key in recorded.data else got
            if claim != got:
                raise IRError(f"{self.where()}: lamella.memory says {key} = {claim}, but there are {got} bytes")
        limit = python_value(recorded.data["limit"]) if "limit" in recorded.data else 0
        if isinstance(limit, int) and 0 < limit < figures.arena:
            raise IRError(f"{self.where()}: lamella.memory says limit = {limit}, but the arena has {figures.arena} bytes")


def check_plan(function: func.FuncOp, limit: int = 0) -> Figures:
    """The memory figures of a planned function.

    Raises IRError when two live buffers overlap, a buffer is misplaced or unwritten, or the arena is larger than `limit` (0: any size).
    """
    return _Check(function, limit).run()


def check_library(function: func.FuncOp) -> None:
    """A library computes nothing in a decode step, and elsewhere only products of as many rows as `lamella.library` says. Raises IRError."""
    bucket, allowed = function.attributes.get("lamella.bucket"), function.attributes.get("lamella.library")
    decode = isinstance(bucket, DictionaryAttr) and "advance" in bucket.data and bool(python_value(bucket.data["advance"]))
    least = python_value(allowed.data["tokens"]) if isinstance(allowed, DictionaryAttr) and "tokens" in allowed.data else None
    where = f"plan of @{function.sym_name.data}"
    for op in function.body.block.ops:
        if not isinstance(op, FusedOp) or op.schedule is None or op.schedule.skeleton.data != "library":
            continue
        rows = next((shape_of(inner.operands[0])[0] for inner in op.body.block.ops if inner.name == "tile.contract"), 0)
        if decode:
            raise IRError(f"{where}: {subject(op)} is a call of a library in a decode step")
        if not isinstance(least, int) or rows < least:
            raise IRError(
                f"{where}: {subject(op)} is a call of a library for {rows} rows, expected {'no call' if least is None else f'at least {least}'}"
            )


@dataclass(frozen=True)
class CheckPlan(ModulePass):
    """Proves the plan of each function that has one, and leaves the module as it is.

    Before and after:
        func.func @forward(…, %arena: memref<512xi8>) attributes {lamella.memory = {…}} {…}

    An arena larger than `max-arena` bytes (0: any size), or than the limit that `lamella.memory` records, is an error too.
    So is a region for a library of matrix products in a decode step, or of fewer rows than `lamella.library` allows. With `report=true` it prints one comment line a function: `// @forward: arena 512 bytes, buffers 768, max live 512`.
    """

    name = "check-plan"

    report: bool = False
    max_arena: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and "lamella.memory" in function.attributes:
                figures = check_plan(function, self.max_arena)
                check_library(function)
                if self.report:
                    name = function.sym_name.data
                    print(f"// @{name}: arena {figures.arena} bytes, buffers {figures.buffers}, max live {figures.max_live}")


def _rounded(extent: Extent) -> int:
    return (extent.stop - extent.start + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

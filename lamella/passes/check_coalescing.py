"""Kernels go in; they leave with a record of every access: how much of the memory lines it touches it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from lamella.dialects import kernel
from lamella.dialects.attributes import ELEMENT_BYTES, Value, attribute_of, python_value
from lamella.dialects.kernel.types import element, element_type, shape
from lamella.passes.block_forms import Axis, Form, Forms

LINE = 128
"""Bytes of a line: what a miss brings into the caches of every NVIDIA GPU (in four sectors of 32)."""
FLAGGED = ("strided", "gathered")
"""The verdicts that waste a part of most lines."""


@dataclass(frozen=True)
class Access:
    """What one load, store or atomic addition touches in one program.

    `width` is the bytes in one piece, `total` the distinct bytes, `stride` the elements between neighbours along the fastest axis (0 where
    there are none). `waste` is the share of the touched lines that goes unused, in percent, if every piece starts where it does best.
    Verdicts: `whole` (pieces fill lines), `small` (all of it would fit one line), `strided`, `gathered` (short pieces at addresses from
    a table), `unknown`.
    """

    op: str
    pointer: str
    value: str
    source: str
    stride: int
    width: int
    total: int
    waste: int
    verdict: str

    @property
    def record(self) -> Mapping[str, Value]:
        """The access as it stands in the IR."""
        return {
            "op": self.op,
            "pointer": self.pointer,
            "value": self.value,
            "source": self.source,
            "stride": self.stride,
            "width_bytes": self.width,
            "bytes": self.total,
            "waste": self.waste,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class CheckCoalescing(ModulePass):
    """Records what each access of a kernel touches, and flags those that waste a part of every line.

    Before:
        kernel.func @k(%x_ptr: !kernel.ptr<f32>, …) attributes {num_warps = 4 : i64, …} {
          %n = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
          %offsets = kernel.mul %n, %width {…}          // 512 columns
          %column = kernel.load %x_ptr[%offsets] {…}
    After:
        kernel.func @k(…) attributes {access = [{op = "load", pointer = "x_ptr", value = "column", stride = 512 : i64, width_bytes = 4 : i64,
                                                 bytes = 256 : i64, waste = 96 : i64, verdict = "strided", …}], …} {

    An analysis: nothing else changes and nothing is refused. Masks are taken to be true, and a program's pieces to start where they fit
    lines best. Accesses whose bytes would all fit in one line are `small`: no layout would make them cheaper by much. A `gathered` access
    is judged by the piece it reads at each address.
    """

    name = "check-coalescing"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, kernel.FuncOp):
                function.attributes["access"] = attribute_of([access.record for access in accesses(function)])


def recorded(function: kernel.FuncOp) -> list[Mapping[str, Any]]:
    """The records that the pass left on a kernel; none where it has not run."""
    found = function.attributes.get("access")
    return cast("list[Mapping[str, Any]]", python_value(found)) if found is not None else []


def accesses(function: kernel.FuncOp) -> list[Access]:
    """The accesses of a kernel in the order of its text."""
    forms = Forms(function)
    found: list[Access] = []
    for op in function.walk():
        if isinstance(op, kernel.LoadOp | kernel.StoreOp | kernel.AtomicAddOp):
            found.append(access(op, forms.of(op.offsets)))
        elif isinstance(op, kernel.LoadBlockOp):
            found.append(block_access(op))
    return found


def block_access(op: kernel.LoadBlockOp) -> Access:
    """What the hardware reads of a described matrix: the rows of a block, each in one piece."""
    rows, columns = shape(op.result)
    size = ELEMENT_BYTES[element(op.result)]
    width, total = columns * size, rows * columns * size
    waste = 100 - 100 * width // (-(-width // LINE) * LINE)
    found = "small" if total <= LINE else "strided" if waste else "whole"
    pointer, value = op.descriptor.name_hint or "", op.result.name_hint or ""
    return Access("load_block", pointer, value, source(op), stride=1, width=width, total=total, waste=waste, verdict=found)


def access(op: kernel.LoadOp | kernel.StoreOp | kernel.AtomicAddOp, offsets: Form) -> Access:
    """What one op touches at `offsets`, counted in elements."""
    size = ELEMENT_BYTES[element(element_type(op.pointer.type))]
    total = size * prod(axis.distinct for axis in offsets.axes)
    width = min(total, size * piece(offsets))
    moving = [abs(axis.stride) for axis in offsets.axes if axis.stride and axis.run > 1]
    waste = 100 - 100 * width // (-(-width // LINE) * LINE)
    value = op.value if isinstance(op, kernel.StoreOp) else op.result
    return Access(
        op=op.name.removeprefix("kernel."),
        pointer=op.pointer.name_hint or "",
        value=value.name_hint or "",
        source=source(op),
        stride=min(moving, default=0),
        width=width,
        total=total,
        waste=waste,
        verdict=verdict(offsets, width, total, size),
    )


def piece(offsets: Form) -> int:
    """Elements in one piece: the axes that continue each other, from the one of stride 1 upwards."""
    width = 1
    left = [axis for axis in offsets.axes if axis.run > 1 and axis.stride]
    while (following := next((axis for axis in left if abs(axis.stride) == width), None)) is not None:
        left.remove(following)
        width *= following.run
        if following.run < following.size:
            break
    return width


def verdict(offsets: Form, width: int, total: int, size: int) -> str:
    """How good an access of pieces of `width` bytes is."""
    if total <= LINE:
        return "small"
    if width >= LINE or width == total:
        return "whole"
    broken = [axis for axis in offsets.axes if axis.run < axis.size]
    if any(axis.table for axis in broken):
        return "gathered"
    return "unknown" if any(near(axis, size) for axis in broken) else "strided"


def near(axis: Axis, size: int) -> bool:
    """Whether the next piece along an axis may continue this one: the analysis does not see that it lies a line away."""
    return 0 < axis.jump * size < LINE


def source(op: Operation) -> str:
    """The model location an op came from."""
    found = op.attributes.get("source")
    return found.data if isinstance(found, StringAttr) else ""

"""How a contraction reads a weight of eight-bit floats: as it reads others, for the hardware widens them, with a scale for each sum."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import BFloat16Type, f32
from xdsl.ir import SSAValue

from lamella.dialects.kernel.types import element_type
from lamella.dialects.tile import DequantizeOp
from lamella.lowering.tile_to_kernel.weight import PlainWeight, Rows, product, scaled_rows


@dataclass(frozen=True)
class FloatWeight(PlainWeight):
    """Eight-bit floats in memory, with one scale a row. One token: an instruction widens two of them to f16, another each to f32."""

    op: DequantizeOp

    @property
    def matrix(self) -> SSAValue:
        return self.op.words

    def dot(self, xs: SSAValue, w: SSAValue, acc: SSAValue, down: bool) -> SSAValue:
        b, element = self.e.b, element_type(xs.type)
        # From f16 to bf16 there is only a slow instruction for one number; from f32 one for two.
        wide = b.cast(w, f32) if isinstance(element, BFloat16Type) else w
        return product(b, xs, b.named("w_wide", b.cast(wide, element)), acc, down)

    def scaled(self, sums: SSAValue, rows: Rows) -> SSAValue:
        return scaled_rows(self.e, sums, self.op.scales, rows, self.source)

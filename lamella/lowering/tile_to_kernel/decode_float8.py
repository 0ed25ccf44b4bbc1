"""How a contraction reads a weight of eight-bit floats: as it reads others, for the hardware widens them, with a scale for each sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import BFloat16Type, Float8E4M3FNType, f16, f32
from xdsl.ir import SSAValue

from lamella.dialects.kernel.types import element_type, shape
from lamella.dialects.tile import DequantizeOp
from lamella.lowering.tile_to_kernel.digits import exponents, inverse
from lamella.lowering.tile_to_kernel.weight import Piece, PlainWeight, Rows, product, scaled_rows


@dataclass(frozen=True)
class FloatWeight(PlainWeight):
    """Eight-bit floats in memory, with one scale a row. One token: an instruction widens two of them to f16, another each to f32."""

    op: DequantizeOp

    @property
    def matrix(self) -> SSAValue:
        return self.op.words

    def multiply(
        self, xs: Sequence[SSAValue], sums: Sequence[SSAValue], rows: Rows, pieces: Sequence[Piece], held: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Few tokens in bf16 become f16, to which one instruction widens two eight-bit floats: divided by a power of two that fits their piece."""
        if not rows.down or not isinstance(element_type(xs[0].type), BFloat16Type):
            return super().multiply(xs, sums, rows, pieces, held)
        b, (acc,) = self.e.b, sums
        with b.source(self.source):
            for x, piece in zip(xs, pieces, strict=True):
                wide = b.cast(x, f32)
                exponent = exponents(b, [wide])
                small = b.named("x_small", b.cast(b.mul(wide, inverse(b, exponent)), f16))
                products = self.dot(small, self.tile(rows, piece), None, rows.down)
                back = b.bitcast(exponent, f32)
                acc = b.add(acc, b.mul(products, b.trans(back) if shape(back) else back))
        return [acc]

    def dot(self, xs: SSAValue, w: SSAValue, acc: SSAValue | None, down: bool) -> SSAValue:
        b, element = self.e.b, element_type(xs.type)
        if isinstance(element, Float8E4M3FNType):
            return product(b, xs, w, acc, down)
        # From f16 to bf16 there is only a slow instruction for one number; from f32 one for two.
        wide = b.cast(w, f32) if isinstance(element, BFloat16Type) else w
        return product(b, xs, b.named("w_wide", b.cast(wide, element)), acc, down)

    def scaled(self, sums: SSAValue, rows: Rows) -> SSAValue:
        return scaled_rows(self.e, sums, self.op.scales, rows, self.source)

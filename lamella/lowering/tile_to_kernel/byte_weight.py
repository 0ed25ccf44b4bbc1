"""How a contraction reads a weight of bytes where x is bytes too: as they lie, and the sums are whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from lamella.dialects import kernel
from lamella.lowering.tile_to_kernel.decode import PackedWeight
from lamella.lowering.tile_to_kernel.weight import Piece, Rows, product


@dataclass(frozen=True)
class ByteWeight(PackedWeight):
    """Bytes with one scale a row, multiplied with the bytes of x: sums of 32 bits are exact, and the scale of a row finishes them."""

    def start(self, tokens: int, rows: int, down: bool) -> list[SSAValue]:
        b, columns = self.e.b, max(tokens, kernel.MIN_DOT_N)
        return [b.named("acc", b.full((rows, columns) if down else (tokens, rows), 0, i32))]

    def multiply(
        self, xs: Sequence[SSAValue], sums: Sequence[SSAValue], rows: Rows, pieces: Sequence[Piece], held: Sequence[SSAValue]
    ) -> list[SSAValue]:
        b, (acc,) = self.e.b, sums
        with b.source(self.source):
            for x, tile in zip(xs, self.tiles(rows, pieces), strict=True):
                acc = product(b, x, tile, acc, rows.down)
        return [acc]

    def total(self, sums: Sequence[SSAValue], tokens: int, down: bool) -> SSAValue:
        b, (acc,) = self.e.b, sums
        return super().total([b.named("sums", b.cast(acc, f32))], tokens, down)

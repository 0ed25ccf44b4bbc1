"""Where attention reads the paged cache: positions of a sequence go in; keys or values of them leave, from blocks that a table names (arXiv 2309.06180)."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import BFloat16Type, Float16Type, f32, i64
from xdsl.ir import Attribute, SSAValue

from lamella.dialects.attributes import python_int, shape_of
from lamella.dialects.tile import AttendOp, AttendPartialOp
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.tile_to_kernel.emitter import Emitter

KEYS, VALUES = 0, 1
"""The two halves of a block of the cache."""


@dataclass(frozen=True)
class Loaded:
    """Keys [D, T] or values [T, D] as they lie in a cache, and of float8 the scale of each of the T."""

    which: int
    block: SSAValue
    scale: SSAValue | None

    def unless(self, other: Loaded, mask: SSAValue, b: KernelBuilder) -> Loaded:
        """These where `mask` is true, `other` elsewhere."""
        name = ("keys", "values")[self.which]
        block = b.named(name, b.where(b.expand(mask, self.which), self.block, other.block))
        if self.scale is None or other.scale is None:
            return Loaded(self.which, block, None)
        return Loaded(self.which, block, b.named(f"scale_of_{name}", b.where(mask, self.scale, other.scale)))

    def widened(self, element: Attribute, b: KernelBuilder) -> SSAValue:
        """The numbers in `element`, in which those of float8 are exact."""
        if self.scale is None:
            return self.block
        # From f16 to bf16 there is only a slow instruction for one number; from f32 one for two.
        wide = b.cast(self.block, f32) if isinstance(element, BFloat16Type) else self.block
        return b.cast(wide, element)

    def mixed(self, p: SSAValue, element: Attribute, acc: SSAValue, b: KernelBuilder) -> SSAValue:
        """`acc` with these values added, times probabilities p [rows, T] and their scales."""
        if self.scale is None:
            return b.dot(b.cast(p, element), self.block, acc)
        scale, values = self.scale, self.widened(element, b)
        if not isinstance(element, Float16Type):
            return b.dot(b.cast(b.mul(p, b.expand(scale, 0)), element), values, acc)
        # Probabilities times scales would vanish in f16: scales are taken relative to the tile's largest, which multiplies the sums.
        top = b.named("top_scale", b.maximum(b.reduce(scale, "max", 0), SMALLEST_SCALE))
        products = b.dot(b.cast(b.mul(p, b.expand(b.div(scale, top), 0)), element), values)
        return b.add(acc, b.mul(products, top))


SMALLEST_SCALE = 2.0**-120
"""What scales of a tile are divided by at least."""


@dataclass(frozen=True)
class CacheTiles:
    """Where a program reads the cache: its sequence and key/value head, `size` positions at a time."""

    e: Emitter
    op: AttendOp | AttendPartialOp
    size: int
    sequence: SSAValue
    kv_head: SSAValue
    d: SSAValue
    d_mask: SSAValue | None
    turned: bool
    """Whether keys are loaded as they lie, [T, D], and turned: with many queries that leaves more registers, with one it costs a copy."""

    def at(self, first: SSAValue, high: SSAValue | None = None, *, inside: bool = False) -> CacheTile:
        """The positions from `first` on, below `high` where that is given: their blocks are looked up in the table, which has entries
        for all of them where they lie `inside`."""
        b, op = self.e.b, self.op
        t = b.named("t", b.add(b.arange(self.size), first))
        t_mask = None if high is None else b.lt(t, high)
        block_size = shape_of(op.cache)[3]
        entry = b.add(b.mul(self.sequence, shape_of(op.block_table)[1]), b.floordiv(t, block_size))
        there = None if inside else t_mask
        block = b.load(self.e.pointers[op.block_table], entry, there, None if there is None else 0)
        number = b.named("number", b.cast(block, i64))
        return CacheTile(self, t, t_mask, number, b.cast(b.mod(t, block_size), i64))


@dataclass(frozen=True)
class CacheTile:
    """Positions of a sequence, which of them are there (None: all), and the block and slot of each."""

    tiles: CacheTiles
    t: SSAValue
    t_mask: SSAValue | None
    number: SSAValue
    slot: SSAValue

    def load(self, which: int, mask: SSAValue | None = None, *, settled: bool = False) -> Loaded:
        """Keys [D, T] or values [T, D] of the positions, 0 where `mask` is false; `settled` as for `kernel.load`."""
        e, op, b = self.tiles.e, self.tiles.op, self.tiles.e.b
        turned = which == KEYS and self.tiles.turned
        across, along = (0, 1) if which == KEYS and not turned else (1, 0)
        block_size, dim = shape_of(op.cache)[3], python_int(op.head_dim)
        cell = b.add(b.mul(b.add(b.mul(self.number, 2), which), python_int(op.kv_heads)), b.cast(self.tiles.kv_head, i64))
        slot = b.add(b.mul(cell, block_size), self.slot)
        offsets = b.add(b.expand(b.mul(slot, dim), across), b.expand(b.cast(self.tiles.d, i64), along))
        there, d_mask = b.all_of(self.t_mask, mask), self.tiles.d_mask
        both = b.all_of(None if there is None else b.expand(there, across), None if d_mask is None else b.expand(d_mask, along))
        name = ("keys" if which == KEYS else "values") if mask is None else f"{'old' if settled else 'new'}_{('keys', 'values')[which]}"
        block = b.named(name, b.load(e.pointers[op.cache], offsets, both, None if both is None else 0.0, settled=settled))
        block = b.trans(block) if turned else block
        if op.scales is None:
            return Loaded(which, block, None)
        scale = b.load(e.pointers[op.scales], slot, there, None if there is None else 0.0, settled=settled)
        return Loaded(which, block, b.named(f"scale_of_{name}", scale))

"""Level 4 to 5: regions with schedules and buffers in, kernels and their launches out."""

from lamella.lowering.tile_to_kernel.convert import TileToKernel

__all__ = ["TileToKernel"]

"""Level 1 to 2: one function of transformer ops in, the same function in structured tile ops with explicit rounding out."""

from lamella.lowering.transformer_to_tile.convert import TransformerToTile

__all__ = ["TransformerToTile"]

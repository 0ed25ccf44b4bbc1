"""Cells go in, aligned lines of plain text leave: tables that a pipe, a pager and a narrow terminal all keep whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

GAP = "  "


@dataclass(frozen=True)
class TextTable:
    """A title, a header and rows; columns named in `right` are aligned to the right, as numbers are."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()

    def __str__(self) -> str:
        flags = [name in self.right for name in self.header]
        lines = aligned([self.header, *self.rows], flags)
        return "\n".join([self.title, *(f"  {line}" for line in lines)])


def aligned(rows: Iterable[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """One line a row, cells padded to the widest of their column; nothing is cut and no line ends in spaces."""
    table = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip_longest(*table, fillvalue="")]
    sides = [*right, *[False] * (len(widths) - len(right))]
    return [
        GAP.join(f"{cell:>{width}}" if flag else f"{cell:<{width}}" for cell, width, flag in zip(row, widths, sides, strict=False)).rstrip()
        for row in table
    ]

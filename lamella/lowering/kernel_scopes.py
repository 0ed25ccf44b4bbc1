"""What a kernel under construction keeps of the blocks it is in: their ops, by which none is built twice, and the values of a loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue


@dataclass(frozen=True)
class Scope:
    """A block under construction, and the pure ops it holds. An isolated scope sees none of the ops around it."""

    block: Block
    isolated: bool = False
    memo: dict[tuple[object, ...], Operation] = field(default_factory=dict[tuple[object, ...], Operation])


@dataclass
class Loop:
    """A loop under construction: its index and carried values inside, its results once it is closed."""

    index: SSAValue
    values: tuple[SSAValue, ...]
    results: tuple[SSAValue, ...] = ()
    next_values: tuple[SSAValue, ...] | None = None

    def yields(self, *values: SSAValue) -> None:
        """Says what the next iteration carries: one value for each of `values`, of the same type."""
        self.next_values = values

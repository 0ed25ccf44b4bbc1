"""The programs that each part of a region takes go in; a grid that they divide between them leaves: one branch a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.emitter import Emitter


def over_parts(e: Emitter, programs: Sequence[int], names: Sequence[str], body: Callable[[int, Operand], None], axis: int = 0) -> None:
    """Runs `body(part, number among its programs)` in the programs of each part, which `axis` of the grid numbers: a branch for each.

    `names` are what the parts are called in the printed text.
    """
    b = e.b
    program = b.named("program", b.program_id(axis))
    bounds = [sum(programs[: i + 1]) for i in range(len(programs))]
    conditions = [e.hinted(f"is_{name}", b.lt(program, bound)) for name, bound in zip(names, bounds[:-1], strict=False)]

    def branch(number: int) -> None:
        first = bounds[number] - programs[number]
        if number == len(programs) - 1:
            body(number, b.sub(program, first))
            return
        with b.if_(conditions[number]), e.scope():
            body(number, b.sub(program, first))
        with b.else_(), e.scope():
            branch(number + 1)

    branch(0)

"""Programs that divide a launch: each part of a region has some, in a branch of its own; of those that share a result the last one finishes it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from xdsl.ir import SSAValue

from lamella.lowering.kernel_builder import Operand
from lamella.lowering.tile_to_kernel.emitter import Emitter


def over_parts(
    e: Emitter, programs: Sequence[int], names: Sequence[str], body: Callable[[int, Operand], None], axis: int = 0, *, in_turn: bool = False
) -> None:
    """Runs `body(part, number among its programs)` in the programs of each part, which `axis` of the grid numbers: a branch for each.

    `names` are what the parts are called in the printed text. Branches exclude each other; `in_turn` they stand one after the other, for to
    Triton the two sides of one branch never share memory (3.6 and 3.9), and tiles in flight of several parts would not fit.
    """
    b = e.b
    program = b.named("program", b.program_id(axis))
    bounds = [sum(programs[: i + 1]) for i in range(len(programs))]
    if in_turn and len(programs) > 1:
        for number, (name, bound, own) in enumerate(zip(names, bounds, programs, strict=True)):
            after = b.ge(program, bound - own) if number else None
            before = b.lt(program, bound) if number < len(programs) - 1 else None
            here = b.all_of(after, before)
            assert here is not None
            with b.if_(e.hinted(f"is_{name}", here)), e.scope():
                body(number, b.sub(program, bound - own))
        return
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


@contextmanager
def by_the_last(e: Emitter, counters: SSAValue, group: SSAValue, programs: int) -> Generator[None]:
    """What runs in the last of the `programs` programs that share counter `group` of `counters`, which is 0 before and after.

    What the others stored is visible once their arrivals are: threads of a program meet before one of them adds (release), and the
    program that sees the last number (acquire) reads past its first-level cache.
    """
    b = e.b
    b.barrier()
    arrived = b.named("arrived", b.atomic_add(counters, group, 1))
    with b.if_(b.eq(arrived, programs - 1)), e.scope():
        yield
        b.store(counters, group, 0)

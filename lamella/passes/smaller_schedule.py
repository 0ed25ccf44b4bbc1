"""A schedule goes in; one whose programs take less at a time leaves: for kernels that spill registers."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from xdsl.ir import Operation

from lamella.dialects.attributes import shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import AttendOp, ScheduleAttr
from lamella.errors import PassError
from lamella.passes.packed_columns import piece_columns
from lamella.passes.region_parts import Parts, parts
from lamella.passes.schedules import minimum_columns, power_of_two

MOST_WARPS = 16
LEAST_CHUNK = 256
"""Columns of a row that a program takes at once, at least."""
LEAST_TILE = 16
"""Rows, columns or positions of a tensor core's tile."""


def read_smaller(text: str) -> list[tuple[str, int]]:
    """The patterns of `PATTERN=N;PATTERN=N`: regions with an op at such a location take a schedule N steps smaller. Raises PassError."""
    found: list[tuple[str, int]] = []
    for item in filter(None, text.split(";")):
        pattern, _, steps = item.rpartition("=")
        if not pattern or not steps.isdigit():
            raise PassError("bad option smaller", where="choose-schedule", expected="LOCATION=STEPS;…", got=item)
        found.append((pattern, int(steps)))
    return found


def steps_for(ops: Sequence[Operation], patterns: Sequence[tuple[str, int]]) -> int:
    """How many steps smaller the schedule of a region shall be."""
    places = {location(op) for op in ops}
    return max((steps for pattern, steps in patterns if any(fnmatchcase(place, pattern) for place in places)), default=0)


def smaller(schedule: ScheduleAttr, ops: Sequence[Operation], steps: int = 1) -> ScheduleAttr:
    """The schedule `steps` steps smaller, or as small as there is one."""
    skeleton = schedule.skeleton.data
    options = {name: schedule.get(name) for name in schedule.options.data}
    for _ in range(steps):
        options |= _step(skeleton, options, ops)
    return ScheduleAttr.of(skeleton, **options)


def _step(skeleton: str, options: dict[str, int], ops: Sequence[Operation]) -> dict[str, int]:
    """The option that changes: fewer rows, columns, positions or queries a program, then more warps to share them."""
    match skeleton:
        case "gemv" | "mma":
            split = parts(ops)
            need = max(minimum_columns(split, i) for i in range(len(split.components)))
            if "runs" in options:
                return _fewer_runs(options, split, need)
            least = {"rows": need} if skeleton == "gemv" else {"n": max(LEAST_TILE, need), "m": LEAST_TILE}
        case "attend":
            attend = next(op for op in ops if isinstance(op, AttendOp))
            group = attend.heads.value.data // attend.kv_heads.value.data
            if options["splits"] > 1 and options["queries"] > 1:
                return {"splits": 1}
            if options["tile"] <= LEAST_TILE and options["queries"] > 1:
                queries = options["queries"] // 2
                return {"queries": queries, "rows": max(LEAST_TILE, power_of_two(queries * group))}
            least = {"tile": LEAST_TILE}
        case "row":
            least = {"columns": LEAST_CHUNK}
        case _:
            return {}
    for name, fewest in least.items():
        if options[name] > fewest:
            return {name: options[name] // 2}
    return {"warps": min(MOST_WARPS, options["warps"] * 2)}


def _fewer_runs(options: dict[str, int], split: Parts, need: int) -> dict[str, int]:
    """Fewer rows for the one warp that has them, then shorter trips over K."""
    least = max(2, need)
    if options["rows"] > least:
        return {"rows": options["rows"] // 2}
    k, piece = shape_of(split.contracts[0].x)[1], piece_columns(split.contracts[0])
    shorter = [n for n in range(1, options["k"] // piece) if (k // piece) % n == 0]
    return {"k": shorter[-1] * piece} if shorter else {}

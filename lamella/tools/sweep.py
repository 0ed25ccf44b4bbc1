"""A model, an option of a pass and values for it go in; a table leaves: launches, bytes, kernels, arena, registers and time for each value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamella.errors import PassError
from lamella.runtime.manifest import Manifest
from lamella.tools.costs import step_cost
from lamella.tools.explain import byte_size
from lamella.tools.text_table import TextTable

if TYPE_CHECKING:
    from lamella.api import LoadedModel, Program
    from lamella.tools.cross_compile import KernelResources

Value = int | float | bool | str
RANGE = re.compile(r"^(-?\d+)\.\.(-?\d+)$")
TIMED_TOKENS = 64
"""Decode steps that a measured time is the mean of."""


@dataclass(frozen=True)
class Axis:
    """An option of a pass, and the values it takes one after the other."""

    name: str
    option: str
    values: tuple[Value, ...]

    @staticmethod
    def parse(text: str, *, one: bool = False) -> Axis:
        """`fuse-regions.max-depth=0..6`, `fuse-regions.prologue=true,false`; with `one` a single value, whatever is in it. Raises PassError."""
        where = "--set" if one else "--over"
        example = "VALUE, such as fuse-regions.max-depth=2" if one else "VALUES, such as fuse-regions.max-depth=0..6"
        target, equals, values = text.partition("=")
        name, dot, option = target.partition(".")
        if not (equals and dot and name and option and values):
            raise PassError("bad option of a pass", where=where, expected=f"PASS.OPTION={example}", got=f"'{text}'")
        if one:
            return Axis(name, option, (parse_value(values),))
        bounds = RANGE.match(values)
        if bounds:
            low, high = int(bounds[1]), int(bounds[2])
            if low > high:
                raise PassError("an empty range", where="--over", got=f"'{values}'")
            return Axis(name, option, tuple(range(low, high + 1)))
        return Axis(name, option, tuple(parse_value(part) for part in values.split(",")))


def parse_value(text: str) -> Value:
    """A value of an option: a number or a truth value where it looks like one, else text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Row:
    """What one value gives, for one bucket; registers and spills are the most of any kernel, times are measured."""

    value: Value
    bucket: str
    launches: int
    kernels: int
    bytes: int
    arena: int
    registers: int | None = None
    spills: int | None = None
    microseconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON."""
        return dict(vars(self))


def sweep(
    model: LoadedModel,
    axis: Axis,
    *,
    buckets: Sequence[int],
    dtype: str,
    max_context: int | None,
    context: int | None,
    arch: str | None,
    gpu: bool,
    show: Callable[[str], None],
) -> list[Row]:
    """Compiles the model once for each value; `arch` asks for registers and spills, `gpu` for the time of a decode step."""
    from lamella import api
    from lamella.tools.cross_compile import cross_compile

    rows: list[Row] = []
    for value in axis.values:
        options = {axis.name: {axis.option: value}}
        show(f"compiling with {axis.name}.{axis.option} = {_shown(value)}")
        program = api.compile(model, arch=arch, dtype=dtype, buckets=buckets, max_context=max_context, keep_ir=False, pass_options=options)
        figures = {} if arch is None else dict(zip(program.kernels, cross_compile(program.kernels, arch), strict=True))
        time = decode_time(model, dtype, max_context, options) if gpu and 1 in buckets else None
        rows += rows_of(value, program, context, figures, time)
    return rows


def rows_of(
    value: Value, program: Program, context: int | None, figures: Mapping[str, KernelResources], microseconds: float | None
) -> list[Row]:
    """A row for each bucket of a program."""
    manifest = program.manifest
    assert isinstance(manifest, Manifest)
    rows: list[Row] = []
    for shape, bucket in zip(program.shapes, manifest.buckets, strict=True):
        names = {launch.kernel for launch in bucket.launches}
        used = [figures[name] for name in names if name in figures]
        moved = step_cost(manifest, bucket, context or manifest.max_context).bytes
        rows.append(
            Row(
                value,
                shape.name,
                len(bucket.launches),
                len(names),
                moved,
                bucket.arena_bytes,
                max((f.registers for f in used), default=None),
                max((f.spills for f in used), default=None),
                microseconds if bucket.advance else None,
            )
        )
    return rows


def decode_time(model: LoadedModel, dtype: str, max_context: int | None, options: Mapping[str, Mapping[str, Value]]) -> float:
    """Microseconds of a decode step on the GPU: the mean of some steps after a warm-up."""
    from lamella import api

    loaded = api.load(model, device="cuda", dtype=dtype, max_context=max_context, buckets=(1,), pass_options=options)
    loaded.generate([1], max_new_tokens=TIMED_TOKENS, ignore_eos=True)
    made = loaded.generate([1], max_new_tokens=TIMED_TOKENS, ignore_eos=True)
    return 1e6 / made.timings["tokens_per_second"]


def sweep_table(axis: Axis, rows: Sequence[Row]) -> TextTable:
    """The rows; columns that nothing fills are left out."""
    optional = {"registers": "registers", "spills": "spills", "microseconds": "us a step"}
    filled = [name for name in optional if any(getattr(row, name) is not None for row in rows)]
    header = (axis.option, "bucket", "launches", "kernels", "bytes moved", "arena", *(optional[name] for name in filled))
    cells = [
        [
            _shown(row.value),
            row.bucket,
            str(row.launches),
            str(row.kernels),
            byte_size(row.bytes),
            byte_size(row.arena),
            *(_number(getattr(row, name)) for name in filled),
        ]
        for row in rows
    ]
    return TextTable(f"{axis.name}.{axis.option}", header, cells, frozenset(header) - {"bucket"})


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)

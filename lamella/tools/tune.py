"""Regions and something that times them go in; a file of measurements leaves, from which `choose-schedule` takes its schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from lamella.errors import PassError
from lamella.passes.tuning import Entry, Measurements, read_entries, user_file, write_entries
from lamella.region_programs import RegionProgram, TunableRegion, schedule_text
from lamella.tools.text_table import TextTable

GAIN = 0.015
"""What a schedule must save of the time of the cost model's to take its place: less is noise."""
GROUP = 8
"""Regions whose kernels are compiled together: enough to keep all cores busy, and the budget counts between groups."""
STEP_COLUMNS = ("model's step", "step us")
"""Of regions that were decided by the whole step."""
NUMBERS = frozenset({"launches", "schedules", "model us", "best us", "gain", "ceiling", *STEP_COLUMNS})


@dataclass(frozen=True)
class Timing:
    """Microseconds of one execution of a region; None and the reason where a schedule cannot run. Only `final` times may win."""

    us: float | None
    failure: str = ""
    final: bool = True


@dataclass(frozen=True)
class Measured:
    """The times of the schedules of a region, in their order, and the least time the device could take."""

    timings: Sequence[Timing]
    bound_us: float


class Timer(Protocol):
    """Something that times regions on a device; `GpuTimer` is the one that ships."""

    @property
    def name(self) -> str:
        """What the device calls itself."""
        ...

    @property
    def triton(self) -> str:
        """The version of Triton that compiles the kernels."""
        ...

    def compile(self, programs: Sequence[RegionProgram], show: Callable[[int, int], None]) -> None:
        """Compiles kernels ahead of `measure`, in parallel; `show(done, total)` is called after each."""
        ...

    def measure(self, region: TunableRegion, programs: Sequence[RegionProgram]) -> Measured:
        """The time of each program, the first of which is the cost model's."""
        ...


@dataclass(frozen=True)
class Row:
    """What became of one region. `state` is `measured`, `known` (it was before) or `left` (the budget ended)."""

    region: TunableRegion
    state: str
    entry: Entry | None = None
    failures: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON."""
        entry = None if self.entry is None else self.entry.as_dict()
        where = {"loc": self.region.loc, "launches": dict(self.region.launches), "schedules": len(self.region.candidates)}
        return {"key": self.region.key, "state": self.state, **where, "failures": list(self.failures), "measurement": entry}


def tune(
    regions: Sequence[TunableRegion],
    timer: Timer,
    path: Path,
    *,
    again: bool = False,
    budget_seconds: float | None = None,
    clock: Callable[[], float] = perf_counter,
    show: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Measures the regions of which nothing is known (with `again`: all), and adds what it finds to the file `path` after each.

    Once `budget_seconds` are over no further region is begun. Raises PassError for a file that holds something else, OutputError for
    one that cannot be written, and what the timer raises.
    """
    rows: dict[str, Row] = {r.key: Row(r, "known", r.known) for r in regions if r.known is not None and not again}
    end = None if budget_seconds is None else clock() + budget_seconds
    work = [region for region in regions if region.key not in rows]
    for first in range(0, len(work), GROUP):
        if end is not None and clock() >= end:
            break
        group = [Trial.of(region, f"r{first + i}_") for i, region in enumerate(work[first : first + GROUP])]
        upto = f"regions {first + 1} to {first + len(group)} of {len(work)}"
        timer.compile([p for t in group for p in t.programs], lambda done, total, upto=upto: show(f"{upto}: kernel {done} of {total}"))
        for number, trial in enumerate(group, first + 1):
            if end is not None and clock() >= end:
                break
            show(f"region {number} of {len(work)}: timing {len(trial.programs)} schedules of {trial.region.key}")
            row = rows[trial.region.key] = measure(trial, timer)
            assert row.entry is not None
            entries = read_entries(path, trial.region.arch) if path.is_file() else []
            write_entries(path, trial.region.arch, Measurements.of([*entries, row.entry]).entries.values())
    return [rows.get(region.key, Row(region, "left")) for region in regions]


@dataclass(frozen=True)
class Trial:
    """A region compiled under its schedules, the cost model's first, and why some of them were not."""

    region: TunableRegion
    programs: Sequence[RegionProgram]
    failures: Sequence[str]

    @staticmethod
    def of(region: TunableRegion, prefix: str) -> Trial:
        """Names of kernels start with `prefix`. Raises PassError where not even the cost model's schedule compiles."""
        programs: list[RegionProgram] = []
        failures: list[str] = []
        for number, schedule in enumerate(region.candidates):
            try:
                programs.append(region.compile(schedule, number, prefix))
            except PassError as error:
                if number == 0:
                    raise
                failures.append(f"{schedule_text(schedule)}: {error}")
        return Trial(region, programs, failures)


def measure(trial: Trial, timer: Timer) -> Row:
    """Times one region. Another schedule than the cost model's is chosen where it saves more than GAIN."""
    region, programs = trial.region, trial.programs
    measured = timer.measure(region, programs)
    times = [t.us for t in measured.timings]
    failures = [f"{program.text}: {t.failure}" for program, t in zip(programs, measured.timings, strict=True) if t.us is None]
    model = times[0]
    assert model is not None, "the timer raises where the cost model's schedule does not run"
    us, best = min((us, i) for i, us in enumerate(times) if us is not None and measured.timings[i].final)
    if us >= model * (1 - GAIN):
        us, best = model, 0
    entry = region.measured(programs[best].schedule, us, measured.bound_us, model, timer.name, timer.triton)
    return Row(region, "measured", entry, (*trial.failures, *failures))


def in_a_line(error: Exception) -> str:
    """Why a schedule cannot run, as a row of a table says it."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def output_path(given: Path | None, arch: str) -> Path:
    """The file to extend: the one that was asked for, else the user's. Raises PassError for a user without a home."""
    path = given if given is not None else user_file(arch)
    if path is None:
        raise PassError("no home folder to keep measurements in", where="lamella tune", remedy="name a file with -o")
    return path


def plan_table(regions: Iterable[TunableRegion], known: Collection[str] = ()) -> TextTable:
    """What a run would measure: all but the regions whose keys are `known`."""
    rows = [
        [
            region.key,
            _launches(region),
            "known" if region.key in known else "to measure",
            str(len(region.candidates)),
            schedule_text(region.candidates[0]),
        ]
        for region in regions
    ]
    return TextTable("Regions", ("region", "launches", "state", "schedules", "cost model"), rows, NUMBERS)


def result_table(rows: Iterable[Row]) -> TextTable:
    """What was measured, and what was known."""
    rows = list(rows)
    cells = [[row.region.key, _launches(row.region), row.state, *_facts(row.entry)] for row in rows]
    header = ["region", "launches", "state", "model us", "best us", "gain", "ceiling", "schedule"]
    steps = [row.entry.step if row.entry is not None else None for row in rows]
    if any(steps):
        header[-1:-1] = STEP_COLUMNS
        for row, step in zip(cells, steps, strict=True):
            row[-1:-1] = ["", ""] if step is None else [f"{step[1]:.1f}", f"{step[0]:.1f}"]
    return TextTable("Regions", tuple(header), cells, NUMBERS)


def summary(rows: Sequence[Row], path: Path) -> str:
    """A sentence on a run."""
    count = {state: sum(row.state == state for row in rows) for state in ("measured", "known", "left")}
    if not count["measured"]:
        rest = f"; {count['left']} are left for a longer budget" if count["left"] else ", nothing to do"
        return f"{count['known']} of {len(rows)} regions are measured already{rest}"
    better = sum(row.state == "measured" and row.entry is not None and row.entry.us < row.entry.model_us for row in rows)
    left = f", {count['left']} left for a longer budget" if count["left"] else ""
    return f"wrote {path}: {count['measured']} regions measured, {better} faster than the cost model's choice, {count['known']} known{left}"


def _launches(region: TunableRegion) -> str:
    """`t1 16, t512 16`."""
    return ", ".join(f"{bucket} {count}" for bucket, count in region.launches.items())


def _facts(entry: Entry | None) -> list[str]:
    if entry is None:
        return ["", "", "", "", ""]
    options = " ".join(f"{name}={value}" for name, value in sorted(entry.options.items()))
    gain = 1 - entry.us / entry.model_us if entry.model_us else 0.0
    return [f"{entry.model_us:.2f}", f"{entry.us:.2f}", f"{gain:.1%}", f"{entry.share:.0%}", f"{entry.skeleton} {options}"]

"""Regions of a step go in, with what times them and what times a whole step; measurements of the schedules with which the step is fastest leave.

By itself a kernel meets only its own kind. In a step it shares the memory with the launches beside it, fills what they leave idle, and runs at the clock that
the power of all of them allows: what is fastest by itself need not be what makes the step fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Protocol

from lamella.api import LoadedModel
from lamella.errors import PassError
from lamella.passes.tuning import Entry, Measurements, read_entries, write_entries
from lamella.pipeline import PassOptions
from lamella.program import Program, Shape, compile_model
from lamella.region_programs import TunableRegion, schedule_of, schedule_text
from lamella.tools.tune import Measured, Row, Timer, Timing, Trial

FINALISTS = 4
"""Schedules of a region that are tried in the step, the fastest by themselves, beside today's and the cost model's."""
STEP_GAIN = 0.002
"""What a schedule must save of the step to take the place of today's: less is noise."""


class StepTimer(Protocol):
    """Something that times whole steps on a device; `GpuStepTimer` is the one that ships."""

    def measure(self, programs: Sequence[Program], show: Callable[[str], None]) -> Sequence[Timing]:
        """Microseconds of a step of each program, all of one bucket, the first of which is today's; None and the reason for one that cannot run."""
        ...


@dataclass(frozen=True)
class Steps:
    """How steps of a model are compiled, and what is known of their regions."""

    opened: LoadedModel
    buckets: Mapping[str, Shape]
    """By name."""
    dtype: str
    max_context: int
    arch: str
    pass_options: PassOptions
    entries: Mapping[str, Entry]
    """By key."""

    def compile(self, bucket: str, entry: Entry) -> Program:
        """A step in which the regions of `entry` have its schedule, and all others what is known of them. Raises PassError."""
        with TemporaryDirectory(prefix="lamella-step-") as folder:
            file = Path(folder) / f"{self.arch}.json"
            write_entries(file, self.arch, self.knowing(entry).entries.values())
            own = {**self.pass_options.get("choose-schedule", {}), "tuning": str(file)}
            return compile_model(
                self.opened.config,
                [self.buckets[bucket]],
                dtype=self.dtype,
                max_context=self.max_context,
                arch=self.arch,
                pass_options={**self.pass_options, "choose-schedule": own},
            )

    def knowing(self, entry: Entry) -> Steps:
        """The same, with one measurement more."""
        return replace(self, entries={**self.entries, entry.key: entry})


def decided(region: TunableRegion) -> bool:
    """Whether a region's schedule was chosen by the times of the whole step before."""
    return region.known is not None and region.known.step is not None


def tune_in_step(
    regions: Sequence[TunableRegion],
    steps: Steps,
    timer: Timer,
    step_timer: StepTimer,
    path: Path,
    *,
    again: bool = False,
    budget_seconds: float | None = None,
    clock: Callable[[], float] = perf_counter,
    show: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Times each region by itself, then its fastest schedules in the step, one region after the other, and adds what it finds to the file `path`.

    Regions that were decided so before are known (with `again`: none). Once `budget_seconds` are over no further region is begun. Raises PassError for
    a file that holds something else, OutputError for one that cannot be written, and what the timers raise.
    """
    rows = {region.key: Row(region, "known", region.known) for region in regions if decided(region) and not again}
    end = None if budget_seconds is None else clock() + budget_seconds
    work = [region for region in regions if region.key not in rows]
    for number, region in enumerate(work, 1):
        if end is not None and clock() >= end:
            break
        where = f"region {number} of {len(work)}: {region.key}"
        trial = Trial.of(region, f"r{number}_")
        timer.compile(trial.programs, lambda done, total, where=where: show(f"{where}: kernel {done} of {total}"))
        show(f"{where}: {len(trial.programs)} schedules by themselves")
        measured = timer.measure(region, trial.programs)
        row = rows[region.key] = in_step(trial, measured, steps, timer, step_timer, lambda text, where=where: show(f"{where}: {text}"))
        assert row.entry is not None
        steps = steps.knowing(row.entry)
        entries = read_entries(path, region.arch) if path.is_file() else []
        write_entries(path, region.arch, Measurements.of([*entries, row.entry]).entries.values())
    return [rows.get(region.key, Row(region, "left")) for region in regions]


def in_step(trial: Trial, measured: Measured, steps: Steps, timer: Timer, step_timer: StepTimer, show: Callable[[str], None]) -> Row:
    """Times the step under the schedules of one region that are worth it. Another than today's is chosen where the step takes STEP_GAIN less."""
    region = trial.region
    failures = [f"{p.text}: {t.failure}" for p, t in zip(trial.programs, measured.timings, strict=True) if t.us is None]
    tried: list[Entry] = []
    programs: list[Program] = []
    for entry in worth_a_step(trial, measured, timer):
        try:
            programs.append(steps.compile(region.bucket, entry))
        except PassError as error:
            if not tried:
                raise  # today's own
            failures.append(f"{schedule_text(schedule_of(entry))}: in the step: {error}")
            continue
        tried.append(entry)
    timings = step_timer.measure(programs, show)
    failures += [f"{schedule_text(schedule_of(e))}: in the step: {t.failure}" for e, t in zip(tried, timings, strict=True) if t.us is None]
    times = [t.us for t in timings]
    today = times[0]
    assert today is not None, "the timer raises where today's step does not run"
    us, best = min((us, i) for i, us in enumerate(times) if us is not None)
    if us >= today * (1 - STEP_GAIN):
        us, best = today, 0
    by_model = next((t for e, t in zip(tried, times, strict=True) if schedule_of(e) == region.candidates[0]), None)
    entry = replace(tried[best], step=(round(us, 2), round(by_model or today, 2)))
    return Row(region, "measured", entry, (*trial.failures, *failures))


def worth_a_step(trial: Trial, measured: Measured, timer: Timer) -> list[Entry]:
    """What to try in the step, with the times by themselves: today's schedule, the cost model's, and the fastest."""
    region, model_us = trial.region, measured.timings[0].us
    assert model_us is not None, "the timer raises where the cost model's schedule does not run"
    times = {program.schedule: t.us for program, t in zip(trial.programs, measured.timings, strict=True) if t.us is not None}
    fastest = sorted(times, key=lambda schedule: times[schedule])[:FINALISTS]
    if region.known is not None:
        times.setdefault(region.today, region.known.us)
    wanted = dict.fromkeys([region.today, region.candidates[0], *fastest])
    return [region.measured(schedule, times[schedule], measured.bound_us, model_us, timer.name, timer.triton) for schedule in wanted]


def step_gain(rows: Iterable[Row]) -> float:
    """The share of a step that the schedules of some rows save together, against the cost model's in their place."""
    left = 1.0
    for row in rows:
        if row.entry is not None and row.entry.step is not None:
            left *= row.entry.step[0] / row.entry.step[1]
    return 1 - left

"""`lamella tune --in-step`: schedules decided by the time of a whole step, with timers of wood, and with the real one on a CPU's clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lamella import api
from lamella.errors import DeviceError, PassError
from lamella.passes.tuning import Entry, Measurements, read_entries, write_entries
from lamella.program import Program, Shape, compile_model
from lamella.region_programs import TunableRegion, schedule_text, tunable_regions
from lamella.runtime.manifest import Bucket
from lamella.runtime.memory import Memory
from lamella.runtime.reference import ReferenceExecutor
from lamella.runtime.weights import load_weights
from lamella.tools import cli, step_timer
from lamella.tools.explain import explain
from lamella.tools.tune import Row, Timing, result_table, summary, tune
from lamella.tools.tune_steps import Steps, decided, step_gain, tune_in_step
from tests.numeric.test_tuning_candidates import Clock
from tests.unit.test_tuning import ARCH, SMALL, TINY, Wooden, few_regions

OFF = {"choose-schedule": {"tuning": "off"}}


def steps(entries: Mapping[str, Entry] | None = None) -> Steps:
    """Decode steps of a small model."""
    opened = replace(api.open_model(TINY, random_weights=0), config=SMALL)
    return Steps(opened, {"t1": Shape.decode()}, "f32", 64, ARCH, {}, entries or {})


def chosen(program: Program) -> list[str]:
    """The schedules of a program's launches, in their order."""
    return [f"{r['schedule']} {dict(sorted(r['parameters'].items()))}" for r in program.ledger if r["verdict"] == "region"]


@dataclass
class WoodenSteps:
    """Steps of 100 us; those in which some region has another schedule than the cost model's take `gain` less, once for each such region."""

    gain: float = 0.1
    broken: frozenset[int] = frozenset()
    seen: list[list[list[str]]] = field(default_factory=list)

    def measure(self, programs: Sequence[Program], show: Callable[[str], None]) -> Sequence[Timing]:
        model = chosen(compile_model(SMALL, [Shape.decode()], dtype="f32", max_context=64, arch=ARCH, pass_options=OFF))
        self.seen.append([chosen(program) for program in programs])
        other = [sum(one != two for one, two in zip(found, model, strict=True)) for found in self.seen[-1]]
        timings = [Timing(100.0 * (1 - self.gain) ** count) for count in other]
        return [Timing(None, "out of steps") if i in self.broken else t for i, t in enumerate(timings)]


def test_regions_are_decided_one_after_the_other_and_a_warm_run_measures_nothing(tmp_path: Path) -> None:
    """Alone, candidate 1 takes half the time; in the step whatever is not the cost model's is faster, the more of it the better."""
    path, timer, whole, shown = tmp_path / "m.json", Wooden(), WoodenSteps(), list[str]()
    regions = few_regions()
    rows = tune_in_step(regions, steps(), timer, whole, path, show=shown.append)
    assert {row.state for row in rows} == {"measured"} and timer.measured == [region.key for region in regions]
    assert len(whole.seen) == len(regions) and any("by themselves" in text for text in shown)
    # The step of a later region has what the earlier ones were decided to be: it starts where the one before ended.
    for before, after in pairwise(rows):
        assert before.entry is not None and before.entry.step is not None and after.entry is not None and after.entry.step is not None
        assert after.entry.step[1] == before.entry.step[0] > after.entry.step[0]
    entries = Measurements.of(read_entries(path, ARCH))
    for row in rows:
        entry = entries.entries[row.region.key]
        assert entry == row.entry and entry.step is not None and entry.us == 4.0 and entry.model_us == 8.0
        assert dict(entry.options) == {n: row.region.candidates[1].get(n) for n in entry.options}
    assert step_gain(rows) == pytest.approx(1 - rows[-1].entry.step[0] / 100.0, abs=1e-3)  # type: ignore[union-attr, index]
    before, warm = path.read_bytes(), WoodenSteps()
    known = few_regions(measurements=entries)
    assert all(decided(region) for region in known)
    assert {row.state for row in tune_in_step(known, steps(entries.entries), Wooden(), warm, path)} == {"known"}
    assert not warm.seen and path.read_bytes() == before
    assert {r.state for r in tune_in_step(known, steps(entries.entries), Wooden(), WoodenSteps(), path, again=True)} == {"measured"}


def test_what_is_fastest_by_itself_loses_where_the_step_says_so(tmp_path: Path) -> None:
    """A region known by itself alone is tried anew; where the step gains nothing, today's schedule stays, and the cost model's time beside it."""
    path = tmp_path / "m.json"
    (region, *_) = few_regions()
    rows = tune_in_step([region], steps(), Wooden(), WoodenSteps(gain=-0.1), path)
    assert rows[0].entry is not None and rows[0].entry.step == (100.0, 100.0)
    assert dict(rows[0].entry.options) == {n: region.candidates[0].get(n) for n in rows[0].entry.options}

    alone = replace(rows[0].entry, options={n: region.candidates[1].get(n) for n in rows[0].entry.options}, step=None, us=4.0)
    (known, *_) = few_regions(measurements=Measurements.of([alone]))
    assert known.known == alone and not decided(known)
    slower, faster = WoodenSteps(gain=-0.1), WoodenSteps(gain=0.1)
    (row,) = tune_in_step([known], steps({alone.key: alone}), Wooden(), slower, path)
    assert row.entry is not None and dict(row.entry.options) == {n: region.candidates[0].get(n) for n in row.entry.options}
    (row,) = tune_in_step([known], steps({alone.key: alone}), Wooden(), faster, path)
    assert row.entry is not None and row.entry.options == alone.options
    assert row.entry.step == pytest.approx((100.0 * 0.9 ** launches(region), 100.0))
    # Today's, which is the measured one, comes first: what cannot run is only an error there.
    assert slower.seen[0][0] == chosen(steps().compile("t1", alone))


def launches(region: TunableRegion) -> int:
    """Of a region in a decode step."""
    return region.launches["t1"]


def test_a_gain_within_the_noise_is_none(tmp_path: Path) -> None:
    (region, *_) = few_regions()
    (row,) = tune_in_step([region], steps(), Wooden(), WoodenSteps(gain=0.0005), tmp_path / "m.json")
    assert row.entry is not None and dict(row.entry.options) == {n: region.candidates[0].get(n) for n in row.entry.options}


def test_what_cannot_run_in_the_step_is_named(tmp_path: Path) -> None:
    (region, *_) = few_regions()
    (row,) = tune_in_step([region], steps(), Wooden(), WoodenSteps(broken=frozenset({1})), tmp_path / "m.json")
    assert row.failures == (f"{schedule_text(region.candidates[1])}: in the step: out of steps",)


def test_a_budget_ends_a_run_and_keeps_what_was_found(tmp_path: Path) -> None:
    path, now = tmp_path / "m.json", iter(range(100))
    rows = tune_in_step(few_regions(), steps(), Wooden(), WoodenSteps(), path, budget_seconds=2.5, clock=lambda: float(next(now)))
    assert [row.state for row in rows[:3]] == ["measured", "measured", "left"] and len(read_entries(path, ARCH)) == 2


def test_the_ledger_and_the_table_say_what_the_step_took(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    rows = tune_in_step(few_regions(), steps(), Wooden(), WoodenSteps(), path)
    options = {"choose-schedule": {"tuning": str(path)}}
    ledger = compile_model(SMALL, [Shape.decode()], dtype="f32", max_context=64, pass_options=options).ledger
    reasons = [r["reason"] for r in ledger if r["verdict"] == "measured"]
    assert reasons and all("the whole step takes" in reason and "by itself 4.00 us" in reason for reason in reasons)
    assert "the whole step takes" in explain(ledger)
    table = str(result_table(rows))
    assert "model's step" in table and f"{rows[0].entry.step[0]:.1f}" in table  # type: ignore[union-attr, index]
    alone = [Row(r.region, r.state, replace(r.entry, step=None)) for r in rows if r.entry is not None]
    assert "model's step" not in str(result_table(alone)) and "regions measured" in summary(rows, path)


@pytest.mark.parametrize("step", [3.0, [1.0], [1.0, "2"], [True, 1.0]])
def test_bad_times_of_a_step_are_one_clear_line(tmp_path: Path, step: object) -> None:
    rows = tune_in_step(few_regions()[:1], steps(), Wooden(), WoodenSteps(), tmp_path / "m.json")
    assert rows[0].entry is not None
    made = {"format": 1, "arch": ARCH, "entries": [{**rows[0].entry.as_dict(), "step": step}]}
    (tmp_path / "bad.json").write_text(json.dumps(made))
    with pytest.raises(PassError, match="bad field 'step' of a measurement, expected two times of a step"):
        read_entries(tmp_path / "bad.json", ARCH)


def test_a_file_keeps_the_times_of_steps(tmp_path: Path) -> None:
    rows = tune_in_step(few_regions()[:2], steps(), Wooden(), WoodenSteps(), tmp_path / "m.json")
    entries = [row.entry for row in rows if row.entry is not None]
    write_entries(tmp_path / "two.json", ARCH, [entries[0], replace(entries[1], step=None)])
    again = {entry.key: entry for entry in read_entries(tmp_path / "two.json", ARCH)}
    assert again[entries[0].key] == entries[0] and again[entries[1].key].step is None


# On a CPU's clock


class Referee(ReferenceExecutor):
    """The reference executor in place of a GPU: programs whose kernels say so cannot run, or compute something else."""

    def __init__(self, memory: Memory, kernels: Mapping[str, str]) -> None:
        super().__init__(memory)
        self.text = "".join(kernels.values())

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: object = None, *, steps: int = 1) -> None:
        if "# broken" in self.text:
            raise RuntimeError("out of resource:\n shared memory")
        super().prepare(buckets)

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        super().launch(bucket, steps)
        if "# wrong" in self.text:
            self.output(bucket, "logits").mul_(2.0)


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> step_timer.GpuStepTimer:
    """The timer that ships, with the host's clock and the reference executor."""
    monkeypatch.setattr(step_timer, "CudaExecutor", Referee)
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(step_timer, "ROUNDS", 2)
    monkeypatch.setattr(step_timer, "ROUND_US", 2000)
    monkeypatch.setattr(step_timer.GpuStepTimer, "_compile", lambda self, programs, show: None)
    opened = api.open_model(TINY, random_weights=0)
    return step_timer.GpuStepTimer(torch.device("cpu"), lambda manifest: load_weights(manifest, opened.source))


def tiny(shape: Shape, skip: Sequence[str] = ()) -> Program:
    """A step of the tiny model."""
    opened = api.open_model(TINY, random_weights=0)
    return compile_model(opened.config, [shape], dtype="f32", max_context=64, arch=ARCH, pass_options=OFF, skip=skip)


@pytest.mark.parametrize("shape", [Shape.decode(), Shape.decode(3), Shape.prefill(20)], ids=lambda shape: shape.name)
def test_a_step_is_timed_and_compared(timer: step_timer.GpuStepTimer, shape: Shape) -> None:
    """Programs share weights and caches; one that cannot run, one with other logits and one with other weights have their reasons."""
    program = tiny(shape)
    name = next(iter(program.kernels))
    spoiled = [replace(program, kernels={**program.kernels, name: program.kernels[name] + f"\n# {what}"}) for what in ("broken", "wrong")]
    other = tiny(shape, skip=("fold-norm-scale",))
    shown: list[str] = []
    timings = timer.measure([program, *spoiled, other, program], shown.append)
    assert timings[0].us is not None and timings[4].us is not None and "loading weights" in shown
    assert timings[1] == Timing(None, "RuntimeError: out of resource: shared memory")
    assert timings[2].us is None and timings[2].failure.startswith("its logits are not those of today's step: 1 of them apart")
    assert timings[3] == Timing(None, "it wants its weights otherwise")
    shown.clear()
    assert timer.measure([program], shown.append)[0].us is not None and "loading weights" not in shown
    with pytest.raises(DeviceError, match="today's step does not run, got RuntimeError: out of resource"):
        timer.measure([spoiled[0]], shown.append)


# lamella tune --in-step


def test_what_was_measured_alone_is_still_to_be_decided_in_the_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same file: known to a tune by itself, to measure for one in the step; what a step decided is known to both, and then no GPU is needed."""
    path = tmp_path / "m.json"
    command = ["tune", TINY, "--max-context", "64", "--arch", ARCH, "-o", str(path), "--json"]
    opened = api.open_model(TINY, random_weights=0)
    regions = tunable_regions(opened.config, [Shape.decode()], dtype="bf16", max_context=64, arch=ARCH, measurements=Measurements())
    rows = tune([replace(region, candidates=region.candidates[:2]) for region in regions], Wooden(), path)

    def states(*options: str) -> set[str]:
        assert cli.main([*command, *options]) == 0
        return {row["state"] for row in json.loads(capsys.readouterr().out)}

    assert states("--dry-run") == {"known"} and states("--dry-run", "--in-step") == {"left"}
    write_entries(path, ARCH, [replace(row.entry, step=(99.0, 100.0)) for row in rows if row.entry is not None])
    assert states("--dry-run") == states("--in-step") == {"known"}
    assert cli.main([*command[:-1], "--in-step"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"6 of 6 regions are measured already, nothing to do; a step takes {1 - 0.99**6:.1%} less than with the cost model's"


def test_a_step_needs_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["tune", TINY, "--in-step", "--max-context", "64", "-o", str(tmp_path / "m.json")]) == 2
    assert capsys.readouterr().err.startswith("lamella: error: there is no CUDA GPU here to measure on")
    assert not (tmp_path / "m.json").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", ["1", "40"])
def test_a_tune_in_the_step_on_the_device(tokens: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Decode and a prompt: every region is decided, nothing fails, and a second run has nothing to do."""
    path = tmp_path / "m.json"
    command = ["tune", TINY, "--in-step", "--tokens", tokens, "--max-context", "128", "-o", str(path), "--json"]
    assert cli.main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} == {"measured"} and all(row["measurement"]["step"][0] > 0 for row in rows)
    assert [row["failures"] for row in rows] == [[]] * len(rows)
    assert cli.main(command) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"known"}

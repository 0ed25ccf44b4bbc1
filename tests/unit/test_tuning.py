"""Measured schedules: the files, the keys of regions, what `choose-schedule` makes of a measurement, and `lamella tune` with a timer of wood."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

from lamella import api, pipeline
from lamella.dialects.tile import FusedOp, ScheduleAttr, YieldOp
from lamella.errors import DeviceError, OutputError, PassError
from lamella.frontends.config import ModelConfig
from lamella.passes import tuning
from lamella.passes.candidates import MOST, candidates
from lamella.passes.choose_schedule import ChooseSchedule
from lamella.passes.device import device
from lamella.passes.smaller_schedule import smaller
from lamella.passes.tuning import Entry, Measurements, read_entries, region_key, why_not, write_entries
from lamella.pipeline import Options
from lamella.program import Shape
from lamella.region_programs import RegionProgram, TunableRegion, schedule_text, tunable_regions
from lamella.tools import cli
from lamella.tools.explain import explain
from lamella.tools.tune import Measured, Timing, tune
from tests.numeric.harness import Graph, compile_function
from tests.numeric.test_quantized import Packed

MODELS = Path(__file__).resolve().parents[2] / "benchmarks" / "models"
TINY = str(MODELS / "tiny.json")
ARCH = "sm_90"
TARGET = device(ARCH)
SMALL = ModelConfig("llama", 2, 32, 2, 1, 16, 40, 51, 1e-5, 1e4)


def linear(tokens: int = 1, k: int = 2048, rows: int = 2048) -> ModuleOp:
    """A function of one linear."""
    g = Graph(x=f"{tokens}x{k}xbf16", w=f"{rows}x{k}xbf16")
    return ModuleOp([g.returns(g.contract(g["x"], g["w"]))])


def regions_of(module: ModuleOp, tuned: str) -> list[FusedOp]:
    """The regions of a module after the stage `regions`, under measurements."""
    pipeline.run(module, Options(tuning=tuned), after="tiles", until="regions")
    return [op for op in module.walk() if isinstance(op, FusedOp)]


def records(region: FusedOp) -> dict[str, str]:
    """The reasons of a region's ledger by verdict."""
    return {str(e.as_dict()["verdict"]): str(e.as_dict()["reason"]) for e in (region.ledger.data if region.ledger else ())}


def entry_for(module: ModuleOp, **options: int) -> Entry:
    """A measurement of the only region of a module."""
    (region,) = regions_of(module, "off")
    assert region.schedule is not None
    key = region_key(ops_of(region), 1)
    assert key is not None
    own = {name: region.schedule.get(name) for name in region.schedule.options.data}
    return Entry(*key, region.schedule.skeleton.data, own | options, 3.0, 0.8, 4.0, "A GPU", "3.6.0")


def ops_of(region: FusedOp) -> list:
    return [op for op in region.body.block.ops if not isinstance(op, YieldOp)]


def saved(path: Path, *entries: Entry) -> str:
    write_entries(path, ARCH, entries)
    return str(path)


# Choice


def test_a_measurement_sets_the_schedule_and_the_ledger_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.json", entry_for(linear(), rows=2, warps=4))
    (region,) = regions_of(linear(), path)
    assert region.schedule is not None
    assert (region.schedule.get("rows"), region.schedule.get("warps")) == (2, 4)
    assert records(region)["measured"] == "measured: 3.00 us on A GPU, 80% of the ceiling; the cost model's choice took 4.00 us"
    assert "not_measured" not in records(region)


def test_a_miss_falls_back_to_the_cost_model_and_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.json", entry_for(linear(rows=4096), rows=2))
    (region,), (unmeasured,) = regions_of(linear(), path), regions_of(linear(), "off")
    assert region.schedule == unmeasured.schedule
    assert records(region)["not_measured"] == "no measurement for this shape: the cost model's choice"
    assert set(records(unmeasured)) & {"measured", "not_measured"} == set()


def test_a_skeleton_that_is_not_tuned_says_nothing(tmp_path: Path) -> None:
    g = Graph(x="3x64xf32")
    (region,) = regions_of(ModuleOp([g.returns(g.norm(g["x"]))]), saved(tmp_path / "m.json"))
    assert set(records(region)) & {"measured", "not_measured"} == set()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: replace(e, options=e.options | {"rows": 3}), "rows = 3 is no power of two"),
        (lambda e: replace(e, options=e.options | {"rows": 16, "warps": 1}), "registers a thread of 255"),
        (lambda e: replace(e, options=e.options | {"depth": 1}), "it sets depth,"),
        (lambda e: replace(e, skeleton="mma"), "it is mma, and the region takes gemv"),
    ],
)
def test_a_measurement_that_does_not_fit_is_ignored_with_its_reason(tmp_path: Path, change: Callable, reason: str) -> None:
    path = saved(tmp_path / "m.json", change(entry_for(linear())))
    (region,), (unmeasured,) = regions_of(linear(), path), regions_of(linear(), "off")
    assert region.schedule == unmeasured.schedule
    assert reason in records(region)["not_measured"] and records(region)["not_measured"].endswith(": the cost model's choice")


def test_a_rotation_needs_both_columns_of_a_pair() -> None:
    """The region of q, k and v of a decode step: one weight row a program would tear pairs apart."""
    region = next(r for r in small_regions() if r.shape.get("columns") == 2)
    model = region.candidates[0]
    ops = region.ops
    options = {name: model.get(name) for name in model.options.data} | {"rows": 1}
    assert why_not("gemv", options, ops, 1, TARGET, model) == "rows = 1 is less than the 2 columns that the epilogue needs in one program"


def test_splits_of_more_groups_than_counters_do_not_fit() -> None:
    """Split attention counts the programs that have finished, in one counter for each sequence, head and tile of queries."""
    region = next(r for r in small_regions([Shape.decode(600)]) if r.op == "attend")
    model = region.candidates[0]
    ops = region.ops
    options = {name: model.get(name) for name in model.options.data} | {"splits": 2}
    reason = why_not("attend", options, ops, 1, TARGET, model)
    assert reason == "600 groups of programs would count their arrivals, and there are 528 counters"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"swap": 2}, "swap = 2 and splits = 1, expected 0 or 1, and at least 1"),
        ({"swap": 1, "m": 128}, "m = 128 tokens are too many to be columns of a product, at most 64"),
        ({"swap": 1, "m": 4}, "m = 4 is less than the 8 of a tensor core"),
        ({"swap": 0, "m": 8}, "m = 8 is less than the 16 of a tensor core"),
        ({"splits": 64}, "32 columns are less than two trips of 16 for each of 64 programs"),
        ({"m": 16, "splits": 2}, "columns are shared by programs of one tile of tokens, and 20 take several"),
    ],
)
def test_swapped_and_split_products_have_limits(changed: dict[str, int], reason: str) -> None:
    """Of 20 tokens; the region of the output projection, which has no norm before it."""
    region = next(r for r in small_regions([Shape.decode(20)]) if r.op == "contract" and not r.shape["norm"])
    model = region.candidates[0]
    options = {name: model.get(name) for name in model.options.data} | {"k": 16, "m": 32, "splits": 1} | changed
    assert why_not("mma", options, region.ops, 1, TARGET, model) == reason


def test_columns_that_a_norm_reduces_are_not_shared() -> None:
    region = next(r for r in small_regions([Shape.decode(20)]) if r.op == "contract" and r.shape["norm"])
    model = region.candidates[0]
    options = {name: model.get(name) for name in model.options.data} | {"k": 16, "splits": 2}
    assert why_not("mma", options, region.ops, 1, TARGET, model) == "a reduction of x needs all its columns in one program"
    group = options | {"splits": 1, "m": 32, "n": 64, "warps": 4, "swap": 1}
    reason = "warps = 4 would multiply as a group while others add up the same x, at most 2"
    assert why_not("mma", group, region.ops, 1, TARGET, model) == reason
    assert why_not("mma", group | {"warps": 2}, region.ops, 1, TARGET, model) is None


def test_attention_takes_its_measured_splits(tmp_path: Path) -> None:
    """The ledger of a split region has the measurement too."""
    config = replace(SMALL, layers=1)
    region = next(r for r in small_regions(max_context=512) if r.op == "attend")
    schedule = region.candidates[0]
    options = {name: schedule.get(name) for name in schedule.options.data} | {"splits": 4, "tile": 32}
    path = saved(tmp_path / "m.json", Entry(region.op, region.shape, "attend", options, 3.0, 0.8, 4.0, "A GPU", "3.6.0"))
    from lamella.program import compile_model

    choice = {"choose-schedule": {"tuning": path}}
    program = compile_model(config, [Shape.decode()], dtype="f32", max_context=512, until="plan", pass_options=choice)
    (head,) = [r for r in program.ledger if r["verdict"] == "region" and r["schedule"] == "attend"]
    assert (head["parameters"]["splits"], head["parameters"]["tile"]) == (4, 32)
    said = [r for r in program.ledger if r.get("region") == head["region"]]
    assert [r["verdict"] for r in said if r["verdict"] in ("measured", "not_measured", "chosen")] == ["measured", "chosen"]
    assert "measured: 3.00 us on A GPU" in explain(program.ledger)


# Keys


def test_a_key_names_what_decides_the_speed() -> None:
    (region,) = regions_of(linear(tokens=70, k=96, rows=40), "off")
    key = region_key(ops_of(region), 70)
    assert key is not None
    assert tuning.key_text(*key) == "contract columns=1 k=96 norm=false rows=40 tokens=128 weights=bf16 x=bf16"


def test_keys_of_a_step_do_not_depend_on_names_or_layers() -> None:
    keys = [r.key for r in small_regions([Shape.decode(), Shape.prefill(5)])]
    assert len(keys) == len(set(keys))
    assert keys[0] == "contract columns=2 k=32 norm=true rows=32+16+16 tokens=1 weights=f32 x=f32"
    assert keys[1] == ("attend block=16 cache=f32 context=64 head_dim=16 heads=2 kv_heads=1 queries=1 sequences=1 x=f32"), (
        "a cache, its block and the heads that share its keys"
    )
    assert keys[3] == "contract columns=1 k=32 norm=true rows=40|40 tokens=1 weights=f32 x=f32"
    assert any("queries=8" in key for key in keys), "five queries count as eight"


# Files


def test_a_file_is_sorted_with_one_measurement_a_line(tmp_path: Path) -> None:
    entries = [entry_for(linear(rows=n), rows=2) for n in (4096, 1024, 2048)]
    text, again = tmp_path / "a.json", tmp_path / "b.json"
    write_entries(text, ARCH, entries)
    write_entries(again, ARCH, reversed(entries))
    assert text.read_bytes() == again.read_bytes()
    first, *lines, last = text.read_text().splitlines()
    assert (first, last) == ('{"format": 1, "arch": "sm_90", "entries": [', "]}")
    assert [json.loads(line.rstrip(","))["shape"]["rows"] for line in lines] == ["1024", "2048", "4096"]
    assert read_entries(text, ARCH) == sorted(entries, key=lambda e: e.key)
    assert sorted(tmp_path.iterdir()) == [text, again], "nothing temporary is left"


def test_the_user_s_measurements_count_more_than_the_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_for(linear())
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(tuning, "USER", tmp_path / "user")
    assert Measurements.read("auto", ARCH) == Measurements()
    write_entries(tmp_path / "shipped" / f"{ARCH}.json", ARCH, [entry, entry_for(linear(rows=64))])
    write_entries(tmp_path / "user" / f"{ARCH}.json", ARCH, [replace(entry, us=1.0)])
    found = Measurements.read("auto", ARCH)
    assert found is not None and len(found.entries) == 2 and found.entries[entry.key].us == 1.0
    assert Measurements.read("off", ARCH) is None


def test_the_shipped_files_are_sound() -> None:
    """They parse, are of the architecture that they are called after, and are written as `lamella tune` writes them."""
    for path in sorted(tuning.SHIPPED.glob("*.json")):
        entries = read_entries(path, path.stem)
        assert path.read_text() == _written(path.stem, entries)
        assert all(0 < e.us <= e.model_us for e in entries)
    assert tuning.shipped_file(ARCH).is_file()


def _written(arch: str, entries: Sequence[Entry]) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        write_entries(path, arch, entries)
        return path.read_text()


GOOD = {"op": "contract", "shape": {"k": 8}, "skeleton": "gemv", "options": {"rows": 1}, "us": 1, "share": 0.5, "model_us": 2.0}
GOOD |= {"device": "A GPU", "triton": "3.6.0"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the measurements are no JSON"),
        ("[]", "no file of measurements, expected an object with format, arch and entries"),
        ('{"format": 1, "arch": "sm_90"}', "no file of measurements"),
        ('{"format": 7, "arch": "sm_90", "entries": []}', "measurements of another format, expected 1, got 7"),
        ('{"format": 1, "arch": "sm_80", "entries": []}', "measurements of another architecture, expected sm_90, got sm_80"),
        (json.dumps({"format": 1, "arch": ARCH, "entries": [3]}), "entry 0: bad measurement"),
        (json.dumps({"format": 1, "arch": ARCH, "entries": [{**GOOD, "us": "fast"}]}), "bad field 'us' of a measurement, got \"fast\""),
        (json.dumps({"format": 1, "arch": ARCH, "entries": [{**GOOD, "options": {"rows": -1}}]}), "an option of a schedule is no number"),
        (json.dumps({"format": 1, "arch": ARCH, "entries": [{**GOOD, "shape": {"k": []}}]}), "a shape holds numbers and names"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(PassError) as caught:
        regions_of(linear(), str(path))
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_one_that_cannot_be_written_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="no such file of measurements"):
        regions_of(linear(), str(tmp_path / "none.json"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the measurements"):
        write_entries(tmp_path / "file" / "m.json", ARCH, [])


# Candidates


def small_regions(
    shapes: Sequence[Shape] = (Shape.decode(),), measurements: Measurements | None = None, max_context: int = 64
) -> list[TunableRegion]:
    return tunable_regions(SMALL, shapes, dtype="f32", max_context=max_context, arch=ARCH, measurements=measurements or Measurements())


@pytest.mark.parametrize("name", ["smollm2-135m", "llama-3.2-1b", "llama-3.1-8b"])
def test_candidates_are_few_distinct_and_fit(name: str) -> None:
    opened = api.open_model(MODELS / f"{name}.json", random_weights=0)
    config = replace(opened.config, layers=1)
    shapes = [Shape.decode(), Shape.decode(8), Shape.prefill(512)]
    regions = tunable_regions(config, shapes, dtype="bf16", max_context=2048, arch=ARCH, measurements=Measurements())
    assert {r.candidates[0].skeleton.data for r in regions} == {"gemv", "mma", "attend"}
    for region in regions:
        model, *others = region.candidates
        assert 8 <= len(region.candidates) <= MOST and len(set(region.candidates)) == len(region.candidates)
        ops = region.ops
        for schedule in others:
            options = {n: schedule.get(n) for n in schedule.options.data}
            assert why_not(schedule.skeleton.data, options, ops, region.longest, TARGET, model) is None
        assert candidates(ops, model, region.longest, TARGET) == list(region.candidates), "the order is the same every time"


def test_a_step_is_covered() -> None:
    """Every launch of a skeleton that is tuned belongs to a region that would be measured."""
    regions = small_regions([Shape.decode(), Shape.decode(2)])
    for shape in (Shape.decode(), Shape.decode(2)):
        from lamella.program import compile_model

        program = compile_model(SMALL, [shape], dtype="f32", max_context=64, until="plan")
        skeletons = [r["schedule"] for r in program.ledger if r["verdict"] == "region"]
        tuned = sum(s in tuning.TUNABLE for s in skeletons)
        assert tuned == sum(r.launches.get(shape.name, 0) for r in regions)
        said = [r for r in program.ledger if r["verdict"] == "not_measured"]
        assert len(said) == tuned


# lamella tune


def few_regions(measurements: Measurements | None = None) -> list[TunableRegion]:
    """Regions of a decode step, with few schedules each."""
    return [replace(region, candidates=region.candidates[:3]) for region in small_regions(measurements=measurements)]


@dataclass
class Wooden:
    """A timer that knows: the candidate number `best` takes half the time of the others."""

    best: int = 1
    gain: float = 0.5
    broken: frozenset[int] = frozenset()
    measured: list[str] = field(default_factory=list)
    compiled: int = 0
    name: str = "A wooden GPU"
    triton: str = "0.0.0"

    def compile(self, programs: Sequence[RegionProgram], show: Callable[[int, int], None]) -> None:
        self.compiled += len(programs)
        show(len(programs), len(programs))

    def measure(self, region: TunableRegion, programs: Sequence[RegionProgram]) -> Measured:
        self.measured.append(region.key)
        timings = [Timing(8.0 * (1 - self.gain) if i == self.best else 8.0) for i in range(len(programs))]
        timings = [Timing(None, "out of wood") if i in self.broken else t for i, t in enumerate(timings)]
        return Measured(timings, 2.0)


def test_a_run_keeps_the_fastest_and_a_warm_run_measures_nothing(tmp_path: Path) -> None:
    path, timer = tmp_path / "m.json", Wooden()
    shown: list[str] = []
    rows = tune(few_regions(), timer, path, show=shown.append)
    assert len(rows) > 5 and {row.state for row in rows} == {"measured"} and timer.measured == [row.region.key for row in rows]
    assert timer.compiled == sum(len(row.region.candidates) for row in rows) and any("kernel" in text for text in shown)
    entries = Measurements.of(read_entries(path, ARCH))
    for row in rows:
        entry, chosen = entries.entries[row.region.key], row.region.candidates[1]
        assert schedule_text(chosen) == " ".join([entry.skeleton, *(f"{n}={v}" for n, v in sorted(entry.options.items()))])
        assert (entry.us, entry.model_us, entry.share, entry.device) == (4.0, 8.0, 0.5, "A wooden GPU")
    before, warm = path.read_bytes(), Wooden()
    rows = tune(few_regions(measurements=entries), warm, path)
    assert {row.state for row in rows} == {"known"} and (warm.measured, warm.compiled) == ([], 0)
    assert path.read_bytes() == before
    again = Wooden(best=0)
    assert {row.state for row in tune(few_regions(measurements=entries), again, path, again=True)} == {"measured"}
    assert all(e.us == e.model_us == 4.0 for e in read_entries(path, ARCH)), "the cost model's own was the fastest this time"


def test_what_was_tuned_is_what_a_compilation_takes(tmp_path: Path) -> None:
    from lamella.program import compile_model

    path = tmp_path / "m.json"
    rows = tune(few_regions(), Wooden(), path)
    choice = {"choose-schedule": {"tuning": str(path)}}
    compiled = [compile_model(SMALL, [Shape.decode()], dtype="f32", max_context=64, pass_options=choice) for _ in range(2)]
    assert compiled[0].kernels == compiled[1].kernels, "the same measurements give the same kernels"
    found = {r["schedule"] + str(r["parameters"]) for r in compiled[0].ledger if r["verdict"] == "region"}
    for row in rows:
        assert row.entry is not None
        assert row.entry.skeleton + str(dict(sorted(row.entry.options.items()))) in found
    assert not [r for r in compiled[0].ledger if r["verdict"] == "not_measured"]


def test_a_gain_within_the_noise_is_none(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    rows = tune(few_regions(), Wooden(gain=0.01), path)
    for row in rows:
        model = row.region.candidates[0]
        assert row.entry is not None and row.entry.us == row.entry.model_us == 8.0
        assert dict(row.entry.options) == {n: model.get(n) for n in model.options.data}


def test_a_schedule_that_cannot_run_is_named_and_never_chosen(tmp_path: Path) -> None:
    rows = tune(few_regions(), Wooden(broken=frozenset({1})), tmp_path / "m.json")
    for row in rows:
        assert row.failures == (f"{schedule_text(row.region.candidates[1])}: out of wood",)
        assert row.entry is not None and row.entry.us == 8.0


def test_a_budget_ends_a_run_and_keeps_what_was_found(tmp_path: Path) -> None:
    path, now = tmp_path / "m.json", iter(range(100))
    rows = tune(few_regions(), Wooden(), path, budget_seconds=3.5, clock=lambda: float(next(now)))
    states = [row.state for row in rows]
    assert states[:2] == ["measured", "measured"] and len(states) > 2 and set(states[2:]) == {"left"}
    assert len(read_entries(path, ARCH)) == 2


def test_a_measurement_that_no_longer_fits_is_measured_again(tmp_path: Path) -> None:
    (region, *_) = small_regions()
    model = region.candidates[0]
    options = {n: model.get(n) for n in model.options.data} | {"rows": 1}
    stale = Entry(region.op, region.shape, "gemv", options, 1.0, 0.5, 1.0, "A GPU", "3.6.0")
    assert small_regions(measurements=Measurements.of([stale]))[0].known is None
    good = replace(stale, options=options | {"rows": 4})
    assert small_regions(measurements=Measurements.of([good]))[0].known == good


def test_dry_run_lists_the_regions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["tune", TINY, "--dry-run", "--tokens", "1,8", "--max-context", "64", "--arch", ARCH, "-o", str(tmp_path / "m.json")]
    assert cli.main(command) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert (title, header.split()[:3]) == ("Regions", ["region", "launches", "state"])
    assert len(rows) > 8 and all("to measure" in row for row in rows)
    assert cli.main([*command, "--json"]) == 0
    assert [r["state"] for r in json.loads(capsys.readouterr().out)] == ["left"] * len(rows)
    assert not (tmp_path / "m.json").exists()


def test_packed_weights_are_tuned_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Regions of packed weights have keys of their own, and no schedule that a product of bytes does not have."""
    command = [
        "tune",
        str(MODELS / "llama-3.1-8b.json"),
        "--dry-run",
        "--json",
        "--quantize",
        "int8",
        "--arch",
        ARCH,
        "-o",
        str(tmp_path / "m.json"),
    ]
    assert cli.main([*command, "--max-context", "64"]) == 0
    keys = [row["key"] for row in json.loads(capsys.readouterr().out)]
    assert len(keys) == 6 and all("weights=int8" in key for key in keys if key.startswith("contract"))
    for kind in ("int8", "int4", "fp8"):
        runs = [options for options in packed_candidates(kind) if "runs" in options]
        assert len(runs) > 40
        assert {(options["runs"], options["warps"]) for options in runs} == {(8, 1)}
        assert {options["k"] % 512 for options in runs} == {0}
    # Rows of 14336 halves of bytes are divided between programs, by digits.
    digits = [options for options in packed_candidates("int4") if "digits" in options]
    assert len(digits) > 20 and min(options["k"] for options in digits) >= 32


def packed_candidates(kind: str) -> list[dict[str, int]]:
    """The schedules that `lamella tune` would time for one token and a layer of Llama-3.1-8B with weights of a kind."""
    opened = api.open_model(MODELS / "llama-3.1-8b.json", random_weights=0)
    regions = tunable_regions(
        replace(opened.config, layers=1),
        [Shape.decode()],
        dtype="bf16",
        max_context=64,
        arch=ARCH,
        measurements=Measurements(),
        pass_options={"quantize-weights": {"kind": kind, "head": "int8"}},
    )
    return [{name: c.get(name) for name in c.options.data} for region in regions for c in region.candidates]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rows": 2, "k": 7168, "warps": 1, "runs": 8}, None),
        ({"rows": 2, "k": 1024, "warps": 2, "runs": 8}, "runs = 8, warps = 2, rows = 2, expected 8, 1 and at least 2"),
        ({"rows": 1, "k": 1024, "warps": 1, "runs": 8}, "runs = 8, warps = 1, rows = 1, expected 8, 1 and at least 2"),
        ({"rows": 2, "k": 4096, "warps": 1, "runs": 8}, "k = 4096 are no whole pieces of 512 columns, or do not divide 14336"),
        ({"rows": 2, "k": 256, "warps": 1, "runs": 8}, "k = 256 are no whole pieces of 512 columns, or do not divide 14336"),
        ({"rows": 3, "k": 1024, "warps": 1, "runs": 8}, "rows = 3 is no power of two"),
        ({"rows": 2, "k": 1024, "warps": 1}, "it sets k, rows, warps, and the options are k, rows, runs, warps"),
    ],
)
def test_what_runs_need(options: dict[str, int], reason: str | None) -> None:
    """14336 columns of eight-bit floats: any number of whole pieces of 512 that divides them, not only powers of two."""
    spec = (16, 14336, "fp8", 0, False)
    g = Packed(x="1x14336xbf16", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "fp8", 0, 14336))))
    (region,) = compiled.regions
    assert region.schedule is not None
    ops = [op for op in region.body.block.ops if not isinstance(op, YieldOp)]
    assert why_not("gemv", options, ops, 1, TARGET, region.schedule) == reason


def test_without_a_gpu_tune_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["tune", TINY, "--max-context", "64", "-o", str(tmp_path / "m.json")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "lamella: error: there is no CUDA GPU here to measure on (lamella tune --dry-run lists what would be measured)"
    ]


def test_a_warm_run_needs_no_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    opened = api.open_model(TINY, random_weights=0)
    path = tmp_path / "m.json"
    regions = tunable_regions(opened.config, [Shape.decode()], dtype="bf16", max_context=64, arch=ARCH, measurements=Measurements())
    tune([replace(region, candidates=region.candidates[:2]) for region in regions], Wooden(), path)
    assert cli.main(["tune", TINY, "--max-context", "64", "-o", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "6 of 6 regions are measured already, nothing to do"


def test_bad_numbers_of_sequences_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", TINY, "--sequences", "0"]) == 2
    assert "--sequences: bad numbers of sequences, expected each at least 1" in capsys.readouterr().err


def test_a_timer_of_another_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lamella.tools.tune_timer import GpuTimer

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(DeviceError, match="the GPU is of another architecture, expected sm_90, got sm_80"):
        GpuTimer(TARGET)


def test_the_pass_by_itself_measures_nothing() -> None:
    assert ChooseSchedule().tuning == "off"


def test_runs_step_by_step_smaller() -> None:
    """Rows first, down to two; then trips over K, by whole pieces that divide it; the one warp stays, and so does the smallest schedule."""
    spec = (64, 3072, "int8", 0, False)
    g = Packed(x="1x3072xbf16", **Packed.arguments_for("w", *spec))
    compiled = compile_function(g.returns(g.contract(g["x"], g.weight("w", "int8", 0, 3072))))
    ops = [op for op in compiled.regions[0].body.block.ops if not isinstance(op, YieldOp)]
    schedule = ScheduleAttr.of("gemv", rows=8, k=3072, warps=1, runs=8)
    steps = [smaller(schedule, ops, n) for n in range(7)]
    assert [(s.get("rows"), s.get("k")) for s in steps] == [(8, 3072), (4, 3072), (2, 3072), (2, 1536), (2, 1024), (2, 512), (2, 512)]
    assert all(s.get("warps") == 1 for s in steps)

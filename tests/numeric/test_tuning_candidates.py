"""Every schedule that `lamella tune` would time computes what the region means: interpreted, over the memory it is timed in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
import torch

from lamella.frontends.config import ModelConfig
from lamella.passes.device import device
from lamella.passes.tuning import Measurements, read_entries
from lamella.program import Shape, compile_model
from lamella.region_programs import TunableRegion, tunable_regions
from lamella.runtime.executor import Executor
from lamella.runtime.interpret import InterpretExecutor
from lamella.runtime.manifest import Bucket
from lamella.runtime.memory import Memory
from lamella.runtime.reference import ReferenceExecutor
from lamella.tools import tune_timer
from lamella.tools.tune import tune

ARCH = "sm_90"
ODD = ModelConfig("llama", 1, 48, 3, 1, 16, 72, 51, 1e-5, 1e4)
"""Three heads share keys, and no size but that of a head is a power of two."""
COLD = replace(device(ARCH), cache_bytes=1)
"""One copy of the weights exceeds its cache, so that graphs are short."""


def regions(shape: Shape, dtype: str = "f32") -> list[TunableRegion]:
    return tunable_regions(ODD, [shape], dtype=dtype, max_context=64, arch=ARCH, measurements=Measurements())


def run(executor: Executor, bucket) -> dict[str, torch.Tensor]:
    executor.launch(bucket)
    return {o.name: executor.output(bucket, o.name).clone() for o in bucket.outputs}


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(Shape.decode(), "f32"), (Shape.decode(3), "f16"), (Shape.prefill(5), "f32")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_candidate_computes_what_the_region_means(shape: Shape, dtype: str) -> None:
    """The reference runs the cost model's choice; each candidate is a bucket of its own, in an arena they share."""
    cpu = torch.device("cpu")
    found = regions(shape, dtype)
    if dtype == "f16":
        assert any(c.options.data.get("splits") and c.get("splits") > 1 for r in found if r.op == "contract" for c in r.candidates)
    assert {"gemv" if shape.tokens == 1 else "mma", "attend"} <= {r.candidates[0].skeleton.data for r in found}
    for region in found:
        programs = [region.compile(schedule, i) for i, schedule in enumerate(region.candidates)]
        context = tune_timer.context_of(region)
        reference = tune_timer.build(region, programs[:1], context, COLD, cpu, lambda memory, _: ReferenceExecutor(memory), 1)
        expected = run(reference.executor, reference.once[0])
        bench = tune_timer.build(region, programs, context, COLD, cpu, InterpretExecutor, 1)
        assert expected and any(bool(value.any()) for value in expected.values())
        for program, bucket in zip(programs, bench.once, strict=True):
            for name, value in run(bench.executor, bucket).items():
                allowed = {"f32": 1e-5, "f16": 2e-3}[dtype] * max(1.0, float(expected[name].abs().max()))
                torch.testing.assert_close(value, expected[name], rtol=0, atol=allowed, msg=f"{region.key}: {program.text}: {name}")


@pytest.mark.parametrize("shape", [Shape.decode(), Shape.decode(3), Shape.prefill(5)], ids=lambda shape: shape.name)
def test_a_region_by_itself_is_the_kernel_of_a_step(shape: Shape) -> None:
    """Text for text, the wait included: what may be read before it depends on who wrote it. When the next launch may go depends on that one."""

    def alone(text: str, name: str) -> str:
        return re.sub(r" *if PDL:\n *tl\.extra\.cuda\.gdc_launch_dependents\(\)\n", "", text.replace(name, "kernel"))

    off = {"choose-schedule": {"tuning": "off"}}
    program = compile_model(ODD, [shape], dtype="f32", max_context=64, arch=ARCH, pass_options=off)
    step = {alone(text, name) for name, text in program.kernels.items()}
    for region in regions(shape):
        made = region.compile(region.candidates[0], 0)
        for launch in made.launches:
            assert alone(made.kernels[launch.kernel], launch.kernel) in step, region.key


def test_a_program_with_other_results_is_found() -> None:
    (region, *_) = regions(Shape.decode())
    programs = [region.compile(schedule, i) for i, schedule in enumerate(region.candidates[:2])]
    name = programs[1].launches[0].kernel
    wrong = programs[1].kernels[name].replace("tl.sum(", "2 * tl.sum(", 1)
    assert wrong != programs[1].kernels[name]
    spoiled = [programs[0], replace(programs[1], kernels={**programs[1].kernels, name: wrong})]
    bench = tune_timer.build(region, spoiled, 8, COLD, torch.device("cpu"), InterpretExecutor, 1)
    (failure,) = tune_timer.differing(bench, {}).values()
    assert failure.endswith("is not that of the cost model's schedule")


def test_weights_exceed_the_cache_and_every_launch_reads_others() -> None:
    (region, *_) = regions(Shape.decode())
    program = region.compile(region.candidates[0], 0)
    target = replace(device(ARCH), cache_bytes=100_000)
    copies = tune_timer.copies_of(program, 8, target)
    bucket = tune_timer.repeated(program, 2, program.launches, 512, copies, 2 * copies)
    weights = [tuple(ref.name for ref in launch.args if ref.pool == "weight") for launch in bucket.launches]
    assert len(set(weights)) == copies and weights[:copies] == weights[copies:]
    touched = sum(48 * 2**2 * rows for rows in (48, 16, 16))
    assert copies * touched > tune_timer.COLD * target.cache_bytes * 0.8
    assert all(ref.offset >= 512 for launch in bucket.launches for ref in launch.args if ref.pool == "arena")


class Unready(InterpretExecutor):
    """Interprets in place of a GPU; the second schedule cannot be loaded. Nothing poisons what the launches before have left."""

    def __init__(self, memory: Memory, kernels: Mapping[str, str]) -> None:
        super().__init__(memory, kernels, poisoned=False)

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: object = None, *, steps: int = 1) -> None:
        if any("c1_" in launch.kernel for bucket in buckets or () for launch in bucket.launches):
            raise RuntimeError("out of resource:\n shared memory")
        super().prepare(buckets)


class Clock:
    """A CUDA event on the clock of the host."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = perf_counter()

    def synchronize(self) -> None:
        assert self.time

    def elapsed_time(self, end: Clock) -> float:
        return (end.time - self.time) * 1e3


def test_a_measurement_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `GpuTimer.measure` does, on a host: a schedule that cannot run has its reason, and of the others only finalists may win."""
    (region, *_) = regions(Shape.decode())
    programs = [region.compile(schedule, i) for i, schedule in enumerate(region.candidates[:6])]
    monkeypatch.setattr(tune_timer, "CudaExecutor", Unready)
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    for name in ("LEAST_EXECUTIONS", "FEWEST", "ROUNDS", "FINAL_ROUNDS", "REPLAYS", "FINALISTS"):
        monkeypatch.setattr(tune_timer, name, 1)
    timer = object.__new__(tune_timer.GpuTimer)
    timer.target, timer.device = COLD, torch.device("cpu")
    measured = timer.measure(region, programs)
    assert [t.us is None for t in measured.timings] == [i == 1 for i in range(6)]
    assert measured.timings[1].failure == "RuntimeError: out of resource: shared memory"
    finals = [i for i, t in enumerate(measured.timings) if t.us is not None and t.final]
    assert 0 in finals and len(finals) <= 2
    assert 0 < measured.bound_us < 1


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [Shape.decode(), Shape.prefill(40)], ids=lambda shape: shape.name)
def test_a_tune_on_the_device(shape: Shape, tmp_path: Path) -> None:
    """All schedules run, agree, and take some time; what is written is read back, and then nothing is left to measure."""
    target = device(ARCH)
    timer = tune_timer.GpuTimer(target)
    found = [replace(region, candidates=region.candidates[:4]) for region in regions(shape, "bf16")]
    rows = tune(found, timer, tmp_path / "m.json")
    assert [row.state for row in rows] == ["measured"] * len(found)
    assert [failure for row in rows for failure in row.failures] == []
    entries = read_entries(tmp_path / "m.json", ARCH)
    assert len(entries) == len(found)
    assert all(0.2 < entry.us <= entry.model_us < 100 and entry.device == timer.name for entry in entries)
    known = tunable_regions(ODD, [shape], dtype="bf16", max_context=64, arch=ARCH, measurements=Measurements.of(entries))
    assert all(region.known is not None for region in known)

"""Compiling takes seconds for a model of many layers, and twice as long for twice the layers."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import pytest

from benchmarks.configurations import configuration
from lamella import pipeline
from lamella.errors import PassError
from lamella.frontends import ModelConfig, open_model
from lamella.program import Program, Shape, compile_model

CONTEXT = 2048
LIMIT = 5.0
"""Seconds of one core for 32 layers, from a configuration to printed Triton."""
RATIO = 1.3
ATTEMPTS = 4
"""Measurements, of which the shortest counts: a busy machine only ever adds."""


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    with configuration("llama-3.1-8b") as path:
        return open_model(path, random_weights=0).config


def decode(config: ModelConfig, layers: int) -> Program:
    return compile_model(replace(config, layers=layers), [Shape.decode()], dtype="bf16", max_context=CONTEXT)


def seconds(config: ModelConfig, layers: int) -> float:
    """Processor time of compiling the decode bucket, from a configuration to printed Triton."""
    start = time.process_time()
    decode(config, layers)
    return time.process_time() - start


def test_a_decode_bucket_compiles_in_seconds_and_in_time_linear_in_layers(config: ModelConfig) -> None:
    decode(config, 2)
    best = dict.fromkeys((8, 32, 80), float("inf"))
    ratio = float("inf")
    for _ in range(ATTEMPTS):
        best = {layers: min(known, seconds(config, layers)) for layers, known in best.items()}
        ratio = (best[80] - best[32]) / 48 / ((best[32] - best[8]) / 24)
        if best[32] <= LIMIT and ratio <= RATIO:
            break
    assert best[32] <= LIMIT
    assert ratio <= RATIO, best


def test_identical_layers_are_lowered_once(config: ModelConfig) -> None:
    few, many = decode(config, 4), decode(config, 12)
    assert few.kernels == many.kernels and 0 < len(few.kernels) < 12
    assert few.manifest is not None and many.manifest is not None
    launches = [len(program.manifest.buckets[0].launches) for program in (few, many) if program.manifest is not None]
    assert (launches[1] - launches[0]) % 8 == 0 < launches[1] - launches[0]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_after_a_compilation(config: ModelConfig, enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = gc.isenabled(), list[bool]()
    apply = pipeline.apply
    monkeypatch.setattr(pipeline, "apply", lambda *given: (seen.append(gc.isenabled()), apply(*given)))
    try:
        (gc.enable if enabled else gc.disable)()
        decode(config, 1)
        assert gc.isenabled() == enabled and len(seen) > 10 and not any(seen)
        with pytest.raises(PassError):
            compile_model(config, [Shape.decode()], dtype="bf16", max_context=CONTEXT, skip=("bufferize",))
        assert gc.isenabled() == enabled
    finally:
        if before:
            gc.enable()

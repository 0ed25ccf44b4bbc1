"""Kernels that spill become smaller, or are taken apart, and the ledger says why; whether they do is what the assembler says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lamella import api
from lamella.dialects.tile import ScheduleAttr
from lamella.frontends import LoadedModel, open_model
from lamella.passes import schedules
from lamella.program import Program, Shape
from lamella.tools import fit_registers
from lamella.tools.cross_compile import KernelResources, cross_compile
from lamella.tools.explain import explain
from tests.models.tiny_llama import SMALL

MODELS = Path(__file__).resolve().parents[2] / "benchmarks" / "models"
GEMMA = MODELS / "gemma-3-1b.json"


def gemma(layers: int) -> LoadedModel:
    """Gemma 3 with heads of 256, a few layers of it: windows of 512 positions."""
    opened = open_model(GEMMA, random_weights=0)
    config = replace(opened.config, layers=layers, layer_kinds=opened.config.layer_kinds[:layers], vocabulary=512)
    return replace(opened, config=config)


def attention(program: Program) -> dict[str, str]:
    """The kernels of attention."""
    return {name: text for name, text in program.kernels.items() if "attend" in name}


def test_attention_of_wide_heads_does_not_spill() -> None:
    """512 tokens of Gemma 3: with split contexts its two kernels of attention spilled 592 and 528 bytes."""
    program = api.compile(gemma(6), buckets=[512], max_context=2048, arch="sm_90", keep_ir=False)
    kernels = attention(program)
    assert len(kernels) == 2
    assert [figure.spills for figure in cross_compile(kernels, "sm_90", pdl=True)] == [0, 0]


def test_a_window_bounds_the_chunks_of_a_context() -> None:
    program = api.compile(gemma(6), buckets=[1], max_context=8192, arch="sm_90", keep_ir=False)
    splits = {r["parameters"]["splits"] for r in program.ledger if r["verdict"] == "region" and r["schedule"] == "attend"}
    assert splits == {16, 32}


def test_a_chunk_of_a_split_context_does_not_spill() -> None:
    """One token, several sequences, a few tokens: the last program of a head merges all chunks at once."""
    found: dict[str, str] = {}
    for name, buckets in (("llama-3.1-8b", (1, Shape.decode(8), 16)), ("smollm2-135m", (1,)), ("gemma-3-1b", (1,))):
        program = api.compile(MODELS / f"{name}.json", random_weights=0, buckets=buckets, max_context=2048, arch="sm_90", keep_ir=False)
        found |= {f"{kernel}_{len(found)}": text.replace(kernel, f"{kernel}_{len(found)}") for kernel, text in attention(program).items()}
    assert len([text for text in found.values() if "tl.atomic_add" in text]) >= 5
    assert {figure.name: figure.spills for figure in cross_compile(found, "sm_90", pdl=True) if figure.spills} == {}


def test_a_kernel_that_spills_gets_a_smaller_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the estimate the schedule that spilled is back; what ptxas says of it takes it away again."""
    monkeypatch.setattr(schedules, "within_registers", lambda op, options, decode: ScheduleAttr.of("attend", **options))
    spilling = api.compile(gemma(1), buckets=[512], max_context=2048, arch="sm_90", keep_ir=False)
    assert all(figure.spills > 400 for figure in cross_compile(attention(spilling), "sm_90", pdl=True))
    program = api.compile(gemma(1), buckets=[512], max_context=2048, arch="sm_90", keep_ir=False, fit_registers=True)
    assert all(figure.spills == 0 for figure in cross_compile(program.kernels, "sm_90", pdl=True))
    (entry,) = [r for r in program.ledger if r["verdict"] == "split"]
    assert entry["what"] == "t512_attend_0 at layers.*.attn.attention"
    assert entry["reason"].startswith("spilled ") and entry["reason"].endswith("warps 4: a smaller schedule")
    assert "bytes a thread at queries 8, rows 32, splits 2" in entry["reason"]
    assert f"Kernels that spilled\n  kernel {entry['what']}" in explain(program.ledger)


def compile_tiny(monkeypatch: pytest.MonkeyPatch, spills: Mapping[str, int]) -> Program:
    """A small Llama with `fit_registers`, where kernels whose text holds one of `spills` are said to spill."""

    def figures(sources: Mapping[str, str], arch: str, **settings: object) -> Sequence[KernelResources]:
        sizes = [max((n for text, n in spills.items() if text in source), default=0) for source in sources.values()]
        return [
            KernelResources(name, 255, size, 0, 4, 1, 0, instructions=0, loads=0, wide_loads=0)
            for name, size in zip(sources, sizes, strict=True)
        ]

    monkeypatch.setattr(fit_registers, "cross_compile", figures)
    opened = replace(open_model(GEMMA, random_weights=0), config=replace(SMALL, layers=2))
    return api.compile(opened, buckets=[Shape.decode(), 16], max_context=64, arch="sm_90", dtype="float32", fit_registers=True)


def test_a_region_that_spills_at_any_schedule_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_tiny(monkeypatch, {"ffn.gated: mul": 64})
    reasons = [r["reason"] for r in program.ledger if r["verdict"] == "split" and "t16" in r["what"]]
    assert any("a smaller schedule" in reason for reason in reasons)
    assert any("stay apart: that fusion took most registers" in reason for reason in reasons)
    assert program.manifest is not None and program.kernels


def test_a_kernel_that_still_spills_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is one op cannot be taken apart."""
    program = compile_tiny(monkeypatch, {"sample: sample": 8})
    reasons = [r["reason"] for r in program.ledger if r["verdict"] == "split"]
    assert reasons and all(reason.endswith("it still spills: nothing smaller is known") for reason in reasons[-2:])


def test_nothing_changes_where_nothing_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_tiny(monkeypatch, {})
    assert not [r for r in program.ledger if r["verdict"] == "split"]
    opened = replace(open_model(GEMMA, random_weights=0), config=replace(SMALL, layers=2))
    plain = api.compile(opened, buckets=[Shape.decode(), 16], max_context=64, arch="sm_90", dtype="float32")
    assert dict(program.kernels) == dict(plain.kernels)


def test_the_costliest_fusion_is_the_one_whose_estimate_grew_most() -> None:
    joins = [
        {"producer": "tile.map at layers.0.a", "consumer": "tile.map at layers.0.b", "registers": 40},
        {"producer": "tile.map at layers.0.b", "consumer": "tile.contract at layers.0.c", "registers": 200},
        {"producer": "tile.cast", "consumer": "tile.map at layers.0.b", "registers": 210},
    ]
    rule = {"action": "forbid", "producer": "layers.*.b", "consumer": "layers.*.c"}
    assert fit_registers.costliest(joins, []) == rule
    assert fit_registers.costliest(joins, [rule]) == {"action": "forbid", "producer": "layers.*.a", "consumer": "layers.*.b"}
    assert fit_registers.costliest(joins[:0], []) is None

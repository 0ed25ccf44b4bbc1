"""A limit on the arena: a bucket that fits stays, one of many tokens is split, and what cannot be split is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lamella.errors import PlanError
from lamella.program import Program, Shape, compile_model
from lamella.runtime.executor import make_executor
from lamella.runtime.generate import Session
from lamella.runtime.weights import load_weights
from lamella.tools import cli
from lamella.tools.explain import explain
from tests.models.model_files import write_config
from tests.models.tiny_llama import CONTEXT, SMALL, Tensors, peer, text, weights_of

DECODE, LONG = Shape.decode(), Shape.prefill(64)


def compiled(shapes: Sequence[Shape], max_arena: int = 0, **settings: Any) -> Program:
    """A small model, planned."""
    return compile_model(SMALL, shapes, dtype="f32", max_context=CONTEXT, kernels=False, max_arena=max_arena, **settings)


def arenas(program: Program) -> dict[str, int]:
    """Arena bytes by bucket."""
    assert program.manifest is not None
    return {shape.name: bucket.arena_bytes for shape, bucket in zip(program.shapes, program.manifest.buckets, strict=True)}


def splits(program: Program) -> list[tuple[str, str]]:
    """The buckets that became smaller ones, and why."""
    return [(record["what"], record["reason"]) for record in program.ledger if record["verdict"] == "split"]


@pytest.fixture(scope="module")
def free() -> dict[str, int]:
    """Arenas without a limit."""
    return arenas(compiled([DECODE, Shape.prefill(16), Shape.prefill(32), LONG]))


def test_a_bucket_that_fits_stays(free: dict[str, int]) -> None:
    program = compiled([DECODE, LONG], max_arena=free["t64"], verify_each=True, keep_ir=True)
    assert arenas(program) == {"t1": free["t1"], "t64": free["t64"]}
    assert splits(program) == []
    assert f"limit = {free['t64']} : i64" in program.ir("plan", 1)


def test_a_bucket_that_exceeds_the_limit_is_halved_until_it_fits(free: dict[str, int]) -> None:
    program = compiled([DECODE, LONG], max_arena=free["t32"] - 1, keep_ir=True)
    assert arenas(program) == {"t1": free["t1"], "t16": free["t16"]}
    reason = f"an arena of {free['t64']} bytes exceeds max-arena = {free['t32'] - 1}; its steps run as 4 chunks of 16 tokens"
    assert splits(program) == [("t64", reason)]
    assert f"Split buckets\n  bucket t64  {reason}\n\n" in explain(program.ledger)
    assert {len(texts) for stage, texts in program.texts.items() if stage != "model"} == {2}


def test_chunks_that_another_bucket_runs_need_no_bucket_of_their_own(free: dict[str, int]) -> None:
    limit = free["t32"] - 1
    program = compiled([DECODE, Shape.prefill(16), LONG], max_arena=limit)
    assert list(arenas(program)) == ["t1", "t16"]
    assert [what for what, _ in splits(program)] == ["t64"]
    assert list(arenas(compiled([LONG, Shape.prefill(16), DECODE], max_arena=limit))) == ["t16", "t1"]


def test_the_last_chunk_is_a_decode_step(free: dict[str, int]) -> None:
    program = compiled([LONG, DECODE], max_arena=free["t1"])
    assert program.shapes == (DECODE,)
    assert splits(program)[0][1].endswith("its steps run as 64 chunks of 1 token")


def test_the_option_of_the_pass_is_the_same_limit(free: dict[str, int]) -> None:
    program = compiled([DECODE, LONG], pass_options={"plan-memory": {"max-arena": free["t16"]}})
    assert arenas(program) == {"t1": free["t1"], "t16": free["t16"]}


def test_a_step_of_one_token_is_refused(free: dict[str, int]) -> None:
    message = rf"bucket of one token: the arena exceeds max-arena, expected at most 256 bytes, got {free['t1']} bytes in the best packing"
    with pytest.raises(PlanError, match=message):
        compiled([LONG, DECODE], max_arena=256)


def test_a_step_of_several_sequences_is_refused() -> None:
    """It is one launch by contract: the runtime would not know how to take it apart."""
    with pytest.raises(PlanError, match=r"bucket of 4 tokens: .*\(give the bucket fewer tokens, or allow"):
        compiled([Shape.decode(4)], max_arena=1024)


def test_chunks_compute_what_the_whole_step_computes(free: dict[str, int]) -> None:
    weights = weights_of(SMALL, peer(SMALL))
    ids = text(53, 3, SMALL.vocabulary)
    rows = [9, 31, 32, 52]
    found: list[tuple[int, torch.Tensor, list[int]]] = []
    for limit in (0, free["t16"], free["t1"]):
        program = compiled([DECODE, replace(LONG, logit_rows=4)], max_arena=limit)
        assert program.manifest is not None
        assert limit == 0 or program.manifest.arena_bytes <= limit
        executor = make_executor(program.manifest, load_weights(program.manifest, Tensors(weights)), executor="reference")
        session = Session(executor)
        found.append(
            (
                max(b.tokens for b in program.manifest.buckets),
                session.forward_logits(ids, rows),
                list(session.stream(ids, 6, ignore_eos=True)),
            )
        )
    assert [tokens for tokens, _, _ in found] == [64, 16, 1]
    _, expected, continuation = found[0]
    for _, logits, tokens in found[1:]:
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        assert tokens == continuation


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("3KiB", 3 << 10), ("64MiB", 64 << 20), ("2GiB", 2 << 30)])
def test_sizes_as_people_type_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, size: int) -> None:
    given: list[int] = []

    def record(*args: object, max_arena: int = 0, **settings: object) -> Program:
        given.append(max_arena)
        return compiled([])

    monkeypatch.setattr("lamella.api.compile", record)
    assert cli.main(["compile", str(write_config(tmp_path)), "--max-arena", text, "--until", "plan", "-o", str(tmp_path / "out")]) == 0
    assert given == [size]


@pytest.mark.parametrize("text", ["0", "64MB", "-1", "1.5MiB", ""])
def test_bad_sizes(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["compile", "m", "-o", "d"], ["report", "m"], ["generate", "m", "--prompt", "x"]):
        assert cli.main([*command, f"--max-arena={text}"]) == 2
        expected = f"lamella: error: --max-arena: bad number of bytes, expected at least 1, alone or with KiB, MiB or GiB, got '{text}'\n"
        assert capsys.readouterr().err == expected

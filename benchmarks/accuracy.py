# pyright: basic
"""How far Lamella's logits are from `transformers` in float32 on the same weights, beside how far those of `transformers` itself are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.hugging_face import logits, transformers_model
from benchmarks.lamella_runner import load
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.timing import release
from lamella import api
from lamella.frontends import open_model
from lamella.program import Shape
from lamella.runtime.executor import make_executor
from lamella.runtime.generate import Session
from lamella.semantics import DTYPES

LIMIT = 1.5
"""Root-mean-square logit error over that of transformers in the same element type."""
MARGIN = 4.0
"""Where the likeliest token is another than in float32: how much float32 may prefer its own, over the error of transformers."""
GREEDY_TOKENS = 64
PROMPT = 16
COLUMNS = (
    "name",
    "peer_error",
    "prefill_error",
    "decode_error",
    "prefill_ratio",
    "decode_ratio",
    "margin",
    "other_choices",
    "logit_rms",
    "same_ids",
    "ok",
)


def accuracy(settings: Settings, *, seeds: Sequence[int], positions: int) -> Report:
    """For each seed, which makes weights and tokens: errors of prefill in one launch and of decode token by token, over `positions`
    teacher-forced positions; at how many of them another token is the likeliest (`other_choices`), and how far that one lies behind in
    float32 at most, over the error (`margin`); and whether greedy ids are the same with and without CUDA graphs.

    The element types of both are alike; the reference is float32 on the weights as rounded to that type. Raises LamellaError.
    """
    report = Report("accuracy", settings.device, {"config": settings.name, "limit": LIMIT}, settings.output)
    for seed in seeds:
        report.add(name=f"seed {seed}", **_seed(report, settings, seed, positions))
        release()
    rows = report.rows
    means = {
        key: math.sqrt(sum(r[key] ** 2 for r in rows) / len(rows)) for key in ("peer_error", "prefill_error", "decode_error", "logit_rms")
    }
    choices = {"margin": max(r["margin"] for r in rows), "other_choices": sum(r["other_choices"] for r in rows)}
    report.add(name="all", **means, **choices, **_verdict({**means, **choices}, all(r["same_ids"] for r in rows)))
    report.note(ok=report.rows[-1]["ok"])
    report.table(COLUMNS, f"accuracy: {settings.name}, {report.facts['dtype']}, {positions} positions, {report.facts['device']}")
    return report


def rms(x: torch.Tensor) -> float:
    """Root of the mean square of all elements."""
    return math.sqrt(x.double().square().mean().item())


def margin(found: torch.Tensor, exact: torch.Tensor, error: float) -> float:
    """How much more likely float32 finds its own likeliest token than that of `found`, in logits over `error`, at most."""
    behind = exact.amax(-1) - exact.gather(-1, found.argmax(-1, keepdim=True))[:, 0]
    return float(behind.max()) / (error or 1.0)


def _seed(report: Report, settings: Settings, seed: int, positions: int) -> dict[str, Any]:
    opened = open_model(settings.config, random_weights=seed)
    dtype = api.element_name(settings.dtype, opened, on_gpu=settings.device.type == "cuda")
    report.note(**settings.facts(opened.config, dtype, positions=positions))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(opened.config.vocabulary, (positions,), generator=generator).tolist()
    peers = {}
    for kind in (torch.float32, DTYPES[dtype]):
        model = transformers_model(opened.config, opened.source, kind, settings.device, weights=dtype)
        peers[kind] = logits(model, ids, settings.device)
        del model
        release()
    exact = peers[torch.float32]
    ours = load(
        settings.config,
        [Shape.decode(), Shape(positions, 1, positions, positions)],
        device=settings.device,
        dtype=settings.dtype,
        max_context=max(positions, PROMPT + GREEDY_TOKENS),
        seed=seed,
    )
    one_by_one = Session(ours.executor)
    one_by_one.prefill_buckets = []
    found = {"prefill": ours.session.forward_logits(ids), "decode": one_by_one.forward_logits(ids)}
    theirs = rms(peers[DTYPES[dtype]] - exact)
    errors: dict[str, float] = {
        "peer_error": theirs,
        **{f"{way}_error": rms(own - exact) for way, own in found.items()},
        "logit_rms": rms(exact),
        "margin": max(margin(own, exact, theirs) for own in found.values()),
        "other_choices": max(int((own.argmax(-1) != exact.argmax(-1)).sum()) for own in found.values()),
    }
    prompt = torch.randint(opened.config.vocabulary, (PROMPT,), generator=generator).tolist()
    with_graphs, without = greedy_ids(ours, prompt)
    return {**errors, **_verdict(errors, with_graphs == without), "ids": with_graphs}


def greedy_ids(model: api.Model, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
    """GREEDY_TOKENS ids after a prompt, replayed from graphs and launched one by one, on the same weights."""
    executor = model.executor
    kind = "cuda" if executor.device.type == "cuda" else "reference"
    tokens = executor.manifest.max_context
    # A memory of its own: addresses differ, what was left in the first cache is gone.
    plain = make_executor(
        executor.manifest,
        executor.memory.weights,
        executor=kind,
        device=str(executor.device),
        kernels=model.program.kernels,
        cache_tokens=tokens,
        graphs=False,
    )
    found = []
    for session in (model.session, Session(plain)):
        found.append(list(session.stream(prompt, GREEDY_TOKENS, ignore_eos=True)))
    return found[0], found[1]


def _verdict(errors: dict[str, float], same_ids: bool) -> dict[str, Any]:
    """Ratios, and whether both are within LIMIT, and the margin within MARGIN. In float32 the peer's error is nothing; then 1e-4 of the logits is the limit."""
    peer = errors["peer_error"] or errors["logit_rms"] * 1e-4 / LIMIT
    ratios = {"prefill_ratio": errors["prefill_error"] / peer, "decode_ratio": errors["decode_error"] / peer}
    return {**ratios, "same_ids": same_ids, "ok": same_ids and errors["margin"] <= MARGIN and all(r <= LIMIT for r in ratios.values())}

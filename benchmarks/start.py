# pyright: basic
"""A model is loaded and asked for one token: seconds of each part, memory that the process takes, and the time to the first token leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import torch

from benchmarks.hugging_face import transformers_model
from benchmarks.lamella_runner import cold_compilation, load
from benchmarks.results import Report
from benchmarks.settings import Settings
from benchmarks.timing import WARM_UP, release
from lamella.program import Shape
from lamella.runtime.generate import Session
from lamella.semantics import DTYPES
from lamella.tools.costs import pools

COLUMNS = ("name", "tokens", "ms", "ms_low", "ms_high", "ratio", "error")


def start(settings: Settings, *, tokens: Sequence[int], max_context: int, peers: Sequence[str]) -> Report:
    """Milliseconds from a prompt of so many token ids to the first new id on the host, of a model that is loaded and warm; of its peer
    `hf-generate` too. Before that, what loading took, of time (Triton's cache being empty) and of the device's memory (the driver's figure, which counts what other
    processes take meanwhile). Raises LamellaError.
    """
    longest = max(max_context, *(n + 1 for n in tokens))
    report = Report("start", settings.device, {"config": settings.name}, settings.output)
    on_gpu = settings.device.type == "cuda"
    release()
    before = _free(settings.device)
    with cold_compilation():
        model = load(
            settings.config,
            [Shape.decode(), *(Shape.prefill(n) for n in tokens)],
            device=settings.device,
            dtype=settings.dtype,
            max_context=longest,
        )
    manifest = model.executor.manifest
    report.note(**settings.facts(model.opened.config, manifest.dtype, max_context=longest))
    prompts = {n: torch.randint(manifest.model.vocabulary, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in tokens}
    for count, ids in prompts.items():
        _add(report, settings, "lamella", count, partial(_first, model.session, ids))
    predicted = pools(manifest, manifest.cache.blocks_per_sequence * manifest.cache.block)
    memory = {"pools": predicted, "predicted_bytes": sum(predicted.values())}
    if on_gpu:
        memory |= {
            "driver_bytes": before - _free(settings.device),
            "allocated_peak_bytes": torch.cuda.max_memory_allocated(settings.device),
        }
    report.note(load_seconds=dict(model.seconds), memory=memory)
    opened = model.opened
    del model
    release()
    if "hf-generate" in peers:
        peer = transformers_model(opened.config, opened.source, DTYPES[manifest.dtype], settings.device, weights=manifest.dtype)
        for count, ids in prompts.items():
            given = torch.tensor([ids], device=settings.device)
            mask = torch.ones_like(given)

            def first(given: torch.Tensor = given, mask: torch.Tensor = mask) -> int:
                made = peer.generate(given, attention_mask=mask, max_new_tokens=1, min_new_tokens=1, do_sample=False)
                return int(made[0, -1])

            _add(report, settings, "hf-generate", count, first)
        del peer
        release()
    for row in report.rows:
        ours = next(r for r in report.rows if r["name"] == "lamella" and r["tokens"] == row["tokens"])
        row["ratio"] = row["ms"] / ours["ms"]
    report.save()
    report.table(COLUMNS, f"first token: {settings.name}, {manifest.dtype}, {report.facts['device']}")
    return report


def _first(session: Session, ids: Sequence[int]) -> int:
    return next(iter(session.stream(ids, 1, ignore_eos=True)))


def _add(report: Report, settings: Settings, name: str, count: int, first: Callable[[], object]) -> None:
    """Times a call that ends with a number on the host."""
    times: list[float] = []
    for _ in range(WARM_UP + settings.repetitions):
        begin = perf_counter()
        first()
        times.append((perf_counter() - begin) * 1e3)
    counted = times[WARM_UP:]
    report.add(name=name, tokens=count, ms=median(counted), ms_low=min(counted), ms_high=max(counted), repetitions=settings.repetitions)


def _free(device: torch.device) -> int:
    """Bytes that nobody has; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.mem_get_info(device)[0]

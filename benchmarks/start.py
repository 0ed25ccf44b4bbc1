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
from lamella import api
from lamella.frontends import LoadedModel
from lamella.passes.device import device
from lamella.program import Shape
from lamella.runtime.executor import MemoryExecutor
from lamella.runtime.generate import Session
from lamella.semantics import DTYPES
from lamella.tools.costs import pools

COLUMNS = ("name", "tokens", "ms", "ms_low", "ms_high", "ratio", "error")


def start(settings: Settings, *, tokens: Sequence[int], max_context: int, peers: Sequence[str]) -> Report:
    """Milliseconds from a prompt of so many token ids to the first new id on the host, of a model that is loaded and warm; of its peer
    `hf-generate` too. Before that, what loading took, of time (Triton's cache being empty) and of the device's memory. Raises LamellaError.
    """
    longest = max(max_context, *(n + 1 for n in tokens))
    report = start_report(settings)
    shapes = [Shape.decode(), *(Shape.prefill(n) for n in tokens)]
    before = free(settings.device)
    with cold_compilation():
        model = load(settings.config, shapes, device=settings.device, dtype=settings.dtype, max_context=longest)
    start_rows(report, settings, model, tokens, before)
    opened = model.opened
    del model
    release()
    if "hf-generate" in peers:
        start_peer(report, settings, opened)
    report.save()
    report.table(COLUMNS, f"first token: {settings.name}, {report.facts['dtype']}, {report.facts['device']}")
    return report


def start_report(settings: Settings) -> Report:
    """An empty one."""
    return Report("start", settings.device, {"config": settings.name}, settings.output)


def start_rows(report: Report, settings: Settings, model: api.Model, tokens: Sequence[int], before: int) -> None:
    """Rows of Lamella, and the memory taken since `before` bytes were `free` (the driver's figure, which counts what other processes take
    meanwhile), beside what the report predicts, and weights and cache alone.
    """
    executor = model.executor
    assert isinstance(executor, MemoryExecutor)
    manifest = executor.manifest
    report.note(**settings.facts(model.opened.config, manifest.dtype, max_context=manifest.max_context))
    for count in tokens:
        _add(report, settings, "lamella", count, partial(_first, model.session, prompt(manifest.model.vocabulary, count)))
    cache_tokens = (executor.caches[0].shape[0] - 1) * manifest.cache.block
    on_gpu = settings.device.type == "cuda"
    predicted = pools(manifest, cache_tokens, *(graphs_and_library(manifest.target) if on_gpu else ()))
    memory = {
        "cache_tokens": cache_tokens,
        "pools": predicted,
        "predicted_bytes": sum(predicted.values()),
        "weights_and_cache_bytes": predicted["weights"] + predicted["cache"],
    }
    if on_gpu:
        memory |= {"allocated_peak_bytes": torch.cuda.max_memory_allocated(settings.device)}
        taken = before - free(settings.device)
        # What is beside weights and cache, and how much of them it is.
        beside = taken - memory["weights_and_cache_bytes"]
        memory |= {"driver_bytes": taken, "beside_bytes": beside, "beside_share": beside / memory["weights_and_cache_bytes"]}
    report.note(load_seconds=dict(model.seconds), memory=memory)
    _ratios(report)


def graphs_and_library(target: str) -> tuple[int, int]:
    """What the driver takes for graphs, and a library of matrix products for its workspaces."""
    found = device(target)
    return found.graph_bytes, found.library_bytes


def start_peer(report: Report, settings: Settings, opened: LoadedModel) -> None:
    """Rows of transformers' generate."""
    dtype = report.facts["dtype"]
    peer = transformers_model(opened.config, opened.source, DTYPES[dtype], settings.device, weights=dtype)
    for count in [row["tokens"] for row in report.rows if row["name"] == "lamella"]:
        given = torch.tensor([prompt(opened.config.vocabulary, count)], device=settings.device)
        mask = torch.ones_like(given)

        def first(given: torch.Tensor = given, mask: torch.Tensor = mask) -> int:
            made = peer.generate(given, attention_mask=mask, max_new_tokens=1, min_new_tokens=1, do_sample=False)
            return int(made[0, -1])

        _add(report, settings, "hf-generate", count, first)
    _ratios(report)


def prompt(vocabulary: int, count: int) -> list[int]:
    """Random ids, the same for the same count."""
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def _ratios(report: Report) -> None:
    ours = {row["tokens"]: row["ms"] for row in report.rows if row["name"] == "lamella"}
    for row in report.rows:
        row["ratio"] = row["ms"] / ours[row["tokens"]]


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


def free(where: torch.device) -> int:
    """Bytes that nobody has, once there is a CUDA context; 0 on a CPU. From here on torch counts its peak anew."""
    release()
    if where.type != "cuda":
        return 0
    torch.zeros(1, device=where)
    torch.cuda.synchronize(where)
    torch.cuda.reset_peak_memory_stats(where)
    return torch.cuda.mem_get_info(where)[0]

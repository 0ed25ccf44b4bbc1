# pyright: basic
"""How long a model takes to compile, from its configuration to binaries, cold and warm. No weights are needed, and no GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter

from benchmarks.lamella_runner import cold_compilation
from benchmarks.results import Report
from benchmarks.settings import Settings
from lamella import api
from lamella.frontends import open_model
from lamella.program import Shape, compile_model
from lamella.runtime.compile_kernels import compile_kernels, requests
from lamella.runtime.kernel_files import KernelFiles

COLUMNS = ("name", "seconds", "passes_seconds", "kernels_seconds", "kernels", "compiled")
CAPABILITY = 90
"""The GPU that kernels are compiled for where there is none."""


def compile_time(settings: Settings, *, tokens: Sequence[int], max_context: int, workers: int | None = None, empty: bool = False) -> Report:
    """A row `cold`, with Triton's cache on disk empty, and one `warm`, right after. `workers` processes compile kernels (None: as the
    runtime chooses). Graphs and weights come on top, for those `load` waits. `empty` says that the cache is empty, and may be filled;
    otherwise another one is made for the while. Raises LamellaError.
    """
    opened = open_model(settings.config, random_weights=0)
    dtype = api.element_name(settings.dtype, opened, on_gpu=True)
    longest = max(max_context, *tokens)
    report = Report("compile", settings.device, {"config": settings.name}, settings.output)
    cores = {"cores": os.cpu_count() or 1, **({"workers": workers} if workers else {})}
    report.note(**settings.facts(opened.config, dtype, max_context=longest), tokens=list(tokens), **cores)
    with nullcontext() if empty else cold_compilation():
        for name in ("cold", "warm"):
            start = perf_counter()
            program = compile_model(opened.config, [Shape.of(n) for n in tokens], dtype=dtype, max_context=longest)
            printed = perf_counter()
            assert program.manifest is not None
            files = KernelFiles(program.manifest, program.kernels)
            wanted = requests(program.manifest, files, capability=None if settings.device.type == "cuda" else CAPABILITY)
            compiled = compile_kernels(wanted, workers)
            end = perf_counter()
            report.add(
                name=name,
                seconds=end - start,
                passes_seconds=printed - start,
                kernels_seconds=end - printed,
                kernels=len(program.kernels),
                compiled=compiled,
            )
    report.table(COLUMNS, f"compile: {settings.name}, {dtype}, buckets of {', '.join(map(str, tokens))} tokens, {cores['cores']} cores")
    return report

# pyright: basic
"""A process of its own, without Triton's interpreter: compiles a package for a GPU that is not there; JSON says what was compiled and found."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from lamella.errors import KernelError
from lamella.runtime.compile_kernels import absent_device, compile_kernels, launch_options, requests
from lamella.runtime.kernel_files import KernelFiles
from lamella.runtime.manifest import load

TYPES = {"*fp32": torch.float32, "*bf16": torch.bfloat16, "*i32": torch.int32}


def main(folder: Path, cache: str, workers: int, copies: int) -> dict[str, Any]:
    """Compiles; then asks Triton itself for each kernel, as a launch with aligned tensors does."""
    knobs.cache.dir = cache
    manifest, progress = load(folder), list[tuple[int, int, str]]()
    wanted = [request for _ in range(copies) for request in requests(manifest, KernelFiles(manifest, folder), capability=90)]
    try:
        compiled = compile_kernels(wanted, workers, lambda done, total, name: progress.append((done, total, name)))
    except KernelError as error:
        return {"error": str(error)}
    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    cubins: dict[str, str] = {}
    with absent_device(90):
        for name, function in KernelFiles(manifest, folder).functions().items():
            tensors = [torch.empty(64, dtype=TYPES[kind]) for kind in function.__globals__["SIGNATURE"].values()]
            kernel = function.warmup(*tensors, grid=(1,), **launch_options(function, manifest.kernels[name], True))
            cubins[name] = hashlib.sha256(kernel.asm["cubin"]).hexdigest()
    return {"compiled": compiled, "progress": progress, "hits": hits, "cubins": cubins}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))

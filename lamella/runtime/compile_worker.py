# pyright: basic
"""A process that compiles kernels for another: requests come in as lines of JSON, a line for each goes out when Triton's disk cache has it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def source_of(request: dict[str, Any], function: Any) -> tuple[Any, Any, dict[str, Any]]:
    """What `triton.compile` is given for a request: source, target and options, equal to those of the launch it was recorded from.

    `request["data"]` is Triton's `specialization_data`, which turned tuples into lists; keys of the cache tell the two apart.
    """
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    data = json.loads(request["data"])
    constants = [tl.dtype(value) if isinstance(value, str) and tl.dtype.is_dtype(value) else value for value in data["constant_vals"]]
    source = ASTSource(
        function,
        data["signature"],
        dict(zip(map(tuple, data["constant_keys"]), constants, strict=True)),
        dict(zip(map(tuple, data["attrs_keys"]), data["attrs_vals"], strict=True)),
    )
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in data["options"].items()}
    return source, GPUTarget(*request["target"]), options


def compile_request(request: dict[str, Any]) -> None:
    """Compiles one kernel into the cache, and the C stub that launches it where Triton has one for each signature."""
    import triton
    from triton.backends.nvidia import driver

    from lamella.runtime.kernel_files import load_function

    source, target, options = source_of(request, load_function(Path(request["file"]), request["name"]))
    compiled = triton.compile(source, target=target, options=options)
    if hasattr(driver, "make_launcher"):
        # Only saves time: where it fails, as it does without a driver, the launch itself says why.
        with suppress(Exception):
            driver.CudaLauncher(source, compiled.metadata)


def main() -> None:
    """The first line says where to import from and where the cache is; each further one is a request."""
    # Whatever prints, the answers have the pipe to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    from triton import knobs

    knobs.cache.dir = settings["cache"]
    knobs.compilation.always_compile = settings["always"]
    for line in sys.stdin:
        answer: dict[str, str] = {}
        try:
            compile_request(json.loads(line))
        except Exception as error:  # Triton raises many classes; the parent reports the kernel by name
            answer["error"] = " ".join(f"{type(error).__name__}: {error}".split())[-400:]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

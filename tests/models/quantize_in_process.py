"""Quantizes a folder and prints, as JSON, how far the memory of its own that the process holds rose above what it held before: bytes.

Pages of mapped files are left out: they belong to the system, which drops them when it wants to.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

from lamella.frontends import open_model
from lamella.tools.quantize_checkpoint import Settings, quantize_checkpoint


def own_memory() -> int:
    """Bytes of anonymous memory in RAM."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) << 10


def main(small: str, large: str, folder: str) -> None:
    torch.set_num_threads(1)
    for name in ("a", "b"):
        (Path(folder) / name).mkdir(parents=True)
    # What the libraries allocate once is no part of the question.
    quantize_checkpoint(open_model(small), Path(folder) / "a", Settings(), range(1, 33))
    before, highest, done = own_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    quantize_checkpoint(open_model(large), Path(folder) / "b", Settings(), range(1, 33))
    done.set()
    watcher.join()
    print(json.dumps(highest - before))


if __name__ == "__main__":
    main(*sys.argv[1:])

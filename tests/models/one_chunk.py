"""A tiny model on a GPU and a prompt in one chunk: options of loading enter, the logits after the prompt leave, the same from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import lamella
from lamella.api import Model
from lamella.program import Shape

CONFIG = Path(__file__).resolve().parents[2] / "benchmarks/models/tiny.json"
PROMPT = 601


def prefilled(dtype: str, **options: Any) -> tuple[torch.Tensor, Model]:
    """The logits after the prompt, float32 on the CPU, and the model; `options` are those of `lamella.load`."""
    model = lamella.load(
        CONFIG,
        random_weights=0,
        device="cuda",
        dtype=dtype,
        max_context=PROMPT + 40,
        buckets=[Shape.decode(), Shape.prefill(PROMPT)],
        **options,
    )
    session = model.session
    blocks = session.allocator.allocate(-(-PROMPT // 16))
    ids = torch.randint(0, model.opened.config.vocabulary, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()
    bucket = next(b for b in session.manifest.buckets if b.tokens == PROMPT)
    found = [
        session.step(ids, range(PROMPT), [0, PROMPT], [PROMPT], [blocks], [PROMPT - 1], bucket=bucket).logits.float().cpu()
        for _ in range(3)
    ]
    session.allocator.free(blocks)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2]), "a step differs from run to run"
    return found[0], model

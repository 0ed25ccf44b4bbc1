# pyright: basic
"""A model's name or path enters; the path of its config.json, with another number of layers if wanted, leaves."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lamella.errors import ModelNotFoundError, nearest

MODELS = Path(__file__).parent / "models"


def known_models() -> list[str]:
    """Names of the shapes that come with the benchmarks."""
    return sorted(p.stem for p in MODELS.glob("*.json"))


@contextmanager
def configuration(name: str, layers: int | None = None) -> Generator[Path]:
    """The config.json of a known model, or the one at a path; `layers` replaces its number of layers. Raises ModelNotFoundError."""
    path = MODELS / f"{name}.json"
    if not path.is_file():
        path = Path(name)
        if path.suffix != ".json" or not path.is_file():
            raise ModelNotFoundError(f"no such configuration: {name}", remedy=f"a path to config.json, or {nearest(name, known_models())}")
    if layers is None:
        yield path
        return
    with TemporaryDirectory(prefix="lamella-benchmarks-") as folder:
        changed = Path(folder) / path.name
        changed.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": layers}))
        yield changed

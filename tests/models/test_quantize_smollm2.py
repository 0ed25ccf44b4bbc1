"""How much of SmolLM2-135M is lost in few bits: perplexity on a text of these tests, of packed folders beside that of the floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import lamella
from lamella.frontends import open_model
from lamella.program import Shape
from lamella.runtime.perplexity import perplexity
from lamella.tools.quantize_checkpoint import Report, Settings, quantize_checkpoint

pytestmark = pytest.mark.slow

TEXT = Path(__file__).parent / "texts" / "harbor.txt"
CALIBRATION = Path(lamella.__file__).parent / "tools" / "calibration.txt"
WINDOW = 512
LIMITS = {"int8": 0.005, "int4": 0.06}
"""Largest growth of perplexity; int4 in groups of 64. Each kind takes a minute: fp8 is compared on small models only."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of small ops wait longer for threads that other processes keep busy than they take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def perplexity_of(model: Path) -> float:
    buckets = [Shape.decode(), Shape(256, 1, 256, 256)]
    loaded = lamella.load(model, device="cpu", dtype="float32", max_context=WINDOW, buckets=buckets)
    return perplexity(loaded.session, loaded.opened.require_tokenizer().encode(TEXT.read_text(encoding="utf-8")), WINDOW).value


@pytest.fixture(scope="module")
def floats(smollm2: Path) -> float:
    """What the dequantized file gives."""
    return perplexity_of(smollm2)


@dataclass(frozen=True)
class Packed:
    """The model in few bits: its folder and what the command reports."""

    kind: str
    folder: Path
    report: Report


@pytest.fixture(scope="module", params=LIMITS)
def packed(request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    opened, folder = open_model(smollm2), tmp_path_factory.mktemp(request.param)
    ids = opened.require_tokenizer().encode(CALIBRATION.read_text(encoding="utf-8"))
    return Packed(request.param, folder, quantize_checkpoint(opened, folder, Settings(kind=request.param), ids))


def test_perplexity_grows_little(packed: Packed, floats: float) -> None:
    assert floats == pytest.approx(24.99, abs=0.01)
    grown = perplexity_of(packed.folder) / floats - 1
    assert grown < LIMITS[packed.kind], f"{packed.kind}: {grown:.2%}"


def test_every_linear_is_reported(packed: Packed) -> None:
    errors = [each.error for each in packed.report.linears]
    most = 0.2 if packed.kind == "int4" else 0.05
    assert len(errors) == 211
    assert all(error is not None and 0 < error < most for error in errors)


def test_the_folder_speaks_as_the_file_does(packed: Packed) -> None:
    """Tokenizer, chat template and end token came along."""
    model = lamella.load(packed.folder, device="cpu", dtype="float32", max_context=WINDOW, buckets=[1, 128])
    made = model.generate("What is the capital of France?", 32, chat=True)
    assert made.output_ids == (504, 3575, 282, 4649, 314, 7042, 30)
    assert made.stop_reason == "eos"

"""No kernel of a model keeps a product in flight over a load that something else reads; one that would is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lamella
from lamella.errors import PassError
from lamella.passes import fusion_cost, schedules, tuning
from lamella.program import Shape

MODELS = Path(__file__).resolve().parents[2] / "benchmarks" / "models"


def compiled(folder: Path, shapes: list[Shape], quantize: str = "none") -> lamella.Program:
    """Two layers of Llama-3.1-8B."""
    config = json.loads((MODELS / "llama-3.1-8b.json").read_text()) | {"num_hidden_layers": 2, "vocab_size": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    return lamella.compile(
        folder / "config.json", random_weights=0, dtype="bfloat16", buckets=shapes, max_context=1024, quantize=quantize, arch="sm_90"
    )


def norm_is_apart(program: lamella.Program) -> bool:
    """Whether the norm before gate and up is a launch."""
    assert program.manifest is not None
    return "layers.0.ffn_norm" in [launch.loc for launch in program.manifest.buckets[0].launches]


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_kernels_of_a_large_layer(quantize: str, tmp_path: Path) -> None:
    """Compiling checks them."""
    compiled(tmp_path, [Shape.decode(20), Shape.decode(64), Shape.prefill(512)], quantize)


def test_a_norm_beside_a_product_of_a_warp_group_is_a_launch_of_its_own(tmp_path: Path) -> None:
    assert norm_is_apart(compiled(tmp_path, [Shape.decode(32)]))
    assert not norm_is_apart(compiled(tmp_path, [Shape.decode(8)]))


def test_what_was_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four warps and the norm inside, results differed from run to run."""
    monkeypatch.setattr(fusion_cost, "UNGROUPED", 0.0)
    assert not norm_is_apart(compiled(tmp_path, [Shape.decode(32)]))
    for module in (schedules, tuning):
        monkeypatch.setattr(module, "MOST_BESIDE", 8)
    with pytest.raises(
        PassError, match=r"kernel.func @t32s32_mma_\d: kernel.load .*is read by a product of a warp group and by kernel.cast"
    ):
        compiled(tmp_path, [Shape.decode(32)])

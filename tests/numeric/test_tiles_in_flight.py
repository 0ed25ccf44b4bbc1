"""What Triton makes of printed loops: no tile is asked for into a buffer that a product still under way reads. This Triton's, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lamella
from lamella.program import Shape
from tests.numeric.tiles_in_flight import early

ROOT = Path(__file__).resolve().parents[2]


def kernels_in_flight(folder: Path, kernels: Mapping[str, str]) -> dict[str, Any]:
    """`tests.numeric.tiles_in_flight` of printed kernels."""
    paths = [folder / f"{name}.py" for name in kernels]
    for path, text in zip(paths, kernels.values(), strict=True):
        path.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.numeric.tiles_in_flight", *map(str, paths)]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize(("shape", "quantize"), [(Shape.decode(32), "none"), (Shape.decode(32), "int4"), (Shape.prefill(512), "none")])
def test_no_tile_is_written_under_a_product(shape: Shape, quantize: str, tmp_path: Path) -> None:
    """Of two layers as large as those of Llama-3.1-8B."""
    config = json.loads((ROOT / "benchmarks" / "models" / "llama-3.1-8b.json").read_text()) | {"num_hidden_layers": 2, "vocab_size": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = lamella.compile(
        tmp_path / "config.json", random_weights=0, dtype="bfloat16", buckets=[shape], max_context=1024, quantize=quantize, arch="sm_90"
    )
    found = kernels_in_flight(tmp_path, {name: text for name, text in program.kernels.items() if "mma" in name or "attend" in name})
    assert sum(kernel["groups"] for kernel in found.values()) >= 4, "products of warp groups, which are asynchronous"
    assert {name: kernel["early"] for name, kernel in found.items() if kernel["early"]} == {}


def test_a_buffer_too_few_is_seen() -> None:
    """As Triton made of squares beside products: of x two tiles, of the weight three."""
    text = """
    %x_16 = ttg.local_alloc : () -> !ttg.memdesc<2x32x64xbf16, #shared, #smem, mutable>
    %w_17 = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xbf16, #shared, #smem, mutable>
      %x_76 = ttg.memdesc_index %x_16[%i] : !ttg.memdesc<2x32x64xbf16> -> !ttg.memdesc<32x64xbf16>
      %turned = ttg.memdesc_trans %x_76 {order = array<i32: 1, 0>} : !ttg.memdesc<32x64xbf16> -> !ttg.memdesc<64x32xbf16>
      %w_78 = ttg.memdesc_index %w_17[%j] : !ttg.memdesc<3x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %acc = ttng.warp_group_dot %w_78, %turned, %arg {isAsync = true} : !ttg.memdesc<64x64xbf16> * !ttg.memdesc<64x32xbf16> -> tensor<64x32xf32>
      %done:3 = ttng.warp_group_dot_wait %acc, %w_78, %turned {pendings = PENDING : i32} : tensor<64x32xf32>, !ttg.memdesc<64x64xbf16>
    """
    assert early(text.replace("PENDING", "1"), 3) == ["%x_16"]
    assert early(text.replace("PENDING", "0"), 3) == [] and early(text.replace("PENDING", "1"), 2) == []

"""The memory that a report predicts, against what a process that loads the model takes of the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE_TOKENS = 2048
MEASURE = """
import json, sys
import torch
from lamella import api
from lamella.passes.device import device
from lamella.tools.costs import pools
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
before = torch.cuda.mem_get_info()[0]
model = api.load(sys.argv[1], device="cuda", random_weights=0, max_context=2048, cache_tokens=int(sys.argv[2]), buckets=(1, 16, 512))
model.generate(list(range(1, 600)), max_new_tokens=8, ignore_eos=True)
torch.cuda.synchronize()
taken = before - torch.cuda.mem_get_info()[0]
manifest = model.program.manifest
found = {"taken": taken, "reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}
target = device("sm_90")
print(json.dumps(found | {"pools": pools(manifest, int(sys.argv[2]), target.graph_bytes, target.library_bytes)}))
"""


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("config", ["llama-3.2-1b.json"])
def test_predicted_memory_is_what_the_driver_says(config: str) -> None:
    # It is the driver's figure of free memory, so nobody else may take any meanwhile: `make gpu` runs this after all others.
    # A process of its own: what counts is added to a CUDA context in which torch has run one op. Kernels, graphs and the allocator's slack
    # count; on an H200 the prediction was 0.3 % short, and 5 % short while each weight was allocated by itself.
    command = [sys.executable, "-c", MEASURE, str(ROOT / "benchmarks" / "models" / config), str(CACHE_TOKENS)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    predicted = sum(found["pools"].values())
    assert abs(found["taken"] / predicted - 1) <= 0.03, found

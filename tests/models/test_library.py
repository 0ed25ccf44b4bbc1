"""cuBLAS inside captured graphs: as exact as kernels of ours, the same with graphs and without, and no call in a decode step."""

import pytest
import torch

from lamella.api import Model
from tests.models import one_chunk
from tests.models.one_chunk import PROMPT


def prefilled(library: str, dtype: str, graphs: bool = True) -> tuple[torch.Tensor, Model]:
    """The logits after a prompt, and the model, with the library or without."""
    return one_chunk.prefilled(dtype, graphs=graphs, library=library)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_library_is_as_exact_as_kernels_of_ours(dtype: str) -> None:
    exact, _ = prefilled("off", "float32")
    ours, plain = prefilled("off", dtype)
    theirs, model = prefilled("on", dtype)
    assert model.executor.manifest.uses_library and not plain.executor.manifest.uses_library
    assert (theirs - exact).abs().max() <= 1.5 * (ours - exact).abs().max()
    decode = next(b for b in model.executor.manifest.buckets if b.advance)
    assert not any(model.executor.manifest.kernels[launch.kernel].library for launch in decode.launches)


@pytest.mark.gpu
def test_graphs_and_single_launches_agree_and_torch_is_left_as_it_was() -> None:
    flags = torch.backends.cuda.matmul
    before = flags.allow_bf16_reduced_precision_reduction
    (captured, model), (single, _) = (prefilled("on", "bfloat16", graphs) for graphs in (True, False))
    assert torch.equal(captured, single)
    assert flags.allow_bf16_reduced_precision_reduction == before
    assert model.executor.graph_bytes > 0
    prompt = [3 + i % 200 for i in range(PROMPT - 3)]
    ids = model.generate(prompt, max_new_tokens=20, ignore_eos=True).output_ids
    assert len(ids) == 20 and ids == model.generate(prompt, max_new_tokens=20, ignore_eos=True).output_ids

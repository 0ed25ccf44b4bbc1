"""Tiles through tensor descriptors on a GPU: as exact as through pointers, the same with graphs and without, in float16 and bfloat16."""

import pytest
import torch

from lamella.api import Model
from tests.models import one_chunk
from tests.models.one_chunk import PROMPT


def prefilled(descriptors: str, dtype: str, graphs: bool = True) -> tuple[torch.Tensor, Model]:
    """The logits after a prompt, and the model, with descriptors or without."""
    return one_chunk.prefilled(dtype, graphs=graphs, library="off", pass_options={"choose-implementation": {"descriptors": descriptors}})


def described(model: Model) -> int:
    """Kernels that read something through a descriptor."""
    return sum(bool(kernel.descriptors) for kernel in model.executor.manifest.kernels.values())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_descriptors_are_as_exact_as_pointers(dtype: str) -> None:
    exact, plain = prefilled("on", "float32")
    pointers, _ = prefilled("off", dtype)
    found, model = prefilled("on", dtype)
    assert described(model) >= 3 and not described(plain)
    assert (found - exact).abs().max() <= 1.5 * (pointers - exact).abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_graphs_and_single_launches_agree(dtype: str) -> None:
    (captured, model), (single, _) = (prefilled("on", dtype, graphs) for graphs in (True, False))
    assert described(model) and torch.equal(captured, single)
    prompt = [3 + i % 200 for i in range(PROMPT - 3)]
    assert len(model.generate(prompt, max_new_tokens=8, ignore_eos=True).output_ids) == 8


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "warps", "stages"), [(128, 256, 8, 3), (128, 128, 8, 3), (128, 64, 4, 4), (64, 128, 4, 4)])
def test_a_product_of_odd_sizes(m: int, n: int, warps: int, stages: int) -> None:
    """Tokens, columns and K that no tile divides, with zeros and no garbage past their ends: against float64."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from lamella.dialects.attributes import element_type_of
    from lamella.runtime.kernel_files import KernelFiles
    from tests.numeric.harness import Graph, compile_function

    tokens, columns, k = 513, 1000, 712
    graph = Graph(x=f"{tokens}x{k}xbf16", w=f"{columns}x{k}xbf16")
    value = graph.cast(graph.contract(graph["x"], graph["w"]), element_type_of(graph["x"]))
    schedule = {"m": m, "n": n, "warps": warps, "stages": stages}
    options = {"choose-implementation": {"descriptors": "on", "library": "off"}}
    made = compile_function(graph.returns(value), schedules={"mma": schedule}, pass_options=options)
    ((name, kernel),) = made.manifest.kernels.items()
    (launch,) = made.manifest.buckets[0].launches
    function = KernelFiles(made.manifest, made.sources).functions()[name]
    given = {name: tensor.cuda() for name, tensor in graph.inputs().items()}
    out = torch.full((tokens, columns), torch.nan, dtype=torch.bfloat16, device="cuda")
    blocks = {d.argument: list(d.block) for d in kernel.descriptors}
    operands = [TensorDescriptor.from_tensor(given[ref.name], blocks[i]) for i, ref in enumerate(launch.args[:2])]
    function[launch.grid](*operands, out, num_warps=kernel.num_warps, num_stages=kernel.num_stages)
    expected = given["x"].double() @ given["w"].double().T
    assert ((out.double() - expected).abs() <= 8e-3 * expected.abs() + 1e-2).all()

"""Calls of the library: what they compute equals what the ops mean, on sizes that nothing divides, and only what may call it does."""

from dataclasses import replace

import pytest
import torch

from lamella.dialects.attributes import element_type_of
from lamella.errors import IRError, ManifestError
from lamella.program import Program
from lamella.runtime.library import exact_sums, library_matmul
from lamella.runtime.manifest import Kernel, Manifest
from tests.models.tiny_llama import BASE, BIASED, CONTEXT
from tests.numeric.harness import NARROW, Compiled, Graph, agree, compile_function, numbers
from tests.numeric.tiny_prefill import SHORT, Options, Prompt

PROMPT = Prompt(39, 40)
ON: Options = {"choose-implementation": {"library": "on", "library-tokens": 33}}
"""The library wherever it can, from 33 tokens on."""


def compiled(graph: Graph, *values: object, **options: int | str) -> Compiled:
    """A function whose linears the library computes, if `options` let it."""
    return compile_function(graph.returns(*values), pass_options={"choose-implementation": {**ON["choose-implementation"], **options}})  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "columns", "k"), [(513, 51, 77), (33, 8, 16), (65, 1, 3), (130, 100, 1)])
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_a_product(tokens: int, columns: int, k: int, element: str) -> None:
    graph = Graph(x=f"{tokens}x{k}x{element}", w=f"{columns}x{k}x{element}")
    made = compiled(graph, graph.cast(graph.contract(graph["x"], graph["w"]), element_type_of(graph["x"])))
    assert made.skeletons == ["library"] and not made.sources
    agree(made, graph.inputs(), NARROW[element])


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_a_bias_and_a_residual_are_added_before_the_sums_are_rounded(element: str) -> None:
    """The residual lies in the arena and dies, so that the result takes its place; the bias is stored as it is."""
    graph = Graph(x=f"513x77x{element}", w=f"51x77x{element}", b=f"51x{element}", v=f"51x51x{element}")
    narrow = element_type_of(graph["x"])
    biased = graph.map("add", graph.contract(graph["x"], graph["w"]), graph.float32(graph["b"]))
    y = graph.cast(biased, narrow)
    product = graph.float32(graph.cast(graph.contract(y, graph["v"]), narrow))
    z = graph.cast(graph.map("add", graph.float32(y), product), narrow)
    twice = graph.float32(graph.cast(graph.contract(z, graph["v"]), narrow))
    made = compiled(graph, graph.cast(graph.map("add", twice, graph.float32(z)), narrow))
    assert made.skeletons == ["library"] * 3
    assert [sorted(kernel.library) for kernel in made.manifest.kernels.values()] == [["bias", "weight", "x"], ["residual", "weight", "x"]]
    agree(made, graph.inputs(), 2 * NARROW[element])


def test_a_residual_that_dies_gives_way() -> None:
    graph = Graph(x="40x24xbf16", r="40x8xbf16", w="8x24xbf16")
    narrow = element_type_of(graph["x"])
    r = graph.cast(graph.map("silu", graph.float32(graph["r"])), narrow)
    product = graph.float32(graph.cast(graph.contract(graph["x"], graph["w"]), narrow))
    made = compiled(graph, graph.cast(graph.map("add", graph.float32(r), product), narrow))
    assert made.skeletons == ["row", "library"]
    (launch,) = [x for x in made.manifest.buckets[0].launches if made.manifest.kernels[x.kernel].library]
    places = made.manifest.kernels[launch.kernel].library
    assert launch.args[places["residual"]] == launch.args[-1] != launch.args[places["x"]]
    agree(made, graph.inputs(), 2 * NARROW["bf16"])


def test_a_norm_is_stored_for_the_library_and_what_follows_is_a_launch_of_its_own() -> None:
    graph = Graph(x="70x48xbf16", wg="100x48xbf16", wu="100x48xbf16", wd="48x100xbf16")
    narrow = element_type_of(graph["x"])
    x = graph.float32(graph["x"])
    normed = graph.cast(graph.norm(x), narrow)
    gate, up = (graph.cast(graph.contract(normed, graph[w]), narrow) for w in ("wg", "wu"))
    active = graph.map("mul", graph.map("silu", graph.float32(gate)), graph.float32(up))
    down = graph.float32(graph.cast(graph.contract(graph.cast(active, narrow), graph["wd"]), narrow))
    made = compiled(graph, graph.cast(graph.map("add", x, down), narrow))
    assert made.skeletons == ["row", "library", "library", "row", "library"]
    agree(made, graph.inputs(), 2 * NARROW["bf16"])
    ordered = [launch.ordered for launch in made.manifest.buckets[0].launches]
    assert ordered == [False, True, True, True, True]


def test_what_the_library_does_not_take_is_ours() -> None:
    graph = Graph(x="40x16xbf16", y="40x16xf32", w="8x16xbf16", v="8x16xf32", few="32x16xbf16")
    narrow = element_type_of(graph["x"])
    stays_wide = graph.contract(graph["x"], graph["w"])
    exact = graph.contract(graph["y"], graph["v"])
    few = graph.cast(graph.contract(graph["few"], graph["w"]), narrow)
    made = compiled(graph, stays_wide, exact, few)
    assert "library" not in made.skeletons
    assert not made.manifest.uses_library


@pytest.fixture(scope="module")
def called() -> Program:
    """The prompt by calls of the library."""
    return PROMPT.program(ON)


@pytest.mark.parametrize("config", [SHORT, replace(BIASED, layers=2)], ids=["base", "biased"])
def test_a_model_is_as_exact_as_without(config: object) -> None:
    """Reference and interpreted executor agree, and stay as close to float32 as kernels of ours are, by the rule of 1.5."""
    exact = PROMPT.exact(config)
    ours, theirs = PROMPT.program({}, config), PROMPT.program(ON, config)
    assert ours.manifest is not None and theirs.manifest is not None
    assert not ours.manifest.uses_library
    decode, prefill = theirs.manifest.buckets
    calls = [launch for launch in prefill.launches if theirs.manifest.kernels[launch.kernel].library]
    assert len(calls) == 7 * 2 and not any(theirs.manifest.kernels[launch.kernel].library for launch in decode.launches)
    error = (PROMPT.logits(ours, "reference", config) - exact).abs().max()
    found = {level: PROMPT.logits(theirs, level, config) for level in ("reference", "interpret")}
    for each in found.values():
        assert (each - exact).abs().max() <= 1.5 * error
    assert (found["reference"] - found["interpret"]).abs().max() <= error
    assert Manifest.from_json(theirs.manifest.to_json()) == theirs.manifest


def test_auto_takes_nothing_that_the_cost_model_finds_slower_and_says_so() -> None:
    made = PROMPT.program({"choose-implementation": {"library-tokens": 33}})
    assert made.manifest is not None and not made.manifest.uses_library
    notes = [r["reason"] for r in made.ledger if r["verdict"] == "idle" and r["kind"] == "choose-implementation"]
    assert len(notes) == 1 and "slower:" in notes[0] and "us of tiles" in notes[0]


def test_the_ledger_says_which_linears_and_why(called: Program) -> None:
    chosen = {str(r["loc"]): r["reason"] for r in called.ledger if r["verdict"] == "chosen" and "by the library" in str(r["reason"])}
    assert {"layers.0.attn.q", "layers.1.ffn.up", "layers.1.ffn"} <= chosen.keys()
    assert all("asked for" in reason and "us of tiles" in reason for reason in chosen.values())


def test_a_decode_step_that_calls_the_library_is_refused(called: Program) -> None:
    assert called.manifest is not None
    data = called.manifest.to_json()
    decode, prefill = data["buckets"]
    call = next(launch for launch in prefill["launches"] if data["kernels"][launch["kernel"]]["library"])
    decode["launches"].append({**call, "dead": []})
    with pytest.raises(ManifestError, match="a decode step calls no library"):
        Manifest.from_json(data)


@pytest.mark.parametrize(
    "library",
    [{"x": 0}, {"x": 0, "weight": 9}, {"x": 0, "weight": 1, "scale": 1}, {"x": 0, "weight": 1, "residual": 0, "bias": 0}],
    ids=["incomplete", "no such input", "unknown operand", "two addends"],
)
def test_a_manifest_with_a_call_that_is_none_is_refused(library: dict[str, int], called: Program) -> None:
    assert called.manifest is not None
    data = called.manifest.to_json()
    name = next(name for name, kernel in data["kernels"].items() if kernel["library"])
    data["kernels"][name]["library"] = library
    with pytest.raises(ManifestError, match="no call of a library"):
        Manifest.from_json(data)


def test_more_tokens_than_the_plan_allows_are_needed() -> None:
    """`check-plan` holds a function to the threshold it records."""
    from lamella import pipeline
    from lamella.dialects import signature
    from lamella.dialects.attributes import attribute_of
    from lamella.frontends.decoder import build
    from lamella.passes.check_plan import check_library

    options = pipeline.Options(tokens=40, longest_query=40, blocks=CONTEXT // 16, length=CONTEXT)
    module = pipeline.run(build(BASE, dtype="bf16", block=16), options, until="plan", pass_options=ON)
    (function,) = signature.steps(module)
    check_library(function)
    function.attributes["lamella.library"] = attribute_of({"tokens": 41})
    with pytest.raises(IRError, match="a call of a library for 40 rows, expected at least 41"):
        check_library(function)
    del function.attributes["lamella.library"]
    with pytest.raises(IRError, match="expected no call"):
        check_library(function)


def test_the_switches_of_torch_are_as_they_were() -> None:
    flags = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
    before = [getattr(flags, name) for name in names]
    with pytest.raises(KeyError, match="inside"), exact_sums():
        assert not any(getattr(flags, name) for name in names)
        raise KeyError("inside")
    assert [getattr(flags, name) for name in names] == before


def test_a_residual_elsewhere_is_left_alone() -> None:
    kernel = Kernel("", 3, {"args": 3, "ops": [], "yields": [2]}, library={"x": 1, "weight": 2, "residual": 0})
    residual, x, weight = (numbers(shape, i, torch.bfloat16) for i, shape in enumerate(((5, 3), (5, 7), (3, 7))))
    kept, out = residual.clone(), torch.full((5, 3), torch.nan, dtype=torch.bfloat16)
    library_matmul(kernel, [residual, x, weight, out])()
    assert torch.equal(residual, kept)
    assert torch.equal(out, (residual.float() + x.float() @ weight.float().T).bfloat16())

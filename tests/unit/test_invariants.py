"""The invariants of docs/architecture.md, each with a test that breaks when the invariant is broken."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import FunctionType, MemRefType, ModuleOp, TensorType
from xdsl.ir import Attribute

import lamella
from lamella import pipeline, registry
from lamella.dialects import signature
from lamella.dialects.attributes import attributes_of, element_of
from lamella.dialects.tile import CastOp, ContractOp
from lamella.frontends import open_model
from lamella.frontends.decoder import build
from lamella.lowering.body import export_function, handle_name, handles_of
from lamella.lowering.tile_to_kernel.scalars import SCALAR_RULES
from lamella.pipeline import Options
from lamella.program import BLOCK, Program, Shape, compile_model
from lamella.runtime.evaluate import evaluate
from lamella.runtime.executor import make_executor
from lamella.runtime.generate import Session
from lamella.runtime.manifest import Launch, Manifest
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.runtime.weights import load_weights
from lamella.semantics import IMPLEMENTATIONS
from tests.models.tiny_llama import BASE, CONTEXT, SMALL, WIDE, Tensors, Tiny, text
from tests.numeric.harness import Compiled, Graph, agree, compile_function
from tests.unit.broken_plans import corruptions, moved

SOURCES = Path(lamella.__file__).parent


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny.of(replace(SMALL, layers=2), [Shape.decode(), Shape(16, 1, 16, 16)])


def manifest_of(program: Program) -> Manifest:
    assert program.manifest is not None
    return program.manifest


# 1. In place only at the same grid index


def residual(normed: bool) -> Compiled:
    """x made by one launch; x + (b @ w1ᵀ), or x + (silu(norm(x)) @ w1ᵀ), by the next, where x dies."""
    g = Graph(a="1x300xf32", b="1x300xf32", w0="300x300xf32", w1="300x300xf32")
    x = g.contract(g["a"], g["w0"])
    # After the silu the norm is no row scale that could move behind the product.
    y = g.map("silu", g.norm(x)) if normed else g["b"]
    compiled = compile_function(g.returns(g.map("add", x, g.contract(y, g["w1"]))), schedules={"gemv": {"rows": 4}})
    assert compiled.skeletons == ["gemv", "gemv"]
    return compiled


def test_1_a_residual_is_added_in_place() -> None:
    compiled = residual(normed=False)
    first, second = compiled.manifest.buckets[0].launches
    assert first.args[-1] == second.args[-1]
    assert first.args[-1] in second.args[:-1]
    agree(compiled, INPUTS)


def test_1_what_a_norm_reads_is_not_overwritten() -> None:
    """Every program reads all of x for the norm; the one that wrote its part of the sum first would change what the others see."""
    compiled = residual(normed=True)
    first, second = compiled.manifest.buckets[0].launches
    x, out = first.args[-1], second.args[-1]
    assert x in second.args[:-1]
    assert out.offset >= x.offset + x.bytes or x.offset >= out.offset + out.bytes
    agree(compiled, INPUTS)


def test_1_the_interpreter_sees_the_race_that_the_rule_prevents() -> None:
    compiled = residual(normed=True)
    x, out = (launch.args[-1] for launch in compiled.manifest.buckets[0].launches)
    racing = replace(compiled, manifest=moved(compiled.manifest, out, x.offset))
    (expected,) = compiled.expected(INPUTS)
    (found,) = racing.run(INPUTS)
    assert not torch.allclose(found, expected, atol=1e-3)


INPUTS = Graph(a="1x300xf32", b="1x300xf32", w0="300x300xf32", w1="300x300xf32").inputs()


# 2. The reference executor runs the plan and nothing else


def three_steps(tiny: Tiny, manifest: Manifest) -> torch.Tensor:
    """Logits and drawn tokens of three decode steps of the reference executor; NaN where a place in the cache was out of reach."""
    weights = load_weights(manifest, Tensors(tiny.weights))
    session = Session(make_executor(manifest, weights, executor="reference", cache_tokens=64))
    found: list[torch.Tensor] = []
    for position, token in enumerate(text(3, 1, SMALL.vocabulary)):
        sampling = [SamplingParameters(temperature=2.0, seed=5)]
        try:
            result = session.step([token], [position], [0, 1], [position + 1], [[2]], [0], sampling, bucket=session.decode_bucket)
        except IndexError:
            return torch.tensor(torch.nan)
        found += [result.logits[0], result.next.float()]
    return torch.cat(found)


@pytest.mark.parametrize("kind", ["overlapping", "freed early", "unwritten"])
def test_2_a_bad_plan_is_seen_on_a_cpu(tiny: Tiny, kind: str) -> None:
    """Each way to break the plan, at every buffer of a decode step, changes what three steps compute."""
    manifest = manifest_of(tiny.program)
    expected = three_steps(tiny, manifest)
    assert expected.isfinite().all()
    broken = corruptions(manifest)[kind]()
    assert len(broken) > 3
    for number, plan in enumerate(broken):
        assert not torch.equal(three_steps(tiny, plan), expected), f"{kind} {number}"


# 3. Shipped text is tested text


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Kernels of models with odd sizes: decode, prefill and a ragged step; float32."""
    found: dict[str, str] = {}
    for config in (replace(BASE, layers=2), WIDE):
        ragged = Shape(tokens=48, sequences=5, longest_query=37, logit_rows=5)
        program = compile_model(config, [Shape.decode(), Shape(70, 1, 70, 1), ragged], dtype="f32", max_context=CONTEXT)
        found.update({f"{config.hidden}/{name}": source for name, source in program.kernels.items()})
    return found


def test_3_the_interpreter_runs_the_files_of_the_package(tiny: Tiny, tmp_path: Path) -> None:
    """Saved and loaded from its folder, the program gives the same; a change of one line of one file shows in the result."""
    tiny.program.save(tmp_path)
    manifest = manifest_of(tiny.program)
    assert {p.stem: p.read_text() for p in (tmp_path / "kernels").glob("*.py")} == dict(tiny.program.kernels)
    weights = load_weights(manifest, Tensors(tiny.weights))

    def logits() -> torch.Tensor:
        session = Session(make_executor(manifest, weights, executor="interpret", kernels=tmp_path, cache_tokens=64))
        return session.step([4], [0], [0, 1], [1], [[2]], [0], bucket=session.decode_bucket).logits

    expected = logits()
    torch.testing.assert_close(expected[0], tiny.logits([4])[0], rtol=0, atol=1e-4)
    last = [launch.kernel for launch in manifest.buckets[0].launches if "tl.rsqrt(" in tiny.program.kernels[launch.kernel]][-1]
    file = tmp_path / manifest.kernels[last].file
    file.write_text(file.read_text().replace("tl.rsqrt(", "2.0 * tl.rsqrt("))
    assert not torch.allclose(logits(), expected, atol=1e-2)


def test_3_float32_products_are_exact(texts: Mapping[str, str]) -> None:
    lines = [line for source in texts.values() for line in source.splitlines() if "tl.dot(" in line]
    assert len(lines) > 5
    assert all('input_precision="ieee"' in line for line in lines)


def test_3_blocks_are_powers_of_two(texts: Mapping[str, str]) -> None:
    sizes: set[int] = set()
    for source in texts.values():
        for start, stop in re.findall(r"tl\.arange\((\d+), (\d+)\)", source):
            sizes.add(int(stop) - int(start))
        for shape in re.findall(r"tl\.(?:full|zeros|broadcast_to|reshape)\(.*?[\(\[]([\d, ]+)[\)\]]", source):
            sizes.update(int(n) for n in shape.split(",") if n.strip())
    assert len(sizes) > 4
    assert all(size & (size - 1) == 0 for size in sizes), sizes


def test_3_what_the_interpreter_cannot_run_stands_behind_a_switch(texts: Mapping[str, str]) -> None:
    for name, source in texts.items():
        (kernel,) = [f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and f.name == name.split("/")[1]]
        for node in ast.walk(kernel):
            inside = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id.isupper()
            if not inside:
                bodies = [getattr(node, part, []) for part in ("body", "orelse")]
                statements = [s for body in bodies if isinstance(body, list) for s in body if isinstance(s, ast.Expr | ast.Assign)]
                assert not any("tl.extra" in ast.unparse(s) or "inline_asm" in ast.unparse(s) for s in statements), name
        switches = [a for a in kernel.args.args if a.annotation is not None]
        assert all(ast.unparse(a.annotation) == "tl.constexpr" for a in switches if a.annotation is not None)
        assert len(kernel.args.defaults) == len(switches)


# 4. Identical regions are lowered once


def test_4_kernels_do_not_grow_with_layers() -> None:
    programs = [compile_model(replace(SMALL, layers=n), [Shape.decode()], dtype="f32", max_context=CONTEXT) for n in (3, 6)]
    few, many = (manifest_of(p) for p in programs)
    assert len(few.kernels) == len(many.kernels)
    launched = [len(m.buckets[0].launches) for m in (few, many)]
    per_layer = (launched[1] - launched[0]) / 3
    assert per_layer <= 6
    assert programs[0].kernels == programs[1].kernels


def test_4_layer_names_belong_to_launches(tiny: Tiny) -> None:
    """Kernels that several layers share name none of them; every launch inside a layer says which one it serves."""
    places = {launch.loc for launch in manifest_of(tiny.program).buckets[0].launches}
    assert {"layers.0.attn.attention", "layers.1.attn.attention"} <= places
    shared = [n for n, k in manifest_of(tiny.program).kernels.items() if sum(launch.kernel == n for launch in all_launches(tiny)) > 1]
    assert shared
    assert not any(re.search(r"layers\.\d", tiny.program.kernels[name]) for name in shared)


def all_launches(tiny: Tiny) -> list[Launch]:
    return [launch for bucket in manifest_of(tiny.program).buckets for launch in bucket.launches]


def test_4_locations_and_ledgers_are_no_part_of_identity() -> None:
    """The same region twice, under other names and with other decisions recorded: one kernel. The first one reads an input of the step, which
    it need not wait for."""
    g = Graph(x="1x300xf32", w0="300x300xf32", w1="300x300xf32", w2="300x300xf32")
    value = g["x"]
    for number in range(3):
        g.loc = f"layers.{number}.down"
        value = g.contract(value, g[f"w{number}"])
    compiled = compile_function(g.returns(value))
    assert compiled.skeletons == ["gemv"] * 3
    assert len({str(r.loc) for r in compiled.regions}) == 3
    assert len(compiled.sources) == 2


def test_4_a_decode_layer_is_five_launches() -> None:
    """For sizes of real models, whose norms are too wide for an epilogue."""
    sizes = {"layers": 4, "hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ffn": 8192, "vocabulary": 32000}
    program = compile_model(replace(BASE, **sizes), [Shape.decode()], dtype="bf16", max_context=CONTEXT)
    launches = [launch.loc for launch in manifest_of(program).buckets[0].launches]
    assert sum(loc.split(".")[:2] == ["layers", "2"] for loc in launches) == 5
    assert len(launches) == 5 * 4 + 5


def test_4_a_decode_layer_with_norms_of_q_and_k_is_six_launches() -> None:
    """The sixth normalizes heads, turns them and writes keys and values: Qwen 3, with heads of their own size."""
    config = open_model(SOURCES.parent / "benchmarks" / "models" / "qwen3-1.7b.json", random_weights=0).config
    program = compile_model(replace(config, layers=4, layer_kinds=()), [Shape.decode()], dtype="bf16", max_context=CONTEXT)
    launches = [launch.loc for launch in manifest_of(program).buckets[0].launches]
    assert sum(loc.split(".")[:2] == ["layers", "2"] for loc in launches) == 6
    assert len(launches) == 6 * 4 + 5


# 5. Levels differ only where the IR says so


def lowered(dtype: str, *passes: str) -> ModuleOp:
    """A step of 16 tokens, specialized, after further passes."""
    module = build(replace(BASE, layers=2), dtype=dtype, block=BLOCK)
    options = Options(tokens=16, longest_query=16, logit_rows=16, blocks=CONTEXT // BLOCK, length=CONTEXT)
    pipeline.run(module, options, until="specialized")
    for name in passes:
        for built in registry.parse_passes(name):
            pipeline.apply(registry.context(), module, built)
    return module


def logits_of(module: ModuleOp, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    (function,) = signature.steps(module)
    body, _ = export_function(function)
    tensors = [
        weights[name] if (name := handle_name(op)) in weights else IMPLEMENTATIONS[op.name](**attributes_of(op))
        for op in handles_of(function)
    ]
    ids = text(16, 3)
    given = {
        "tokens": ids,
        "positions": range(16),
        "query_start": [0, 16],
        "context_len": [16],
        "block_table": [[3] + [0] * (CONTEXT // BLOCK - 1)],
        "logit_rows": range(16),
        "top_k": [0] * 16,
        "seed": [0] * 16,
    }
    arguments = {name: torch.tensor(value, dtype=torch.int32) for name, value in given.items()}
    arguments |= {"temperature": torch.zeros(16), "top_p": torch.ones(16), "min_p": torch.zeros(16)}
    values = [
        arguments[name] if name in arguments else torch.full((5, 2, BASE.kv_heads, BLOCK, BASE.head_dim), torch.nan, dtype=tensors[0].dtype)
        for name in signature.input_names(function)
    ]
    return evaluate(body, [*values, *tensors])[0]


@pytest.fixture(scope="module", params=["bf16", "f16"])
def narrow(request: pytest.FixtureRequest) -> tuple[str, dict[str, torch.Tensor]]:
    tiny = Tiny.of(replace(BASE, layers=2), [Shape(16, 1, 16, 16)], dtype=request.param, kernels=False)
    return request.param, load_weights(manifest_of(tiny.program), Tensors(tiny.weights))


TO_TILES = "transformer-to-tile,canonicalize,cse"


def test_5_lowering_and_fusion_round_nothing(narrow: tuple[str, dict[str, torch.Tensor]]) -> None:
    """Bit for bit in a narrow type: level 1, tiles, and regions with their schedules."""
    dtype, weights = narrow
    expected = logits_of(lowered(dtype), weights)
    assert expected.isfinite().all()
    assert torch.equal(logits_of(lowered(dtype, TO_TILES), weights), expected)
    assert torch.equal(logits_of(lowered(dtype, TO_TILES, "fuse-regions"), weights), expected)


def test_5_a_rounding_is_dropped_only_on_record(narrow: tuple[str, dict[str, torch.Tensor]]) -> None:
    """A row scale moves behind a contraction only where a record says so, one rounding a record; never with a weight in between (f16)."""
    dtype, weights = narrow
    before, after = lowered(dtype, TO_TILES), lowered(dtype, TO_TILES, "commute-row-scale")
    (function,) = signature.steps(after)
    folded = [r for r in signature.records(function) if r.get("kind") == "row-scale" and r["verdict"] == "folded"]
    assert roundings(before) - roundings(after) == len(folded)
    difference = (logits_of(after, weights) - logits_of(before, weights)).abs().max()
    if dtype == "f16":
        assert not folded and difference == 0
    else:
        assert len(folded) == 5 and 0 < difference < 0.3


def test_5_one_rounding_too_few_is_noticed(narrow: tuple[str, dict[str, torch.Tensor]]) -> None:
    """The comparison above is sharp: without the rounding of a single product the logits differ."""
    dtype, weights = narrow
    module = lowered(dtype, TO_TILES)
    expected = logits_of(module, weights)
    cast = next(
        op for op in module.walk() if isinstance(op, CastOp) and isinstance(op.input.owner, ContractOp) and widening_user(op) is not None
    )
    user = widening_user(cast)
    assert user is not None
    user.result.replace_all_uses_with(cast.input)
    assert not torch.equal(logits_of(module, weights), expected)


def widening_user(op: CastOp) -> CastOp | None:
    """A cast back to float32 of what `op` rounded."""
    users = [use.operation for use in op.result.uses]
    return next((u for u in users if isinstance(u, CastOp) and element_of(u.result) == "f32"), None)


def roundings(module: ModuleOp) -> int:
    """Casts to a narrow type."""
    return sum(isinstance(op, CastOp) and element_of(op.result) in ("bf16", "f16") for op in module.walk())


# 6. No lowering knows a combination of ops: tests/numeric/test_extension.py fuses ops that only it defines


def string_constants(file: Path) -> set[str]:
    """The strings of a module that are no documentation."""
    tree = ast.parse(file.read_text())
    documentation = {
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)} - documentation


ARITHMETIC = frozenset({"add", "mul"})
"""What passes may know of an elementwise op: `commute-row-scale` relies on products distributing over sums."""


def test_6_kinds_are_named_in_their_tables_only() -> None:
    """Below level 2 the name of an elementwise kind, or of a level-1 op, appears in the table of scalar rules and nowhere else."""
    kinds = set(SCALAR_RULES) - ARITHMETIC
    files = [*(SOURCES / "passes").glob("*.py"), *(SOURCES / "lowering" / "tile_to_kernel").glob("*.py")]
    assert len(files) > 20
    for file in files:
        if file.name == "scalars.py":
            continue
        assert not string_constants(file) & kinds, file.name
    for file in (SOURCES / "lowering" / "tile_to_kernel").glob("*.py"):
        assert not any(s.startswith("transformer.") for s in string_constants(file)), file.name


# 7. Addresses never move


def test_7_addresses_never_move(tiny: Tiny) -> None:
    """Two generations of different lengths, sampling and chunks later every tensor lies where it was reserved."""
    session = tiny.session("reference")
    executor = session.executor
    manifest = executor.manifest
    assert executor.memory.arena.numel() == max(b.arena_bytes for b in manifest.buckets)

    def addresses() -> list[int]:
        tensors = [executor.memory.arena, *executor.caches, *executor.memory.weights.values(), *executor.memory.constants.values()]
        tensors += [t for b in manifest.buckets for t in executor.inputs(b).values()]
        tensors += [executor.output(b, o.name) for b in manifest.buckets for o in b.outputs]
        return [t.data_ptr() for t in tensors]

    before = addresses()
    assert list(session.stream(text(5, 1, SMALL.vocabulary), 6))
    assert list(session.stream(text(37, 2, SMALL.vocabulary), 3))
    session.forward_logits(text(20, 3, SMALL.vocabulary))
    assert addresses() == before


# Attention's scores are nowhere a value


def dimensions(type: Attribute) -> list[tuple[int, ...]]:
    if isinstance(type, FunctionType):
        return [d for t in (*type.inputs.data, *type.outputs.data) for d in dimensions(t)]
    return [tuple(type.get_shape())] if isinstance(type, TensorType | MemRefType) else []


@pytest.mark.parametrize("shape", [Shape(24, 1, 24, 1), Shape(24, 24, 1, 24, advance=True), Shape(24, 3, 11, 3)])
def test_no_value_is_as_large_as_tokens_times_context(shape: Shape) -> None:
    """Not at any level below the first: the context is read through the block table, and scores live in registers."""
    context = 112 * BLOCK
    config = replace(BASE, layers=2, max_positions=context)
    options = Options(**{n: getattr(shape, n) for n in ("tokens", "sequences", "longest_query", "logit_rows", "advance")})
    options = replace(options, blocks=context // BLOCK, length=context)
    module = pipeline.run(build(config, dtype="bf16", block=BLOCK), options, until="specialized")
    previous = "specialized"
    for stage in ("tiles", "regions", "buffers", "plan"):
        pipeline.run(module, options, after=previous, until=stage)
        previous = stage
        seen = 0
        for op in module.walk():
            values = [*op.results, *(a for region in op.regions for block in region.blocks for a in block.args)]
            for sizes in (d for v in values for d in dimensions(v.type)):
                seen += 1
                assert not (shape.tokens in sizes and (context in sizes or {context // BLOCK, BLOCK} <= set(sizes))), (stage, sizes)
        assert seen > 20

"""Which inputs of a region may be overwritten by its results, and why the others may not (invariant 1)."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from lamella import registry
from lamella.dialects.tile import FusedOp, ScatterOp
from lamella.passes.in_place import misalignment, read_beside_update, updated_argument
from lamella.program import Program, Shape, compile_model
from lamella.runtime.executor import make_executor
from lamella.runtime.generate import Session
from lamella.runtime.manifest import Launch
from lamella.runtime.weights import load_weights
from tests.models.tiny_llama import CONTEXT, SMALL, Tensors, peer, text, weights_of

X, W, N, S = "tensor<4x8xf32>", "tensor<8x8xf32>", "tensor<4xi32>", "tensor<4x1xf32>"
CACHE = "tensor<?x2x2x16x4xf32>"

SILU = f'%r = tile.map "silu"(%0) : {X} -> {X}'
MAP_AFTER = f'%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %r = tile.map "add"(%c, %0) : {X}, {X} -> {X}'


def region(arguments: list[str], ops: str, yields: list[tuple[str, str]]) -> FusedOp:
    """A region with arguments %0, %1, … of these types."""
    names = ", ".join(f"%i{i}" for i in range(len(arguments)))
    types = ", ".join(arguments)
    block = ", ".join(f"%a{i}: {t}" for i, t in enumerate(arguments))
    for i in range(len(arguments)):
        ops = ops.replace(f"%{i}", f"%a{i}")
    values, results = ", ".join(v.replace("%1", "%a1") for v, _ in yields), ", ".join(t for _, t in yields)
    text = f"""
      {names} = "test.op"() : () -> ({types})
      %y{":" + str(len(yields)) if len(yields) > 1 else ""} = tile.fused ins({names} : {types}) {{
      ^bb0({block}):
        {ops}
        tile.yield {values} : {results}
      }} -> {results}"""
    module = Parser(registry.context(), text).parse_module()
    assert isinstance(module, ModuleOp)
    module.verify()
    return next(op for op in module.walk() if isinstance(op, FusedOp))


def why_not(arguments: list[str], ops: str, yields: list[tuple[str, str]], argument: int = 0, yielded: int = 0) -> str:
    block = region(arguments, ops, yields).body.block
    return misalignment(block, block.args[argument], yielded)


@pytest.mark.parametrize(
    ("arguments", "ops", "yields"),
    [
        pytest.param([X], SILU, [("%r", X)], id="elementwise"),
        pytest.param([X, X, W], MAP_AFTER, [("%r", X)], id="epilogue of a contraction"),
        pytest.param([X, X, W], MAP_AFTER, [("%r", X), ("%c", X)], id="epilogue beside another result"),
        pytest.param(
            [X],
            f'%s = tile.reduce "sum" %0 : {X} -> {S} \n %r = tile.map "mul"(%0, %s) : {X}, {S} -> {X}',
            [("%r", X)],
            id="a row and its own reduction",
        ),
        pytest.param(
            [N],
            f'%o = tile.constant 1 : i32 : tensor<i32> \n %r = tile.map "add"(%0, %o) : {N}, tensor<i32> -> {N}',
            [("%r", N)],
            id="a vector",
        ),
        pytest.param([X, X], f'%r = tile.map "silu"(%1) : {X} -> {X}', [("%r", X)], id="not read at all"),
        pytest.param(
            [N, X],
            f'%r = tile.map "neg"(%0) : {N} -> {N} \n %q = tile.map "silu"(%1) : {X} -> {X}',
            [("%r", N), ("%q", X)],
            id="a vector beside a matrix",
        ),
        pytest.param(
            [X, S],
            f"%n = tile.columns %0 : {X} -> tensor<4x8xi32> \n %f = tile.cast %n : tensor<4x8xi32> -> {X} \n"
            f'%e = tile.map "equal"(%f, %1) : {X}, {S} -> {X} \n %r = tile.map "select"(%e, %1, %0) : {X}, {S}, {X} -> {X}',
            [("%r", X)],
            id="numbers of its columns",
        ),
    ],
)
def test_same_grid_index(arguments: list[str], ops: str, yields: list[tuple[str, str]]) -> None:
    assert why_not(arguments, ops, yields) == ""


@pytest.mark.parametrize(
    ("arguments", "ops", "yields", "reason"),
    [
        pytest.param([X, W], f"%r = tile.contract %0, %1 : {X}, {W} -> {X}", [("%r", X)], "contract reads it", id="contracted"),
        pytest.param(
            [X, X, W],
            f'%s = tile.reduce "sum" %0 : {X} -> {S} \n %n = tile.map "mul"(%0, %s) : {X}, {S} -> {X} \n'
            f'%c = tile.contract %n, %2 : {X}, {W} -> {X} \n %r = tile.map "add"(%c, %0) : {X}, {X} -> {X}',
            [("%r", X)],
            "contract reads it",
            id="a norm before and a residual after",
        ),
        pytest.param(
            [X, X, W],
            f'%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %s = tile.reduce "sum" %0 : {X} -> {S} \n'
            f'%r = tile.map "mul"(%c, %s) : {X}, {S} -> {X}',
            [("%r", X)],
            "whole rows",
            id="whole rows in an epilogue",
        ),
        pytest.param(
            [X, X, W],
            f'%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %r = tile.map "silu"(%c) : {X} -> {X} \n %q = tile.map "silu"(%0) : {X} -> {X}',
            [("%r", X), ("%q", X)],
            "another result",
            id="read for another result",
        ),
        pytest.param(
            [X, X, W],
            f"%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %d = tile.contract %1, %2 : {X}, {W} -> {X} \n"
            f'%r = tile.map "add"(%c, %0) : {X}, {X} -> {X} \n %q = tile.map "add"(%d, %0) : {X}, {X} -> {X}',
            [("%r", X), ("%q", X)],
            "another result",
            id="epilogues of two contractions, which other programs may run",
        ),
        pytest.param(
            [X, X],
            f'%r = tile.map "add"(%0, %1) : {X}, {X} -> {X} \n %s = tile.reduce "sum" %r : {X} -> {S} \n'
            f'%q = tile.map "mul"(%r, %s) : {X}, {S} -> {X}',
            [("%r", X), ("%q", X)],
            "another result",
            id="a residual and its norm: long rows are read a second time",
        ),
        pytest.param(
            [X, X, W],
            f"%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %r = tile.cast %0 : {X} -> {X}",
            [("%c", X), ("%r", X)],
            "another result",
            id="passed through beside a contraction",
        ),
        pytest.param(
            [X, X, W],
            f'%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %r = tile.map "silu"(%0) : {X} -> {X}',
            [("%c", X)],
            "not computed from it",
            id="read for nothing",
        ),
        pytest.param(
            [X, X, W],
            f'%c = tile.contract %1, %2 : {X}, {W} -> {X} \n %r = tile.map "silu"(%0) : {X} -> {X}',
            [("%r", X), ("%c", X)],
            "outside the epilogue",
            id="beside a contraction",
        ),
        pytest.param(
            ["tensor<1x8xf32>", X],
            f'%r = tile.map "add"(%0, %1) : tensor<1x8xf32>, {X} -> {X} \n %q = tile.map "silu"(%0) : tensor<1x8xf32> -> tensor<1x8xf32>',
            [("%q", "tensor<1x8xf32>"), ("%r", X)],
            "broadcast",
            id="stretched over rows",
        ),
        pytest.param(
            [S, X],
            f'%r = tile.map "add"(%0, %1) : {S}, {X} -> {X} \n %q = tile.map "silu"(%0) : {S} -> {S}',
            [("%q", S), ("%r", X)],
            "broadcast",
            id="stretched over columns",
        ),
        pytest.param(
            [N],
            f'%s = tile.reduce "sum" %0 : {N} -> tensor<1xi32> \n %r = tile.map "add"(%0, %s) : {N}, tensor<1xi32> -> {N}',
            [("%r", N)],
            "crosses rows",
            id="a vector's sum",
        ),
        pytest.param(
            [X, W],
            f'%s = tile.reduce "sum" %0 : {X} -> {S} \n %r = tile.map "mul"(%0, %s) : {X}, {S} -> {X} \n %q = tile.map "silu"(%1) : {W} -> {W}',
            [("%r", X), ("%q", W)],
            "other rows",
            id="a row and its own reduction, beside more rows",
        ),
        pytest.param(
            [X, "tensor<4x4xf32>"],
            f'%r = tile.rotate "half" %0 by %1 heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 : {X}, tensor<4x4xf32> -> {X}',
            [("%r", X)],
            "rotate reads it",
            id="partners of a rotation",
        ),
        pytest.param(
            [X, N],
            f"%r = tile.gather %0[%1] : {X}, {N} -> {X}",
            [("%r", X)],
            "gather reads it",
            id="gathered",
        ),
        pytest.param(
            [X, "tensor<8xi32>"],
            f"%r = tile.gather_columns %0[%1] : {X}, tensor<8xi32> -> {X}",
            [("%r", X)],
            "gather_columns reads it",
            id="columns in another order",
        ),
        pytest.param(
            ["tensor<4x8x2x1xf32>", "tensor<4x8x2xf32>"],
            f"%m = tile.attend_merge %0, %1, %1 : tensor<4x8x2x1xf32>, tensor<4x8x2xf32>, tensor<4x8x2xf32> -> {X} \n"
            '%r = tile.map "neg"(%1) : tensor<4x8x2xf32> -> tensor<4x8x2xf32>',
            [("%m", X), ("%r", "tensor<4x8x2xf32>")],
            "attention",
            id="attention",
        ),
    ],
)
def test_other_grid_index(arguments: list[str], ops: str, yields: list[tuple[str, str]], reason: str) -> None:
    assert reason in why_not(arguments, ops, yields)


SCATTER = (
    f"%k = tile.scatter %0 into %1[%2] part 0 : i64 : {X}, {CACHE}, {N} -> {CACHE} \n"
    f"%v = tile.scatter %0 into %k[%2] part 1 : i64 : {X}, {CACHE}, {N} -> {CACHE}"
)


def test_a_chain_of_scatters_updates_its_argument() -> None:
    fused = region([X, CACHE, N], SCATTER, [("%v", CACHE)])
    block = fused.body.block
    assert updated_argument(fused.terminator.values[0]) is block.args[1]
    assert read_beside_update(block.args[1]) is None
    assert updated_argument(region([X], SILU, [("%r", X)]).terminator.values[0]) is None


def test_the_old_cache_must_not_be_read_beside_its_update() -> None:
    twice = region([X, CACHE, N], SCATTER, [("%v", CACHE), ("%k", CACHE)])
    assert read_beside_update(twice.body.block.args[1]) is twice.terminator
    old = region([X, CACHE, N], SCATTER, [("%v", CACHE), ("%1", CACHE)])
    assert read_beside_update(old.body.block.args[1]) is old.terminator
    forked = region([X, CACHE, N], SCATTER.replace("into %k", "into %1"), [("%v", CACHE), ("%k", CACHE)])
    assert isinstance(read_beside_update(forked.body.block.args[1]), ScatterOp)


def overwriting(program: Program) -> list[list[Launch]]:
    """The launches of each bucket that write to the arena over what they read there."""
    assert program.manifest is not None
    kernels = program.manifest.kernels

    def overwrites(launch: Launch) -> bool:
        inputs = kernels[launch.kernel].inputs
        return any(ref.pool == "arena" and ref in launch.args[:inputs] for ref in launch.args[inputs:])

    return [[launch for launch in bucket.launches if overwrites(launch)] for bucket in program.manifest.buckets]


def test_without_the_pass_nothing_is_in_place_and_everything_is_computed_alike() -> None:
    shapes = [Shape.decode(), Shape(16, 1, 16, 16)]
    weights = weights_of(SMALL, peer(SMALL))
    ids = text(13, 4, SMALL.vocabulary)
    found: list[tuple[torch.Tensor, list[int]]] = []
    for skip in ((), ("in-place",)):
        program = compile_model(SMALL, shapes, dtype="f32", max_context=CONTEXT, kernels=False, verify_each=True, skip=skip)
        assert program.manifest is not None
        # All residuals but the one whose region also makes the next layer's norm: that reads the sum again.
        residuals = [] if skip else ["layers.0.attn", "layers.1.attn", "layers.1.ffn"]
        assert [[launch.loc for launch in launches] for launches in overwriting(program)] == [residuals, residuals]
        executor = make_executor(program.manifest, load_weights(program.manifest, Tensors(weights)), executor="reference")
        session = Session(executor)
        found.append((session.forward_logits(ids), list(session.stream(ids, 5, ignore_eos=True))))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=0)
    assert found[1][1] == found[0][1]

"""From a function of tile (or transformer) ops to executed kernels: it goes through the pipeline's own stages, manifest and executors.

A function here has no names and may have no cache: `Compiled` gives it the signature that the manifest describes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from xdsl.dialects import func
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, TensorType, f32
from xdsl.ir import Block, Region, SSAValue

from lamella import pipeline
from lamella.dialects import kernel, signature
from lamella.dialects.attributes import ELEMENT_TYPES, attribute_of, element_of, python_value, shape_of
from lamella.dialects.tile import AttendOp, ContractPartialOp, FusedOp, ReduceOp, ScheduleAttr
from lamella.frontends.config import ModelConfig
from lamella.lowering.body import Body, export_function
from lamella.lowering.manifest import export_manifest
from lamella.lowering.print_triton import print_kernel
from lamella.lowering.transformer_to_tile.rules import TileBuilder
from lamella.passes.device import device
from lamella.passes.split_regions import split_attention, split_contractions
from lamella.pipeline import Options, PassOptions
from lamella.runtime.evaluate import evaluate
from lamella.runtime.executor import Executor, MemoryExecutor, make_executor
from lamella.runtime.manifest import Manifest
from lamella.runtime.memory import POISON
from lamella.semantics import DTYPES

ANY_MODEL = ModelConfig("llama", 1, 8, 1, 1, 8, 8, 8, 1e-5, 1e4)
NO_CACHE = TensorType(f32, [DYNAMIC_INDEX, 2, 1, 16, 4])
CACHES = ("cache.", "scales.")
"""How names of caches begin, and those of the scales of caches of float8: arguments of rank 5, called `scales…` or not."""
NARROW = {"f32": 1e-4, "f16": 2e-3, "bf16": 1.6e-2}
"""Tolerance where results are rounded to the type: two units in its last place."""
Schedules = Mapping[str, Mapping[str, int]]
"""Skeleton -> parameters that replace the chosen ones: small tiles, so that small functions take all loops."""


class Graph(TileBuilder):
    """A function under construction: arguments by name and type (`x="5x100xf32"`; "?" for the blocks of a cache), then tile ops."""

    def __init__(self, **arguments: str) -> None:
        types = [_tensor(text) for text in arguments.values()]
        super().__init__(Block(arg_types=types))
        self.arguments = dict(zip(arguments, self.block.args, strict=True))
        for name, value in self.arguments.items():
            value.name_hint = name

    def __getitem__(self, name: str) -> SSAValue:
        return self.arguments[name]

    def reduce(self, kind: str, value: SSAValue) -> SSAValue:
        """A reduction of the last axis, kept."""
        return self.add(ReduceOp(kind, value))

    def norm(self, value: SSAValue) -> SSAValue:
        """value · rsqrt(mean(value²) + 1e-5)."""
        mean = self.mean(self.map("square", value))
        return self.map("mul", value, self.map("rsqrt", self.map("add", mean, 1e-5)))

    def returns(self, *values: SSAValue) -> func.FuncOp:
        """The function."""
        self.block.add_op(func.ReturnOp(*values))
        arguments, results = [a.type for a in self.block.args], [v.type for v in values]
        return func.FuncOp("case", (arguments, results), Region(self.block))

    def inputs(self, draw: int = 0, /, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        """Normal numbers for every argument but caches that is not given; weights (`w…`) are small, so that products stay near 1."""
        out: dict[str, torch.Tensor] = {}
        for number, (name, value) in enumerate(self.arguments.items()):
            sizes = shape_of(value)
            if DYNAMIC_INDEX in sizes:
                continue
            scale = sizes[-1] ** -0.5 if name.startswith("w") and sizes else 1.0
            out[name] = given[name] if name in given else numbers(sizes, 100 * draw + number, DTYPES[element_of(value)], scale)
        return out


def _tensor(text: str) -> TensorType:
    *sizes, element = text.split("x")
    return TensorType(ELEMENT_TYPES[element], [DYNAMIC_INDEX if size == "?" else int(size) for size in sizes])


@dataclass(frozen=True)
class Compiled:
    """A function lowered to kernels, and what it means one level up."""

    body: Body
    """The function before `fuse-regions`."""
    names: tuple[str, ...]
    """Arguments, caches included."""
    outputs: tuple[str, ...]
    regions: tuple[FusedOp, ...]
    """Regions with their schedules and ledgers."""
    manifest: Manifest
    sources: Mapping[str, str]

    def expected(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The results by the meaning of the ops; caches are updated in place."""
        given = {name: value for name, value in inputs.items() if not name.startswith(CACHES)}
        caches = {name: value for name, value in inputs.items() if name.startswith(CACHES)}
        values = [given[n].clone() if n in given else caches.get(n, torch.zeros(1, 2, 1, 16, 4)) for n in self.names]
        return evaluate(self.body, values)[: len(self.outputs)]

    def run(self, inputs: Mapping[str, torch.Tensor], level: str = "interpret", shuffle_seed: int = 3) -> list[torch.Tensor]:
        """The results of one step of the executor `level`; the caches of `inputs` are updated in place."""
        blocks = max([2, *(len(inputs[n]) for n in self.names if n in inputs and n.startswith("cache."))])
        tokens = self.manifest.cache.block * (blocks - 1)
        executor: Executor = make_executor(
            self.manifest, {}, executor=level, kernels=self.sources, cache_tokens=tokens, shuffle_seed=shuffle_seed
        )
        (bucket,) = self.manifest.buckets
        places = dict(executor.inputs(bucket))
        for name in self.names:
            if name.startswith(CACHES) and name in inputs:
                pool, _, layer = name.partition(".")
                assert isinstance(executor, MemoryExecutor)
                places[name] = (executor.memory.caches if pool == "cache" else executor.memory.scales)[int(layer)]
            if name in inputs:
                places[name].copy_(inputs[name])
        executor.launch(bucket)
        if level != "cuda":
            assert not strays(executor), "bytes between the buffers were written"
        for name, value in inputs.items():
            if name.startswith(CACHES):
                value.copy_(places[name])
        found = {name: executor.output(bucket, name).clone() for name in self.outputs}
        return [found[name] for name in self.outputs]

    def entries(self, verdict: str) -> list[dict[str, Any]]:
        """The decisions of that verdict in the ledgers of all regions."""
        return [dict(e.as_dict()) for r in self.regions for e in (r.ledger.data if r.ledger else ()) if e.as_dict()["verdict"] == verdict]

    @property
    def skeletons(self) -> list[str]:
        """The skeleton of each region."""
        return [r.schedule.skeleton.data for r in self.regions if r.schedule is not None]


def compile_function(
    function: func.FuncOp,
    *,
    schedules: Schedules | None = None,
    longest_query: int | None = None,
    ties: Mapping[int, int] | None = None,
    after: str = "tiles",
    pass_options: PassOptions | None = None,
    verify_each: bool = False,
) -> Compiled:
    """Compiles a function from stage `after` on; regions, the plan and kernels are verified as they come out, with `verify_each` after each pass.

    `ties` are results that take over an argument; a cache is an argument of rank 5. `pass_options` are those of the passes that make regions.
    """
    names, outputs = _sign(function, dict(ties or {}), longest_query)
    module = ModuleOp([function])
    options = Options()
    if after != "tiles":
        pipeline.run(module, options, after=after, until="tiles", verify_each=verify_each)
        (function,) = module.ops
        assert isinstance(function, func.FuncOp)
    body, handles = export_function(function)
    assert not handles, "weights of a case are arguments"
    pipeline.run(module, options, after="tiles", until="regions", verify_each=verify_each, pass_options=pass_options)
    regions = [op for op in module.walk() if isinstance(op, FusedOp)]
    for region in regions:
        _reschedule(region, schedules or {})
    kept = tuple(op for op in module.clone().walk() if isinstance(op, FusedOp))
    pipeline.run(module, options, after="regions", until="plan", verify_each=verify_each)
    program = pipeline.run(module.clone(), options, after="plan", verify_each=verify_each)
    manifest = export_manifest(ANY_MODEL, [module], [program], dtype="f32", max_context=16)
    sources = {op.sym_name.data: print_kernel(op) for op in program.ops if isinstance(op, kernel.FuncOp)}
    return Compiled(body, tuple(names), tuple(outputs), kept, manifest, sources)


def _sign(function: func.FuncOp, ties: dict[int, int], longest_query: int | None) -> tuple[list[str], list[str]]:
    """Gives the function the attributes of a model function, and a cache where it has none. Returns names of arguments and outputs."""
    block = function.body.block
    terminator = block.last_op
    assert isinstance(terminator, func.ReturnOp)
    results = list(terminator.operands)
    names: list[str] = []
    for number, argument in enumerate(block.args):
        cached = isinstance(argument.type, TensorType) and len(argument.type.get_shape()) == 5
        pool = "scales" if (argument.name_hint or "").startswith("scales") else "cache"
        names.append(f"{pool}.{sum(n.startswith(f'{pool}.') for n in names)}" if cached else argument.name_hint or f"x{number}")
    outputs = [f"out{number}" for number in range(len(results))]
    tied = [ties.get(number, -1) for number in range(len(results))]
    described = list(outputs)
    if not any(n.startswith("cache.") for n in names):
        cache = block.insert_arg(NO_CACHE, len(block.args))
        names.append("cache.0")
        results.append(cache)
        tied.append(len(names) - 1)
        described.append("cache.0")
    _return(block, terminator, results)
    signature.describe(function, names, described, tied)
    signature.update_type(function)
    tokens = longest_query or 1
    key = {"tokens": tokens, "sequences": 1, "longest_query": tokens, "logit_rows": 1, "blocks": 1, "advance": False}
    function.attributes[signature.BUCKET] = attribute_of(key)
    return names, outputs


def _return(block: Block, terminator: func.ReturnOp, results: Sequence[SSAValue]) -> None:
    terminator.detach()
    terminator.erase()
    block.add_op(func.ReturnOp(*results))


def _reschedule(region: FusedOp, schedules: Schedules) -> None:
    """Replaces parameters of a region's schedule."""
    assert region.schedule is not None
    name = region.schedule.skeleton.data
    parameters = {k: int(python_value(v)) for k, v in region.schedule.options.data.items()}  # type: ignore[arg-type]
    unknown = set(schedules.get(name, {})) - set(parameters)
    assert not unknown, f"{name} has no parameters {unknown}"
    region.schedule = ScheduleAttr.of(name, **(parameters | dict(schedules.get(name, {}))))
    if name == "mma" and region.schedule.get("splits") > 1 and not any(isinstance(op, ContractPartialOp) for op in region.walk()):
        split_contractions(region, region.schedule, device("sm_90"))
    attends = [op for op in region.walk() if isinstance(op, AttendOp)]
    if name == "attend" and attends and region.schedule.get("splits") > 1:
        split_attention(region, attends[0], region.schedule, device("sm_90"))


def i32(values: object) -> torch.Tensor:
    """Integers as the programs take them."""
    return torch.tensor(values, dtype=torch.int32)


def numbers(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers."""
    return (torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def strays(executor: Executor) -> int:
    """Bytes of the arena that belong to no buffer and hold no poison any more: something stored past its end."""
    assert isinstance(executor, MemoryExecutor)
    (bucket,) = executor.manifest.buckets
    free = torch.ones(bucket.arena_bytes, dtype=torch.bool)
    for ref in (ref for launch in bucket.launches for ref in launch.args if ref.pool == "arena"):
        free[ref.offset : ref.offset + ref.bytes] = False
    return int((executor.memory.range(0, bucket.arena_bytes)[free] != POISON).sum())


def agree(compiled: Compiled, inputs: Mapping[str, torch.Tensor], tolerance: float = 1e-4, rows: int | None = None) -> list[torch.Tensor]:
    """Interpreted Triton and the planned program give what the ops mean; returns that.

    The tolerance is relative to the largest value, or to 1. Only the first `rows` rows of results count, where there is padding.
    """
    copies = [{n: v.clone() for n, v in inputs.items()} for _ in range(3)]
    expected = compiled.expected(copies[0])
    for level, copy in zip(("reference", "interpret"), copies[1:], strict=True):
        found = compiled.run(copy, level)
        pairs = [
            *((got[:rows], want[:rows]) for got, want in zip(found, expected, strict=True)),
            *((copy[n], copies[0][n]) for n in copy if n.startswith(CACHES)),
        ]
        for got, want in pairs:
            assert got.dtype == want.dtype and got.shape == want.shape
            finite = want.float()[want.float().isfinite()]
            scale = max(1.0, float(finite.abs().max())) if len(finite) else 1.0
            allowed = tolerance * scale if want.is_floating_point() else 0
            torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=allowed, equal_nan=True)
    return expected

"""Planned modules (and, where there are any, their kernels) go in; the manifest that the executors read leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, MemRefType, ModuleOp, StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from lamella.dialects import host, kernel
from lamella.dialects.attributes import attributes_of, element_of, python_value, shape_of
from lamella.dialects.kernel import DescriptorType
from lamella.dialects.messages import location, subject
from lamella.dialects.tile import CastOp, ConstantOp, FusedOp, MapOp, ReduceOp, YieldOp
from lamella.errors import PassError
from lamella.lowering.body import export_body
from lamella.lowering.weights import made_weights
from lamella.passes.library import library_call
from lamella.passes.live_ranges import dead_ranges, launches, offset_of
from lamella.runtime.manifest import (
    Bucket,
    CacheSpec,
    ConstantSpec,
    Descriptor,
    Input,
    Kernel,
    Launch,
    Manifest,
    ModelSpec,
    Output,
    Ref,
    WeightSpec,
)

CACHE, SCALES = "cache.", "scales."
"""How the argument names of caches begin, and those of the scales of a cache of float8; the layer follows."""


class ModelSizes(Protocol):
    """What the manifest says of a model: a part of `frontends.config.ModelConfig`."""

    @property
    def family(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def eos(self) -> tuple[int, ...]: ...


def export_manifest(
    model: ModelSizes,
    plans: Sequence[ModuleOp],
    programs: Sequence[ModuleOp] | None = None,
    *,
    dtype: str,
    max_context: int,
    target: str = "none",
    transforms: ModuleOp | None = None,
) -> Manifest:
    """The manifest of one module a bucket at level 4 (`plans`), and of the same modules at level 5 (`programs`), where kernels are lowered.

    `dtype` is that of weights and activations, `target` an architecture such as `sm_90`; `transforms` is the module of level 1 that the
    plans were specialized from, whose `@transform_weights` makes their weights. Without `programs` the kernels have no file and grids are
    [1, 1, 1]: enough for the `reference` executor. Raises PassError for a module that is not planned and numbered, for
    buckets that disagree on a weight, a constant or the cache, and for programs that launch something else than the plan.
    """
    export = _Export(made_weights(transforms) if transforms is not None else {})
    for index, module in enumerate(plans):
        export.bucket(planned_function(module), planned_function(programs[index], planned=False) if programs is not None else None)
        if programs is not None:
            export.launch_options(programs[index])
    if export.cache is None:
        raise PassError("no bucket has a cache argument", expected=f"an input named {CACHE}0")
    return Manifest(
        target=target,
        dtype=dtype,
        max_context=max_context,
        model=ModelSpec(
            model.family,
            model.layers,
            model.hidden,
            model.heads,
            model.kv_heads,
            model.head_dim,
            model.ffn,
            model.vocabulary,
            tuple(model.eos),
        ),
        cache=export.cache,
        weights=dict(sorted(export.weights.items())),
        constants=dict(sorted(export.constants.items())),
        kernels=export.kernels,
        buckets=tuple(export.buckets),
    )


def planned_function(module: ModuleOp, *, planned: bool = True) -> func.FuncOp:
    """The one function of a module. Raises PassError when there is none or many, or it has no plan."""
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp) and not op.is_declaration]
    if len(functions) != 1:
        raise PassError(f"the module has {len(functions)} functions", expected="one")
    if planned and "lamella.memory" not in functions[0].attributes:
        raise PassError("the function is not planned", where=f"func.func @{functions[0].sym_name.data}", remedy="run plan-memory first")
    return functions[0]


@dataclass
class _Export:
    """What all buckets have in common, gathered bucket by bucket."""

    made: Mapping[str, WeightSpec]
    """The weights that `@transform_weights` makes."""
    weights: dict[str, WeightSpec] = field(default_factory=dict[str, WeightSpec])
    constants: dict[str, ConstantSpec] = field(default_factory=dict[str, ConstantSpec])
    kernels: dict[str, Kernel] = field(default_factory=dict[str, Kernel])
    buckets: list[Bucket] = field(default_factory=list[Bucket])
    cache: CacheSpec | None = None

    def bucket(self, plan: func.FuncOp, program: func.FuncOp | None) -> None:
        """Adds one bucket: its launches as the plan has them, its grids as the program has them."""
        where = f"func.func @{plan.sym_name.data}"
        names = _names(plan, "lamella.inputs")
        arguments = plan.body.block.args[:-1]
        if len(names) != len(arguments):
            raise PassError("lamella.inputs has another length", where=where, expected=str(len(arguments)), got=str(len(names)))
        key, memory = _numbers(plan, "lamella.bucket"), _numbers(plan, "lamella.memory")
        refs = _references(plan, names)
        self.handles(plan.body.block.ops)
        inputs = [(n, a) for n, a in zip(names, arguments, strict=True) if not n.startswith((CACHE, SCALES))]
        caches, scales = ([a for n, a in zip(names, arguments, strict=True) if n.startswith(start)] for start in (CACHE, SCALES))
        if caches:
            self.agree_on_cache(caches, scales, key.get("blocks", 0), _numbers(plan, "lamella.layout").get("rotary_dim", 0), where)
        grids = _grids(plan, program)
        steps = launches(plan)
        terminator = plan.body.block.last_op
        returned = terminator.operands if terminator is not None else ()
        self.buckets.append(
            Bucket(
                tokens=key["tokens"],
                sequences=key["sequences"],
                longest_query=key["longest_query"],
                logit_rows=key["logit_rows"],
                advance=bool(key.get("advance", 0)),
                arena_bytes=memory["arena"],
                buffer_bytes=memory["buffers"],
                max_live_bytes=memory["max_live"],
                inputs=tuple(Input(n, element_of(a), shape_of(a)) for n, a in inputs),
                outputs=tuple(Output(n, refs[v]) for n, v in zip(_names(plan, "lamella.outputs"), returned, strict=True)),
                launches=tuple(
                    Launch(self.kernel(op), grid, tuple(refs[v] for v in op.operands), location(op), tuple(dead), ordered)
                    for op, (grid, ordered), dead in zip(steps, grids, dead_ranges(plan), strict=True)
                ),
            )
        )

    def kernel(self, op: Operation) -> str:
        """The name of a region's kernel; the first region of that name describes it."""
        name = op.attributes.get("kernel")
        if not isinstance(op, FusedOp) or not isinstance(name, StringAttr):
            raise PassError("has no kernel", where=subject(op), expected="a numbered tile.fused", remedy="run number-kernels first")
        if name.data not in self.kernels:
            options = cast("dict[str, int]", python_value(op.schedule.options)) if op.schedule else {}
            self.kernels[name.data] = Kernel(
                file="",
                inputs=len(op.ins),
                body=export_body(op.body.block),
                num_warps=options.get("warps", 4),
                num_stages=options.get("stages", 1),
                sources=sources(op),
                library=library_operands(op),
            )
        return name.data

    def launch_options(self, program: ModuleOp) -> None:
        """Files and launch options of the kernels that a program defines."""
        for op in program.body.block.ops:
            if isinstance(op, kernel.FuncOp) and op.sym_name.data in self.kernels:
                name = op.sym_name.data
                old = self.kernels[name]
                warps, stages = op.num_warps.value.data, op.num_stages.value.data
                registers = op.max_registers.value.data if op.max_registers is not None else 0
                arguments = enumerate(op.body.block.args)
                blocks = tuple(
                    Descriptor(i, (a.type.block[0], a.type.block[1])) for i, a in arguments if isinstance(a.type, DescriptorType)
                )
                file = f"kernels/{name}.py"
                self.kernels[name] = replace(
                    old, file=file, num_warps=warps, num_stages=stages, max_registers=registers, descriptors=blocks
                )

    def handles(self, ops: Iterable[Operation]) -> None:
        """Weights and constants. Raises PassError when one name means two things."""
        for op in ops:
            match op:
                case host.WeightOp():
                    name, spec = op.weight_name.data, WeightSpec(element_of(op.result), shape_of(op.result))
                    made = self.made.get(name, spec)
                    _agree(self.weights, name, replace(made, dtype=spec.dtype, shape=spec.shape), op)
                case host.ConstantOp():
                    attributes = cast("dict[str, Any]", attributes_of(op)["arguments"])
                    spec = ConstantSpec(element_of(op.result), shape_of(op.result), op.op.data, attributes)
                    _agree(self.constants, op.constant_name.data, spec, op)
                case _:
                    pass

    def agree_on_cache(self, caches: Sequence[SSAValue], scales: Sequence[SSAValue], blocks: int, paired: int, where: str) -> None:
        """All caches of all buckets are of one kind. Raises PassError."""
        if scales and len(scales) != len(caches):
            raise PassError("some caches have scales and others none", where=where, expected=str(len(caches)), got=str(len(scales)))
        element = element_of(scales[0]) if scales else ""
        for cache in caches:
            _, _, kv_heads, block, head_dim = shape_of(cache)
            spec = CacheSpec(len(caches), kv_heads, head_dim, block, element_of(cache), blocks, paired, element)
            if self.cache not in (None, spec):
                raise PassError("has another cache than the buckets before it", where=where, expected=str(self.cache), got=str(spec))
            self.cache = spec


def library_operands(fused: FusedOp) -> dict[str, int]:
    """Which inputs of a region a call of the library takes as what; empty for a region that is a kernel of ours."""
    call = library_call(fused)
    if call is None:
        return {}
    found = {"x": call.contract.x, "weight": call.contract.weight, "residual": call.residual, "bias": call.bias}
    places = {argument: index for index, argument in enumerate(fused.body.block.args)}
    return {name: places[value] for name, value in found.items() if isinstance(value, BlockArgument)}


def sources(fused: FusedOp) -> tuple[str, ...]:
    """What a region computes, op by op: kinds of maps and reductions, names of the others; rounding and constants go without saying."""
    out: list[str] = []
    for op in fused.body.block.ops:
        if isinstance(op, MapOp | ReduceOp):
            out.append(op.kind.data)
        elif not isinstance(op, CastOp | ConstantOp | YieldOp):
            out.append(op.name.removeprefix("tile."))
    return tuple(out)


def _references(plan: func.FuncOp, names: Sequence[str]) -> dict[SSAValue, Ref]:
    """Where each buffer of a planned function lives."""
    refs: dict[SSAValue, Ref] = {}
    for name, argument in zip(names, plan.body.block.args, strict=False):
        pool = next((start.removesuffix(".") for start in (CACHE, SCALES) if name.startswith(start)), "")
        refs[argument] = Ref(pool, layer=int(name.removeprefix(f"{pool}."))) if pool else Ref("input", name)
    for op in plan.body.block.ops:
        match op:
            case memref.ViewOp(source=BlockArgument()):
                refs[op.result] = Ref("arena", offset=offset_of(op.result), dtype=element_of(op.result), shape=shape_of(op.result))
            case host.WeightOp():
                refs[op.result] = Ref("weight", op.weight_name.data)
            case host.ConstantOp():
                refs[op.result] = Ref("constant", op.constant_name.data)
            case _ if any(isinstance(r.type, MemRefType) for r in op.results):
                raise PassError("a buffer that the manifest cannot refer to", where=subject(op), expected="views of the arena and handles")
            case _:
                pass
    return refs


def _grids(plan: func.FuncOp, program: func.FuncOp | None) -> list[tuple[tuple[int, ...], bool]]:
    """The grid of each launch of the plan, and whether it is ordered. Raises PassError when the program launches other kernels."""
    planned = [op.attributes.get("kernel") for op in launches(plan)]
    if program is None:
        return [((1, 1, 1), False)] * len(planned)
    made = [op for op in program.body.block.ops if isinstance(op, host.LaunchOp | host.LibraryMatmulOp)]
    names = [op.call.data if isinstance(op, host.LibraryMatmulOp) else op.kernel.string_value() for op in made]
    if [StringAttr(name) for name in names] != planned:
        raise PassError("the program launches other kernels than the plan", where=f"func.func @{program.sym_name.data}")
    return [(op.sizes, op.ordered is not None) if isinstance(op, host.LaunchOp) else ((1, 1, 1), True) for op in made]


def _agree(known: dict[str, Any], name: str, spec: object, op: Operation) -> None:
    if known.setdefault(name, spec) != spec:
        raise PassError(f"{name} has another type than before", where=subject(op), expected=str(known[name]), got=str(spec))


def _names(function: func.FuncOp, attribute: str) -> list[str]:
    value = function.attributes.get(attribute)
    if not isinstance(value, ArrayAttr):
        raise PassError(f"{attribute} is missing", where=f"func.func @{function.sym_name.data}", expected="a list of names")
    return [str(name) for name in cast("list[str]", python_value(cast("ArrayAttr[StringAttr]", value)))]


def _numbers(function: func.FuncOp, attribute: str) -> dict[str, int]:
    """The integers (and booleans) of a dictionary attribute."""
    value = function.attributes.get(attribute)
    if not isinstance(value, DictionaryAttr):
        return {}
    values = {name: python_value(a) for name, a in value.data.items()}
    return {name: int(v) for name, v in values.items() if isinstance(v, int)}

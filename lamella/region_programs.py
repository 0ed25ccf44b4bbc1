"""A model's configuration goes in; the regions of its steps whose schedules can be measured leave, each to be compiled by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32, i32
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from lamella import pipeline, registry
from lamella.dialects import kernel, signature
from lamella.dialects.attributes import element_type_of, shape_of
from lamella.dialects.messages import location
from lamella.dialects.tile import (
    AttendOp,
    CastOp,
    ContractOp,
    FusedOp,
    GatherOp,
    MapOp,
    SampleOp,
    ScatterOp,
    ScheduleAttr,
    SlotsOp,
    YieldOp,
)
from lamella.errors import PassError
from lamella.frontends import decoder
from lamella.frontends.config import ModelConfig
from lamella.lowering.manifest import export_manifest
from lamella.lowering.print_triton import print_kernel
from lamella.passes.candidates import candidates
from lamella.passes.choose_schedule import choose, longest_query, schedule_for
from lamella.passes.device import device
from lamella.passes.feasibility import feasible_schedules
from lamella.passes.region_graph import HANDLES
from lamella.passes.tuning import TUNABLE, Entry, Measurements, Shape, key_text, region_key, why_not
from lamella.pipeline import Options, PassOptions, PassSpec
from lamella.program import BLOCK
from lamella.program import Shape as BucketShape
from lamella.runtime.manifest import Launch, Manifest

CACHE_RANK = 5


@dataclass(frozen=True)
class RegionProgram:
    """A region compiled by itself under one schedule: what an executor needs to run it."""

    schedule: ScheduleAttr
    manifest: Manifest
    kernels: Mapping[str, str]
    producers: int
    """Launches of the bucket that only make what the region reads; those of the region follow."""

    @property
    def launches(self) -> Sequence[Launch]:
        """Those of the region itself."""
        (bucket,) = self.manifest.buckets
        return bucket.launches[self.producers :]

    @property
    def text(self) -> str:
        """The schedule for people: `gemv k=2048 rows=2 warps=4`."""
        return schedule_text(self.schedule)


@dataclass(frozen=True)
class TunableRegion:
    """A region of a step, as a function of its own, and the schedules that are worth a measurement."""

    op: str
    shape: Shape
    bucket: str
    """The first bucket that has it."""
    loc: str
    config: ModelConfig
    dtype: str
    max_context: int
    arch: str
    longest: int
    module: ModuleOp
    """One function around the region, whose schedule is not chosen yet."""
    roles: Mapping[str, str]
    """Integer input -> what its numbers mean: `block_table`, `query_start`, `context_len`, `slots`, or `rows N` of a table of N rows."""
    candidates: tuple[ScheduleAttr, ...]
    """The cost model's schedule first."""
    known: Entry | None = None
    """What was measured before."""
    launches: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bucket -> launches a step."""

    @property
    def key(self) -> str:
        """What it is measured under."""
        return key_text(self.op, self.shape)

    @property
    def today(self) -> ScheduleAttr:
        """The schedule that compilations take: the measured one, or the cost model's."""
        return self.candidates[0] if self.known is None else schedule_of(self.known)

    def measured(self, schedule: ScheduleAttr, us: float, bound_us: float, model_us: float, device: str, triton: str) -> Entry:
        """What is kept of a measurement of one of its schedules."""
        options = {name: schedule.get(name) for name in sorted(schedule.options.data)}
        times = (round(us, 3), round(bound_us / us, 3), round(model_us, 3))
        return Entry(self.op, self.shape, schedule.skeleton.data, options, *times, device, triton)

    @property
    def ops(self) -> list[Operation]:
        """What the region computes."""
        (function,) = signature.steps(self.module)
        return _ops(_regions(function)[-1])

    def compile(self, schedule: ScheduleAttr, number: int, prefix: str = "") -> RegionProgram:
        """The region under one schedule, through the ordinary stages from `regions` on; kernel names start with `prefix` and `number`.

        Raises PassError.
        """
        options, target = Options(arch=self.arch), device(self.arch)
        values = {name: schedule.get(name) for name in schedule.options.data}
        entry = Entry(self.op, self.shape, schedule.skeleton.data, values, 0.0, 0.0, 0.0, "", "")
        module = self.module.clone()
        (function,) = signature.steps(module)
        *producers, region = _regions(function)
        for producer in producers:
            choose(producer, self.longest, target, ())
        choose(region, self.longest, target, (AttendOp, SampleOp, ContractOp), Measurements.of([entry]))
        if _regions(function)[-1].schedule != schedule:
            raise PassError(f"the candidate {schedule_text(schedule)} does not fit", where=self.loc)
        for spec in _around_choice()[1]:
            pipeline.apply(registry.context(), module, spec.build(options))
        pipeline.run(module, options, after="regions", until="plan")
        for i, op in enumerate(_regions(*signature.steps(module))):
            name = op.attributes["kernel"]
            assert isinstance(name, StringAttr)
            # Producers are the same under all schedules.
            op.attributes["kernel"] = StringAttr(f"{prefix}p_{name.data}" if i < len(producers) else f"{prefix}c{number}_{name.data}")
        program = pipeline.run(module.clone(), options, after="plan")
        manifest = export_manifest(self.config, [module], [program], dtype=self.dtype, max_context=self.max_context, target=self.arch)
        sources = {op.sym_name.data: print_kernel(op) for op in program.ops if isinstance(op, kernel.FuncOp)}
        return RegionProgram(schedule, manifest, sources, len(producers))


def _regions(function: func.FuncOp) -> list[FusedOp]:
    return [op for op in function.body.block.ops if isinstance(op, FusedOp)]


def _ops(fused: FusedOp) -> list[Operation]:
    return [op for op in fused.body.block.ops if not isinstance(op, YieldOp)]


def schedule_of(entry: Entry) -> ScheduleAttr:
    """The schedule that was measured."""
    return ScheduleAttr.of(entry.skeleton, **entry.options)


def schedule_text(schedule: ScheduleAttr) -> str:
    """A schedule on one line: `gemv k=2048 rows=2 warps=4`."""
    return " ".join([schedule.skeleton.data, *(f"{name}={schedule.get(name)}" for name in sorted(schedule.options.data))])


def tunable_regions(
    config: ModelConfig,
    buckets: Sequence[BucketShape],
    *,
    dtype: str,
    max_context: int,
    arch: str,
    measurements: Measurements,
    pass_options: PassOptions | None = None,
) -> list[TunableRegion]:
    """The regions of some buckets whose schedules can be measured, one a key, in the order of their first launches.

    `dtype` is an element name (`bf16`). Those that `measurements` hold, with a schedule that fits, come with what is `known`. Raises PassError.
    """
    found: dict[str, TunableRegion] = {}
    counts: dict[str, dict[str, int]] = {}
    base = decoder.build(config, dtype=dtype, block=BLOCK)
    common = Options(blocks=-(-max_context // BLOCK), length=max_context, arch=arch)
    pipeline.run(base, common, until="model", pass_options=pass_options)
    for bucket in buckets:
        options = Options(blocks=common.blocks, length=max_context, arch=arch, **asdict(bucket))
        function = _fused_function(base.clone(), options, pass_options)
        longest = longest_query(function)
        for fused in _regions(function):
            ops = _ops(fused)
            skeletons = feasible_schedules(ops).skeletons
            key = region_key(ops, longest)
            if key is None or not skeletons or skeletons[0] not in TUNABLE:
                continue
            text = key_text(*key)
            launches = counts.setdefault(text, {})
            launches[bucket.name] = launches.get(bucket.name, 0) + 1
            if text in found:
                continue
            model = schedule_for(skeletons[0], ops, longest, device(arch))
            known = measurements.find(ops, longest)
            if known is not None and why_not(known.skeleton, known.options, ops, longest, device(arch), model) is not None:
                known = None
            module, roles = isolated(fused, function)
            found[text] = TunableRegion(
                *key,
                bucket.name,
                location(fused),
                config,
                dtype,
                max_context,
                arch,
                longest,
                module,
                roles,
                tuple(candidates(ops, model, longest, device(arch))),
                known,
                launches,
            )
    return list(found.values())


def _fused_function(module: ModuleOp, options: Options, pass_options: PassOptions | None) -> func.FuncOp:
    """The step of a bucket as regions whose schedules are not chosen."""
    extra = pass_options or {}
    pipeline.run(module, options, after="model", until="tiles", pass_options=pass_options)
    ctx = registry.context()
    for spec in _around_choice()[0]:
        pipeline.apply(ctx, module, spec.build(options, extra.get(spec.name)))
    (function,) = signature.steps(module)
    return function


def _around_choice() -> tuple[Sequence[PassSpec], Sequence[PassSpec]]:
    """The passes of the stage `regions` before and after `choose-schedule`."""
    specs = next(stage.passes for stage in pipeline.STAGES if stage.name == "regions")
    at = [spec.name for spec in specs].index("choose-schedule")
    return specs[:at], specs[at + 1 :]


@dataclass
class _Isolation:
    """A function under construction: arguments, handles, regions that stand for those before, and at last the region itself."""

    block: Block = field(default_factory=Block)
    names: list[str] = field(default_factory=list[str])
    producers: list[FusedOp] = field(default_factory=list[FusedOp])
    caches: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Cache argument -> the value that holds it now."""

    def argument(self, type: Attribute) -> SSAValue:
        """A new argument of the function."""
        number = len(self.names)
        argument = self.block.insert_arg(type, number)
        self.names.append(f"cache.{len(self.caches)}" if _is_cache(type) else f"x{number}")
        argument.name_hint = self.names[-1].replace(".", "")
        if _is_cache(type):
            self.caches[argument] = argument
        return argument

    def written(self, value: SSAValue) -> SSAValue:
        """A value as an earlier launch has left it: a region that copies an argument, or that writes one token into a cache."""
        argument = self.argument(value.type)
        if not _is_cache(value.type):
            return self.region([argument], lambda x: _copied(x[0]))
        _, _, heads, _, dim = shape_of(value)
        token = self.argument(TensorType(element_type_of(value), [1, heads * dim]))
        slot = self.argument(TensorType(i32, [1]))
        self.caches[argument] = self.region([token, argument, slot], lambda x: [ScatterOp(x[0], x[1], x[2], 0)])
        return self.caches[argument]

    def region(self, inputs: Sequence[SSAValue], make: Callable[[Sequence[SSAValue]], Sequence[Operation]]) -> SSAValue:
        """A region of a few ops, of which it yields the last."""
        body = Block(arg_types=[v.type for v in inputs])
        ops = make(body.args)
        last = ops[-1].results[0]
        body.add_ops([*ops, YieldOp([last])])
        made = FusedOp(inputs, [], [last.type], body)
        self.producers.append(made)
        return made.res[0]


def _copied(value: SSAValue) -> list[Operation]:
    """Ops that compute the value itself."""
    element = element_type_of(value)
    if element in (f32, i32):
        return [MapOp("maximum", [value, value])]
    wide = CastOp(value, f32)
    return [wide, CastOp(wide.result, element)]


def isolated(fused: FusedOp, function: func.FuncOp) -> tuple[ModuleOp, dict[str, str]]:
    """A module with one function around a copy of a region, which comes last in it, and the roles of its integer inputs.

    The kernel must come out as it does in a step, so what a step gives the region is the same here: weights and tables stay handles,
    arguments of the step arguments, and what an earlier launch has written is written by one, since a kernel may not read that early. A
    cache is a result tied to its argument. There always is one, since a manifest describes it.
    """
    made = _Isolation()
    place: dict[SSAValue, SSAValue] = {}
    roles: dict[str, str] = {}
    handles = {v.owner: None for v in fused.ins if isinstance(v.owner, Operation) and v.owner.name in HANDLES}
    updated = {fused.ins[n] for n in map(_updated, fused.terminator.values) if n is not None}
    for value, inner in zip(fused.ins, fused.body.block.args, strict=True):
        if value in place or value.owner in handles:
            continue
        role = _role(inner)
        if role:
            roles[f"x{len(made.names)}"] = role
        early = isinstance(value, BlockArgument) or value in updated or len(shape_of(value)) not in (1, 2, CACHE_RANK)
        place[value] = made.argument(value.type) if early else made.written(value)
    cache = next((a.type for a in function.body.block.args if _is_cache(a.type)), None)
    if cache is not None and not made.caches:
        made.argument(cache)
    for handle in handles:
        copy = handle.clone()
        made.block.add_op(copy)
        for old, new in zip(handle.results, copy.results, strict=True):
            place[old] = new
            new.name_hint = old.name_hint
    made.block.add_ops(made.producers)
    region = fused.clone(value_mapper=dict(place))
    made.block.add_op(region)
    results = dict[str, SSAValue]()
    for number, (yielded, result) in enumerate(zip(fused.terminator.values, region.res, strict=True)):
        source = _updated(yielded)
        if source is None:
            results[f"out{number}"] = result
        else:
            made.caches[place[fused.ins[source]]] = result
    numbers: dict[SSAValue, int] = {argument: number for number, argument in enumerate(made.block.args)}
    tied = [-1] * len(results) + [numbers[argument] for argument in made.caches]
    results |= {made.names[numbers[argument]]: value for argument, value in made.caches.items()}
    made.block.add_op(func.ReturnOp(*results.values()))
    types = ([a.type for a in made.block.args], [v.type for v in results.values()])
    step = func.FuncOp("region", types, Region(made.block))
    signature.describe(step, made.names, list(results), tied)
    for attribute in (signature.BUCKET, signature.LAYOUT):
        if attribute in function.attributes:
            step.attributes[attribute] = function.attributes[attribute]
    return ModuleOp([step]), roles


def _is_cache(type: Attribute) -> bool:
    return isinstance(type, TensorType) and len(type.get_shape()) == CACHE_RANK


def _updated(value: SSAValue) -> int | None:
    """The number of the block argument that holds a yielded cache."""
    while isinstance(value.owner, ScatterOp):
        value = value.owner.cache
    return value.index if isinstance(value, BlockArgument) and _is_cache(value.type) else None


def _role(argument: SSAValue) -> str:
    """What the numbers of an integer argument of a region mean, by the op that reads them; empty for other arguments."""
    for use in argument.uses:
        op = use.operation
        match op:
            case AttendOp() if 2 <= use.index < 5:
                return ("block_table", "query_start", "context_len")[use.index - 2]
            case SlotsOp() if use.index >= 1:
                return ("query_start", "block_table")[use.index - 1]
            case ScatterOp() if use.index == 2:
                return "slots"
            case GatherOp() if use.index == 1:
                return f"rows {shape_of(op.table)[0]}"
            case _:
                pass
    return ""

"""A model's configuration goes in; a compiled program leaves: IR of every stage, kernels, ledger and manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from lamella import pipeline, registry
from lamella.dialects import kernel, signature
from lamella.dialects.attributes import python_value
from lamella.dialects.messages import location
from lamella.dialects.tile import FusedOp
from lamella.errors import DtypeError, PassError, PlanError
from lamella.frontends import decoder
from lamella.frontends.config import ModelConfig
from lamella.lowering.body import export_function, is_handle
from lamella.lowering.manifest import export_manifest
from lamella.lowering.print_triton import print_kernel
from lamella.passes.check_coalescing import recorded
from lamella.passes.fuse_regions import FuseRegions
from lamella.passes.fusion import Fusion
from lamella.pipeline import Instrument, Options, PassOptions
from lamella.runtime.manifest import Manifest

BLOCK = 16
"""Tokens of a cache block."""
DEFAULT_ARCH = "sm_90"
FLOAT8_SINCE = 89
"""The first architecture with instructions for floats of eight bits."""


@dataclass(frozen=True)
class Shape:
    """The key of a bucket: the sizes its program is compiled for. `advance` is for decode, where each step feeds the next."""

    tokens: int
    sequences: int = 1
    longest_query: int = 1
    logit_rows: int = 1
    advance: bool = False

    @staticmethod
    def decode(sequences: int = 1) -> Shape:
        """One token of each of some sequences."""
        return Shape(sequences, sequences, 1, sequences, advance=True)

    @staticmethod
    def prefill(tokens: int) -> Shape:
        """Some tokens of one sequence, logits for the last."""
        return Shape(tokens, 1, tokens, 1)

    @staticmethod
    def batch(tokens: int, longest: int | None = None) -> Shape:
        """Whole texts for an encoder: so many tokens in all, of texts of `longest` at most, down to eight each."""
        return Shape(tokens, max(1, tokens // 8), min(tokens, longest or tokens), 1)

    @staticmethod
    def of(tokens: int) -> Shape:
        """Decode for one token, else prefill."""
        return Shape.decode() if tokens == 1 else Shape.prefill(tokens)

    def chunk(self, tokens: int) -> Shape:
        """The bucket of a part of a step's tokens; the last part of one token is a decode step."""
        if tokens == 1:
            return Shape.decode()
        return replace(self, tokens=tokens, longest_query=min(self.longest_query, tokens), logit_rows=min(self.logit_rows, tokens))

    @property
    def name(self) -> str:
        """A short name for files: `t16`, `t8s8`."""
        return f"t{self.tokens}" + (f"s{self.sequences}" if self.sequences > 1 else "")


@dataclass(frozen=True)
class Program:
    """A compiled model. `manifest` and `kernels` are what the runtime needs; the rest is for people."""

    config: ModelConfig
    shapes: tuple[Shape, ...]
    stages: tuple[str, ...]
    """Names of the stages reached, in order."""
    texts: Mapping[str, Sequence[str]]
    """IR of each stage, one text a bucket (one for all at the first stage); empty unless kept."""
    kernels: Mapping[str, str]
    """Triton source by kernel name; empty when compilation stopped before the last stage."""
    ledger: Sequence[Mapping[str, Any]]
    """Decisions of the passes: about constants (bucket ""), then in the order of the regions of the first bucket, then the next."""
    timings: Sequence[tuple[str, float]]
    """(pass, seconds) in the order they ran."""
    manifest: Manifest | None = None
    accesses: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict[str, Sequence[Mapping[str, Any]]])
    """What each kernel's loads and stores touch, as `check-coalescing` found, in the order of the text."""

    def ir(self, stage: str, bucket: int = 0) -> str:
        """The IR after a stage. Raises PassError for a stage that was not reached or not kept."""
        if stage not in self.texts:
            raise PassError(f"no IR of stage '{stage}'", expected=f"one of {', '.join(self.texts) or 'none: IR was not kept'}")
        texts = self.texts[stage]
        return texts[min(bucket, len(texts) - 1)]

    def explain(self) -> str:
        """The ledger as text: a line a region (a launch), below it a line a decision. `lamella explain` is shorter: it merges layers."""
        lines = (
            f"{e['bucket']} {e['loc'] or 'step'}: {e['kernel']}, {e['schedule']}"
            if e["verdict"] == "region"
            else f"  {e['verdict']:12} {e.get('kind', ''):10} {e['producer']:40} {e['reason']}".rstrip()
            for e in self.ledger
        )
        return "\n".join(lines)

    def save(self, folder: str | Path) -> None:
        """Writes `NN-stage.mlir` files, `kernels/*.py`, `ledger.json` and `manifest.json` into a folder that exists."""
        root = Path(folder)
        for number, stage in enumerate(self.stages, 1):
            for shape, text in zip(self.shapes, self.texts.get(stage, ()), strict=False):
                several = len(self.texts[stage]) > 1
                name = pipeline.dump_name(number, f"{stage}.{shape.name}" if several else stage)
                (root / name).write_text(text, encoding="utf-8")
        if self.kernels:
            (root / "kernels").mkdir(exist_ok=True)
        for name, source in self.kernels.items():
            (root / "kernels" / f"{name}.py").write_text(source, encoding="utf-8")
        (root / "ledger.json").write_text(json.dumps(list(self.ledger), indent=1), encoding="utf-8")
        if self.manifest is not None:
            self.manifest.save(root)


@dataclass
class _Stages(Instrument):
    """Keeps texts (when asked) and times."""

    keep: bool
    texts: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    times: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def after_pass(self, name: str, seconds: float, module: ModuleOp) -> None:
        self.times.append((name, seconds))

    def after_stage(self, number: int, stage: pipeline.Stage, module: ModuleOp) -> None:
        if self.keep:
            self.texts.setdefault(stage.name, []).append(pipeline.text(module))

    def keep_texts(self, other: _Stages) -> None:
        """Take over the texts that `other` kept."""
        for stage, texts in other.texts.items():
            self.texts.setdefault(stage, []).extend(texts)


@dataclass(frozen=True)
class _Fit:
    """The bucket that stands for a wanted one, its module (None: another wanted bucket already has it), and what the wanted one needed."""

    shape: Shape
    module: ModuleOp | None
    refusal: PlanError | None = None


def _fit(wanted: Shape, made: Sequence[Shape], lower: Callable[[Shape], ModuleOp]) -> _Fit:
    """The largest bucket of halves of `wanted` that `lower` does not refuse. Raises PlanError where even one token needs too much."""
    shape, refusal = wanted, None
    while shape not in made:
        try:
            return _Fit(shape, lower(shape), refusal)
        except PlanError as error:
            if shape.tokens == 1 or shape.sequences > 1:
                # A step of several sequences is one launch by contract, and of one token there is no half.
                raise
            refusal = refusal or error
            tokens = shape.tokens
            while tokens == shape.tokens or (tokens > 1 and tokens * error.arena > error.limit * shape.tokens):
                tokens = -(-tokens // 2)
            shape = shape.chunk(tokens)
    return _Fit(shape, None, refusal)


def _split(wanted: Shape, fit: _Fit) -> list[dict[str, Any]]:
    """The record of a bucket that became a smaller one, as JSON."""
    if fit.refusal is None:
        return []
    chunks = -(-wanted.tokens // fit.shape.tokens)
    reason = (
        f"an arena of {fit.refusal.arena} bytes exceeds max-arena = {fit.refusal.limit}; "
        f"its steps run as {chunks} chunks of {fit.shape.tokens} token{'s' * (fit.shape.tokens > 1)}"
    )
    about = {"verdict": "split", "kind": "bucket", "what": wanted.name, "reason": reason}
    return [{"producer": "", "consumer": "", **about, "accepted": True, "loc": "", "bucket": ""}]


@pipeline.collector_paused()
def compile_model(
    config: ModelConfig,
    shapes: Sequence[Shape],
    *,
    dtype: str,
    max_context: int,
    arch: str | None = None,
    until: str | None = None,
    kernels: bool = True,
    keep_ir: bool = False,
    verify_each: bool = False,
    pass_options: PassOptions | None = None,
    skip: Collection[str] = (),
    max_arena: int = 0,
    bucket_options: Mapping[str, PassOptions] | None = None,
    library: str = "auto",
    penalties: bool = False,
) -> Program:
    """Compiles a model for some buckets. `dtype` is an element name (`bf16`); `arch` None stands for DEFAULT_ARCH.

    `kernels` False stops after the memory plan, which is all the reference executor needs; `pass_options` sets options of passes, such as
    `{"fuse-regions": {"max-depth": 2}}`; `bucket_options` those of one bucket, by its name, which count more;
    `penalties`: programs can hold back tokens that a text has. `skip` names passes that do not run; `library` says whether cuBLAS may compute linears of many tokens (`auto`, `on`, `off`). No bucket
    gets an arena of more than `max_arena` bytes (0: any size): one that needs more is replaced by a smaller bucket of one sequence, in which the runtime runs its steps as chunks, and the
    ledger says so. Raises PassError, IRError, and PlanError where no chunk is small enough.
    """
    if not config.causal and any(shape.advance for shape in shapes):
        raise PassError("an encoder has no decode steps", where=config.family, expected="buckets of whole texts, such as Shape.batch(512)")
    if penalties and not config.causal:
        raise PassError("an encoder draws no tokens to penalize", where=config.family)
    run = partial(pipeline.run, verify_each=verify_each, skip=skip)
    own = {name: {p: {**(pass_options or {}).get(p, {}), **o} for p, o in given.items()} for name, given in (bucket_options or {}).items()}
    options_of = {name: {**(pass_options or {}), **given} for name, given in own.items()}
    names = pipeline.stage_names()
    last = pipeline.stage_number(until) if until else len(names) if kernels else pipeline.stage_number("plan")
    watch = _Stages(keep_ir)
    base = decoder.build(config, dtype=dtype, block=BLOCK, penalties=penalties)
    blocks = -(-max_context // BLOCK)
    common = Options(blocks=blocks, length=max_context, arch=arch or DEFAULT_ARCH, tuning="auto", max_arena=max_arena, library=library)
    run(base, common, until="model", instruments=(watch,), pass_options=pass_options)
    plans: list[ModuleOp] = []
    programs: list[ModuleOp] = []
    sources: dict[str, str] = {}
    accesses: dict[str, Sequence[Mapping[str, Any]]] = {}
    ledger = _folds(base)
    planned = min(last, pipeline.stage_number("plan"))

    def lower(shape: Shape) -> ModuleOp:
        attempt = _Stages(keep_ir)
        given = replace(common, **asdict(shape))
        try:
            module = run(
                base.clone(),
                given,
                after="model",
                until=names[planned - 1],
                instruments=(attempt,),
                pass_options=options_of.get(shape.name, pass_options),
            )
        finally:
            watch.times.extend(attempt.times)
        watch.keep_texts(attempt)
        return module

    made: list[Shape] = []
    for wanted in shapes if last > 1 else ():
        fit = _fit(wanted, made, lower)
        ledger.extend(_split(wanted, fit))
        shape, module, options = fit.shape, fit.module, replace(common, **asdict(fit.shape))
        if module is None:
            continue
        made.append(shape)
        ledger.extend(_ledger(module, shape))
        if planned < pipeline.stage_number("plan"):
            continue
        plans.append(module)
        if last > planned:
            program = run(
                module.clone(),
                options,
                after="plan",
                until=names[last - 1],
                instruments=(watch,),
                pass_options=options_of.get(shape.name, pass_options),
            )
            programs.append(program)
            for op in program.ops:
                if isinstance(op, kernel.FuncOp):
                    sources[op.sym_name.data] = print_kernel(op)
                    accesses[op.sym_name.data] = recorded(op)
    manifest = None
    if plans:
        target = (arch or DEFAULT_ARCH) if programs else "none"
        manifest = export_manifest(config, plans, programs or None, dtype=dtype, max_context=max_context, target=target, transforms=base)
        check_float8(manifest, target)
    return Program(
        config, tuple(made) if last > 1 else tuple(shapes), names[:last], watch.texts, sources, ledger, watch.times, manifest, accesses
    )


def check_float8(manifest: Manifest, target: str) -> None:
    """Raises DtypeError where kernels for `target` would read floats of eight bits, which no GPU before sm_89 converts."""
    before = target.removeprefix("sm_").isdigit() and int(target.removeprefix("sm_")) < FLOAT8_SINCE
    if before and any(weight.dtype == "f8" for weight in manifest.weights.values()):
        raise DtypeError("weights are floats of eight bits", expected="sm_89 or newer", got=target, remedy="quantize to int8")
    if before and manifest.cache.dtype == "f8":
        raise DtypeError("the cache is of floats of eight bits", expected="sm_89 or newer", got=target, remedy="leave kv_cache at auto")


@dataclass(frozen=True)
class StepBody:
    """One step of a model as its ops at level 1, before any pass, in body form: it takes `inputs`, then the tensors `weights`."""

    body: Mapping[str, Any]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    locations: tuple[str, ...]
    """Of each op of the body."""


def step_body(config: ModelConfig) -> StepBody:
    """The step of a model in float32, for `runtime.walk`."""
    (function,) = signature.steps(decoder.build(config, dtype="f32", block=BLOCK))
    body, weights = export_function(function)
    ops = [op for op in function.body.block.ops if op.results and not is_handle(op)]
    return StepBody(body, tuple(signature.input_names(function)), tuple(weights), tuple(map(location, ops)))


def _folds(module: ModuleOp) -> list[dict[str, Any]]:
    """The decisions about constants, which hold for all buckets, as JSON."""
    out: list[dict[str, Any]] = []
    for function in signature.steps(module):
        for entry in signature.records(function):
            loc = entry["what"].rpartition(" at ")[2]
            accepted = not entry["verdict"].startswith("not_")
            out.append({"producer": "", "consumer": "", **entry, "accepted": accepted, "loc": loc, "bucket": ""})
        out.extend(_idle(function, ""))
    return out


def _idle(function: FuncOp, bucket: str) -> list[dict[str, Any]]:
    """What was on in one function and changed nothing, and the nearest miss, as JSON."""
    notes = [
        {"verdict": "idle", "kind": note["pass"], "what": note.get("step", ""), "reason": note["reason"]}
        for note in signature.idle_notes(function)
    ]
    return [{"producer": "", "consumer": "", **note, "accepted": False, "loc": "", "bucket": bucket} for note in notes]


def decide_fusion(
    config: ModelConfig,
    shape: Shape,
    *,
    dtype: str,
    max_context: int,
    arch: str | None = None,
    pass_options: PassOptions | None = None,
    library: str = "auto",
) -> Fusion:
    """The groups that `fuse-regions` makes of a bucket, before they become regions: they can be asked about any pair of ops."""
    blocks = -(-max_context // BLOCK)
    options = Options(blocks=blocks, length=max_context, arch=arch or DEFAULT_ARCH, library=library, **asdict(shape))
    module = pipeline.run(decoder.build(config, dtype=dtype, block=BLOCK), options, until="tiles", pass_options=pass_options)
    extra = pass_options or {}
    for spec in next(stage.passes for stage in pipeline.STAGES if stage.name == "regions"):
        built = spec.build(options, extra.get(spec.name))
        if isinstance(built, FuseRegions):
            (function,) = signature.steps(module)
            return built.decide(function)
        built.apply(registry.context(), module)
    raise PassError("the pipeline has no pass fuse-regions")


def _ledger(module: ModuleOp, shape: Shape) -> list[dict[str, Any]]:
    """The decisions recorded on the regions of a module, as JSON: a record of the region itself, then those of its decisions."""
    out = [note for function in signature.steps(module) for note in _idle(function, shape.name)]
    for number, op in enumerate(op for op in module.walk() if isinstance(op, FusedOp)):
        kernel_name = op.attributes.get("kernel")
        place = {
            "loc": location(op),
            "bucket": shape.name,
            "region": number,
            "kernel": kernel_name.data if isinstance(kernel_name, StringAttr) else "",
        }
        ops = [loc for loc in dict.fromkeys(location(inner) for inner in op.body.block.ops) if loc]
        chosen = op.schedule.skeleton.data if op.schedule else ""
        parameters = {k: python_value(v) for k, v in op.schedule.options.data.items()} if op.schedule else {}
        out.append({"verdict": "region", "schedule": chosen, "parameters": parameters, "ops": ops, **place})
        for entry in op.ledger.data if op.ledger else ():
            record = dict(entry.as_dict())
            accepted = record["verdict"] in ("joined", "chosen", "measured", "in_place")
            out.append({"producer": "", "consumer": "", "reason": "", **record, "accepted": accepted, **place})
    return out

"""The only registry: names in, lazily imported dialects, passes and targets out; nothing is imported before it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe
from xdsl.utils.arg_spec import ArgSpec, ParameterListType, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError
from xdsl.utils.hints import isa, type_repr
from xdsl.utils.target import Target

from lamella.errors import PassError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Lazy(Generic[T]):
    """A factory that imports `module` when it is called and returns its `symbol`."""

    module: str
    symbol: str

    def __call__(self) -> T:
        return getattr(import_module(self.module), self.symbol)


DIALECTS: Mapping[str, Lazy[Dialect]] = {
    "transformer": Lazy("lamella.dialects.transformer", "Transformer"),
    "tile": Lazy("lamella.dialects.tile", "Tile"),
    "kernel": Lazy("lamella.dialects.kernel", "Kernel"),
    "host": Lazy("lamella.dialects.host", "Host"),
}

XDSL_PASSES: Mapping[str, Lazy[type[ModulePass]]] = {
    "canonicalize": Lazy("xdsl.transforms.canonicalize", "CanonicalizePass"),
    "cse": Lazy("xdsl.transforms.common_subexpression_elimination", "CommonSubexpressionElimination"),
    "dce": Lazy("xdsl.transforms.dead_code_elimination", "DeadCodeElimination"),
}

LAMELLA_PASSES: Mapping[str, Lazy[type[ModulePass]]] = {
    "split-linears": Lazy("lamella.passes.split_linears", "SplitLinears"),
    "canonical-order": Lazy("lamella.passes.canonical_order", "CanonicalOrder"),
    "rope-table": Lazy("lamella.passes.rope_table", "RopeTable"),
    "fold-norm-scale": Lazy("lamella.passes.fold_norm_scale", "FoldNormScale"),
    "propagate-layout": Lazy("lamella.passes.propagate_layout", "PropagateLayout"),
    "lay-scales": Lazy("lamella.passes.lay_scales", "LayScales"),
    "quantize-weights": Lazy("lamella.passes.quantize_weights", "QuantizeWeights"),
    "fold-constants": Lazy("lamella.passes.fold_constants", "FoldConstants"),
    "quantize-activations": Lazy("lamella.passes.quantize_activations", "QuantizeActivations"),
    "specialize": Lazy("lamella.passes.specialize", "Specialize"),
    "transformer-to-tile": Lazy("lamella.lowering.transformer_to_tile", "TransformerToTile"),
    "choose-implementation": Lazy("lamella.passes.choose_implementation", "ChooseImplementation"),
    "commute-row-scale": Lazy("lamella.passes.commute_row_scale", "CommuteRowScale"),
    "split-reductions": Lazy("lamella.passes.split_reductions", "SplitReductions"),
    "fuse-regions": Lazy("lamella.passes.fuse_regions", "FuseRegions"),
    "choose-schedule": Lazy("lamella.passes.choose_schedule", "ChooseSchedule"),
    "swap-pairs": Lazy("lamella.passes.swap_pairs", "SwapPairs"),
    "in-place": Lazy("lamella.passes.in_place", "InPlace"),
    "bufferize": Lazy("lamella.lowering.bufferize", "Bufferize"),
    "plan-memory": Lazy("lamella.passes.plan_memory", "PlanMemory"),
    "check-plan": Lazy("lamella.passes.check_plan", "CheckPlan"),
    "number-kernels": Lazy("lamella.passes.number_kernels", "NumberKernels"),
    "dependent-launch": Lazy("lamella.passes.dependent_launch", "DependentLaunch"),
    "hoist-loads": Lazy("lamella.passes.hoist_loads", "HoistLoads"),
    "check-pipelines": Lazy("lamella.passes.check_pipelines", "CheckPipelines"),
    "limit-registers": Lazy("lamella.passes.limit_registers", "LimitRegisters"),
    "check-coalescing": Lazy("lamella.passes.check_coalescing", "CheckCoalescing"),
    "tile-to-kernel": Lazy("lamella.lowering.tile_to_kernel", "TileToKernel"),
}

FAMILIES: Mapping[str, Lazy[Any]] = {
    name: Lazy(f"lamella.frontends.families.{module}", symbol)
    for name, module, symbol in (
        ("llama", "llama", "LLAMA"),
        ("mistral", "mistral", "MISTRAL"),
        ("qwen2", "qwen2", "QWEN2"),
        ("qwen3", "qwen3", "QWEN3"),
        ("mixtral", "mixtral", "MIXTRAL"),
        ("qwen2_moe", "qwen2_moe", "QWEN2_MOE"),
        ("qwen3_moe", "qwen3_moe", "QWEN3_MOE"),
        ("phi3", "phi3", "PHI3"),
        ("gemma", "gemma", "GEMMA"),
        ("gemma2", "gemma2", "GEMMA2"),
        ("gemma3_text", "gemma3", "GEMMA3"),
        ("smollm3", "smollm3", "SMOLLM3"),
        ("granite", "granite", "GRANITE"),
        ("olmo2", "olmo2", "OLMO2"),
        ("stablelm", "stablelm", "STABLELM"),
        ("gpt_neox", "gpt_neox", "GPT_NEOX"),
        ("gpt2", "gpt2", "GPT2"),
        ("cohere", "cohere", "COHERE"),
        ("bloom", "bloom", "BLOOM"),
        ("bert", "bert", "BERT"),
        ("roberta", "roberta", "ROBERTA"),
        ("xlm-roberta", "roberta", "XLM_ROBERTA"),
    )
}
"""Families of models (`lamella.frontends.family.Family`) by transformers' `model_type`."""

GGUF_ARCHITECTURES: Lazy[Mapping[str, Any]] = Lazy("lamella.frontends.gguf_architectures", "ARCHITECTURES")
"""Architectures of GGUF files by the format's names: which family each is, and how its files differ."""

PASSES: Mapping[str, Lazy[type[ModulePass]]] = {**XDSL_PASSES, **LAMELLA_PASSES}

TARGETS: Mapping[str, Lazy[type[Target]]] = {
    "triton": Lazy("lamella.lowering.print_triton", "TritonTarget"),
}

UNIVERSE = Universe(all_dialects={**DIALECTS}, all_passes={**LAMELLA_PASSES}, all_targets={**TARGETS})
"""What stock `xdsl-opt` finds through the `xdsl.universe` entry point; xDSL brings its own passes itself."""


def context() -> Context:
    """A context that knows every dialect of xDSL and of Lamella, and loads each when it first meets it."""
    ctx = Context()
    for name, factory in {**get_all_dialects(), **DIALECTS}.items():
        ctx.register_dialect(name, factory)
    return ctx


def parse_passes(pipeline: str) -> tuple[ModulePass, ...]:
    """The passes of `a,b{x=1}`. Raises PassError for bad syntax, an unknown pass or a bad option."""
    try:
        specs = tuple(parse_pipeline(pipeline))
    except ArgSpecParseError as error:
        # The message ends with the offending text, an underline and the complaint: only the last says something by itself.
        complaint = str(error).strip().splitlines()[-1].strip()
        raise PassError(f"pass pipeline '{pipeline}' does not parse: {complaint}") from error
    return tuple(build_pass(spec) for spec in specs)


def build_pass(spec: ArgSpec) -> ModulePass:
    """The pass that `spec` names, with its options. Raises PassError."""
    if spec.name not in PASSES:
        raise PassError(f"unknown pass '{spec.name}'", remedy=nearest(spec.name, PASSES))
    cls = PASSES[spec.name]()
    check_options(cls, spec, f"pass '{spec.name}'")
    try:
        return cls.from_spec(spec)
    except ValueError as error:
        raise PassError(str(error), where=f"pass '{spec.name}'") from error


def check_options(cls: type[Any], spec: ArgSpec, where: str) -> None:
    """Compare the options of `spec` with the dataclass fields of `cls`. Raises PassError that names `where`, option and known options."""
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init and field.name != "name"}
    known = ", ".join(name.replace("_", "-") for name in sorted(fields))
    remedy = f"known options: {known}" if fields else "it takes no options"
    given = spec.normalize_parameter_names().parameters
    for name, value in given.items():
        shown = name.replace("_", "-")
        if name not in fields:
            raise PassError(f"unknown option '{shown}'", where=where, remedy=remedy)
        if not _fits(value, hints[name]):
            text = ",".join(str(v) for v in value) or "nothing"
            raise PassError(f"bad value for option '{shown}'", where=where, expected=type_repr(hints[name]), got=text, remedy=remedy)
    for name in sorted(cls.required_fields() & fields.keys() - given.keys()):
        raise PassError(f"option '{name.replace('_', '-')}' is missing", where=where, remedy=remedy)


def _fits(value: ParameterListType, hint: Any) -> bool:
    """Whether xDSL would accept `value` for an option of type `hint`."""
    if not value:
        return NoneType in get_args(hint)
    return (len(value) == 1 and isa(value[0], hint)) or isa(value, hint)

"""A model module goes in; it leaves at the level asked for. `STAGES` is the compiler's table of contents."""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import ClassVar, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.printer import Printer
from xdsl.utils.arg_spec import ArgSpec, ArgSpecConvertible, ParameterListType
from xdsl.utils.exceptions import PassFailedException, VerifyException

from lamella import registry
from lamella.errors import IRError, OutputError, PassError, nearest
from lamella.verification import verify


@dataclass(frozen=True)
class Options(ArgSpecConvertible):
    """What the passes of one bucket are told. A pass option takes the value of the field of the same name."""

    name: ClassVar[str] = "options"

    tokens: int = 1
    """N: tokens of a step, padding included."""
    sequences: int = 1
    """B: sequences of a step."""
    longest_query: int = 1
    """Most tokens one sequence may bring to a step."""
    logit_rows: int = 1
    """R: rows that want logits."""
    blocks: int = 128
    """M: blocks of the cache one sequence may own; the longest context is this times the tokens of a block."""
    advance: bool = False
    """Whether the step also feeds the next one on the device (decode: N = B = R)."""
    length: int = 2048
    """Rows of the RoPE table: positions it serves."""
    arch: str = "sm_90"
    """The device that schedules are chosen for."""
    tuning: str = "off"
    """Where measured schedules are: `auto` (those that come with Lamella, and the user's), a file, or `off`."""
    max_arena: int = 0
    """Most bytes the arena may have; 0: any number."""
    library: str = "off"
    """Whether a library of matrix products computes contractions of many tokens: `auto` (where the cost model says so), `on`, or `off`."""


PassOptions: TypeAlias = "Mapping[str, Mapping[str, int | float | bool | str]]"
"""Pass -> option -> value: what a run sets beyond the fields of `Options`."""


@dataclass(frozen=True)
class PassSpec:
    """A pass by its registered name, and the `Options` fields it is handed."""

    name: str
    options: tuple[str, ...] = ()
    needed: bool = False
    """Whether later passes never do without it. Others may be left out (`fold-constants` together with what makes expressions of weights:
    `fold-norm-scale`, `propagate-layout`): the program is then as correct, and slower."""

    def build(self, options: Options, extra: Mapping[str, int | float | bool | str] | None = None) -> ModulePass:
        """The pass with its options; `extra` ones count more. Raises PassError."""
        parameters: dict[str, ParameterListType] = {o: (getattr(options, o),) for o in self.options}
        parameters.update({name.replace("-", "_"): (value,) for name, value in (extra or {}).items()})
        return registry.build_pass(ArgSpec(self.name, parameters))


@dataclass(frozen=True)
class Stage:
    """A named line of the pipeline: the passes that reach it, and the dialects or single ops that may remain after it."""

    name: str
    passes: tuple[PassSpec, ...]
    legal: frozenset[str]


MODEL = frozenset({"builtin", "func", "transformer"})
# Weights and tables stay ops that name storage until launches take over their references.
TILES = frozenset({"builtin", "func", "tile", "transformer.weight", "transformer.rope_table"})
BUFFERS = frozenset({"builtin", "func", "tile", "host.weight", "host.constant"})

STAGES: tuple[Stage, ...] = (
    Stage(
        "model",
        (
            PassSpec("canonicalize"),
            PassSpec("split-linears"),
            PassSpec("cse"),
            PassSpec("canonical-order"),
            PassSpec("rope-table", ("length",), needed=True),
            PassSpec("propagate-layout"),
            PassSpec("quantize-weights"),
            PassSpec("quantize-activations"),
            PassSpec("lay-scales"),
            PassSpec("fold-norm-scale"),
            PassSpec("fold-constants"),
            PassSpec("cse"),
            PassSpec("dce"),
            PassSpec("canonical-order"),
        ),
        MODEL,
    ),
    Stage(
        "specialized",
        (PassSpec("specialize", ("tokens", "sequences", "longest_query", "logit_rows", "blocks", "advance"), needed=True),),
        MODEL,
    ),
    Stage("tiles", (PassSpec("transformer-to-tile", needed=True), PassSpec("canonicalize"), PassSpec("cse")), TILES),
    Stage(
        "regions",
        (
            PassSpec("choose-implementation", ("arch", "library")),
            PassSpec("commute-row-scale"),
            PassSpec("split-reductions", ("arch",)),
            PassSpec("fuse-regions", ("arch",), needed=True),
            PassSpec("choose-schedule", ("arch", "tuning"), needed=True),
            PassSpec("swap-pairs"),
            PassSpec("in-place"),
        ),
        TILES,
    ),
    Stage("buffers", (PassSpec("bufferize", needed=True),), BUFFERS | {"memref.alloc"}),
    Stage(
        "plan",
        (
            PassSpec("plan-memory", ("max_arena",), needed=True),
            PassSpec("check-plan", ("max_arena",)),
            PassSpec("number-kernels", needed=True),
        ),
        BUFFERS | {"memref.view", "arith.constant"},
    ),
    Stage(
        "kernels",
        (
            PassSpec("tile-to-kernel", needed=True),
            PassSpec("check-pipelines"),
            PassSpec("hoist-loads"),
            PassSpec("dependent-launch"),
            PassSpec("limit-registers", ("arch",)),
            PassSpec("check-coalescing"),
        ),
        frozenset({"builtin", "func", "kernel", "host", "memref.view", "arith.constant"}),
    ),
)


class Instrument:
    """Watches a run. Both hooks do nothing here; an instrument overrides what it wants to see."""

    def after_pass(self, name: str, seconds: float, module: ModuleOp) -> None:
        """Called after each pass with its name and the wall time of the pass alone, verification excluded."""

    def after_stage(self, number: int, stage: Stage, module: ModuleOp) -> None:
        """Called once a stage is reached; `number` counts from 1 in the order of `STAGES`."""


@dataclass(frozen=True)
class Timing(Instrument):
    """Collects (pass, seconds) in the order of execution."""

    passes: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def after_pass(self, name: str, seconds: float, module: ModuleOp) -> None:
        self.passes.append((name, seconds))


@dataclass(frozen=True)
class Snapshots(Instrument):
    """Keeps the text of the IR of each stage, by stage name."""

    ir: dict[str, str] = field(default_factory=dict[str, str])

    def after_stage(self, number: int, stage: Stage, module: ModuleOp) -> None:
        self.ir[stage.name] = text(module)


@dataclass(frozen=True)
class DumpDir(Instrument):
    """Writes the IR of each stage to `NN-stage.mlir` in a folder that exists. Raises OutputError."""

    folder: Path

    def after_stage(self, number: int, stage: Stage, module: ModuleOp) -> None:
        path = self.folder / dump_name(number, stage.name)
        try:
            path.write_text(text(module), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write: {error.strerror}", where=str(path)) from error


def stage_names() -> tuple[str, ...]:
    """The names of the stages, in order."""
    return tuple(stage.name for stage in STAGES)


def optional_passes() -> tuple[str, ...]:
    """The names of the passes that a run may leave out, in the order in which they first run."""
    specs = [spec for stage in STAGES for spec in stage.passes]
    return tuple(dict.fromkeys(spec.name for spec in specs if not spec.needed))


def dump_name(number: int, stage: str) -> str:
    """The file name of a stage's IR: `04-regions.mlir`."""
    return f"{number:02}-{stage}.mlir"


def stage_number(name: str) -> int:
    """The place of a stage in `STAGES`, counted from 1. Raises PassError for an unknown one."""
    names = stage_names()
    if name not in names:
        raise PassError(f"unknown stage '{name}'", remedy=f"stages: {', '.join(names)}")
    return names.index(name) + 1


def text(module: ModuleOp) -> str:
    """The IR as `lamella-opt` prints it; printing what that parses back gives the same text."""
    out = StringIO()
    Printer(stream=out).print_op(module)
    return out.getvalue().rstrip("\n") + "\n"


@contextmanager
def collector_paused() -> Generator[None]:
    """No cyclic garbage is looked for meanwhile; a decorator too.

    The IR of a model is one large graph of live objects. Full collections walk it again and again, which makes passes superlinear in layers
    (a third of the time at 128) and finds little: what passes drop waits until afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@collector_paused()
def run(
    module: ModuleOp,
    options: Options,
    *,
    after: str | None = None,
    until: str | None = None,
    verify_each: bool = False,
    instruments: Sequence[Instrument] = (),
    pass_options: PassOptions | None = None,
    skip: Collection[str] = (),
    ctx: Context | None = None,
) -> ModuleOp:
    """Take `module` from stage `after` (None: as a front end made it) to stage `until` (None: the last); it is changed in place and returned.

    With `verify_each` ops, dominance and legality are checked after every pass, otherwise once at the end.
    `pass_options` sets further options of passes, `skip` names passes that do not run. Raises PassError for an unknown stage, pass or
    option, for a skipped pass that later ones need, and where a pass refuses its input; IRError for IR that breaks a rule.
    """
    extra = pass_options or {}
    known = {spec.name for stage in STAGES for spec in stage.passes}
    for name in sorted({*extra, *skip} - known):
        raise PassError(f"no pass '{name}' in the pipeline", remedy=nearest(name, known))
    for name in sorted(known & set(skip)):
        if name not in optional_passes():
            raise PassError(f"the pipeline cannot lower without '{name}'", remedy=f"can be left out: {', '.join(optional_passes())}")
    first = 0 if after is None else stage_number(after)
    last = len(STAGES) if until is None else stage_number(until)
    if first > last:
        raise PassError(f"stage '{until}' comes before stage '{after}'")
    ctx = registry.context() if ctx is None else ctx
    for number, stage in enumerate(STAGES[first:last], first + 1):
        for spec in stage.passes:
            if spec.name in skip:
                continue
            built = spec.build(options, extra.get(spec.name))
            start = time.perf_counter()
            try:
                apply(ctx, module, built)
            except (PassError, IRError) as error:
                if not skip:
                    raise
                raise PassError(f"the pipeline cannot lower without {', '.join(sorted(skip))}: {error}") from error
            seconds = time.perf_counter() - start
            for instrument in instruments:
                instrument.after_pass(spec.name, seconds, module)
            if verify_each:
                verify(module, stage.legal, stage.name)
        for instrument in instruments:
            instrument.after_stage(number, stage, module)
    if not verify_each and first < last:
        verify(module, STAGES[last - 1].legal, STAGES[last - 1].name)
    return module


def apply(ctx: Context, module: ModuleOp, built: ModulePass) -> None:
    """Run one pass. Raises PassError, which names the pass, where the pass refuses its input."""
    try:
        built.apply(ctx, module)
    except (PassFailedException, VerifyException) as error:
        raise PassError(str(error), where=f"pass '{built.name}'") from error
    except IRError as error:
        raise IRError(str(error), where=f"pass '{built.name}'") from error

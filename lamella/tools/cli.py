"""`lamella generate | embed | inspect | compile | explain | sweep | tune | report`: a model's path goes in; text, a folder of IR and kernels, or tables leave."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamella.errors import LamellaError, PromptError
from lamella.tools.embed_command import embed
from lamella.tools.generate_command import generate
from lamella.tools.options import (
    ActivationsOption,
    ArchOption,
    ArenaOption,
    CacheOption,
    ContextOption,
    DtypeOption,
    FitOption,
    HeadOption,
    JsonOption,
    Library,
    LibraryOption,
    ModelArgument,
    QuantizeOption,
    SeedOption,
    SetOption,
    Storage,
    TokensOption,
    buckets_of,
    byte_count,
    numbers,
    pass_options_of,
    progress,
)
from lamella.tools.quantize_commands import perplexity
from lamella.tools.quantize_commands import quantize as quantize_command

if TYPE_CHECKING:
    from lamella.api import Program
    from lamella.pipeline import PassOptions
    from lamella.tools.cross_compile import KernelResources

app = typer.Typer(
    name="lamella",
    help="A compiler for LLM inference: checkpoint to IR to Triton to text.",
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


app.command()(generate)
app.command()(embed)
app.command("quantize")(quantize_command)
app.command()(perplexity)


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """A compiler for LLM inference: checkpoint to IR to Triton to text."""


@app.command()
def inspect(
    model: ModelArgument,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens in each cache; by default the longest, at most 4096.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="B", help="Sequences at once.")] = 1,
    as_json: JsonOption = False,
    arch: Annotated[str | None, typer.Option(metavar="sm_NN", help="The GPU whose floor is shown; by default sm_90.")] = None,
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
) -> None:
    """Print what a model is, whether it runs and why not, the memory it takes and the floor of a token. Loads no weights."""
    from lamella.tools.inspect_command import inspection_text

    with progress("reading"):
        stored = Storage(quantize, quantize_head, activations, kv_cache)
        text = inspection_text(model, arch=arch, dtype=dtype, context=context, batch=batch, as_json=as_json, storage=stored)
    print(text)


@app.command("compile")
def compile_(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; it appears complete or not at all.")],
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
    arch: ArchOption = None,
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
    max_arena: ArenaOption = None,
    library: LibraryOption = "auto",
    settings: SetOption = None,
    without: Annotated[list[str] | None, typer.Option("--without", metavar="PASS", help="Leave a pass out; may be repeated.")] = None,
    fit: FitOption = False,
    time_passes: Annotated[bool, typer.Option("--time-passes", help="Print the seconds of each pass.")] = False,
) -> None:
    """Write the IR of each stage, the Triton sources and the manifest. Needs no GPU."""
    from lamella.output import output_folder
    from lamella.pipeline import stage_number
    from lamella.tools.explain import splits
    from lamella.tools.report import as_manifest, kernel_table, timing_table

    if until is not None:
        stage_number(until)
    most, options = byte_count(max_arena, "--max-arena"), pass_options_of(settings)
    stored = Storage(quantize, quantize_head, activations, kv_cache)
    with output_folder(output) as folder:
        program = _compile(
            model, arch, dtype, tokens, max_context, random_weights, until, options, most, without or (), fit, stored, library
        )
        program.save(folder)
        figures = _figures(program, arch) if program.kernels and arch is not None else None
    if time_passes:
        print(timing_table(program.timings), end="\n\n")
    if program.kernels:
        print(kernel_table(as_manifest(program.manifest), figures), end="\n\n")
    for paragraph in splits(program.ledger):
        print(paragraph, end="\n\n")
    stages, kernels = len(program.stages), len(program.kernels)
    print(f"wrote {output}: IR of {stages} stage{'s' * (stages != 1)}, {kernels} kernel{'s' * (kernels != 1)}")


@app.command()
def explain(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="As for the other commands; not with --diff.")] = None,
    why_not: Annotated[
        tuple[str, str] | None,
        typer.Option("--why-not", metavar="OP_A OP_B", help="Why these two ops are not one launch, or why they are."),
    ] = None,
    diff: Annotated[tuple[Path, Path] | None, typer.Option(metavar="DIR_A DIR_B", help="Compare two folders that compile wrote.")] = None,
    settings: SetOption = None,
    fit: FitOption = False,
    as_json: JsonOption = False,
    arch: ArchOption = None,
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
    library: LibraryOption = "auto",
) -> None:
    """Print what fused, what did not, and why, for decode or for the buckets of --tokens. Identical layers share a line."""
    from lamella.tools.explain import explain as explanation
    from lamella.tools.ledger_diff import Package, diff_text

    if diff is not None:
        print(diff_text(*(Package.read(folder) for folder in diff)))
        return
    if model is None:
        raise PromptError("no model", where="lamella explain", expected="MODEL, or --diff DIR_A DIR_B")
    options, stored = pass_options_of(settings), Storage(quantize, quantize_head, activations, kv_cache)
    if why_not is not None:
        _explain_pair(
            model,
            why_not,
            tokens,
            options,
            as_json,
            arch=arch,
            dtype=dtype,
            max_context=max_context,
            random_weights=random_weights,
            **asdict(stored),
            library=library,
        )
        return
    until = None if fit else "plan"
    program = _compile(
        model, arch, dtype, tokens or "1", max_context, random_weights, until, options, fit=fit, storage=stored, library=library
    )
    print(json.dumps(list(program.ledger)) if as_json else explanation(program.ledger))


def _explain_pair(model: str, names: tuple[str, str], tokens: str | None, options: PassOptions, as_json: bool, **settings: Any) -> None:
    """Answers `explain --why-not` for one bucket."""
    from lamella import api
    from lamella.passes.fusion_questions import Questions
    from lamella.tools.why_not import answer_text

    (bucket,) = buckets_of(tokens or "1", most=1)
    with progress("compiling"):
        fusion = api.decide_fusion(model, bucket=bucket, pass_options=options, **settings)
    answer = Questions(fusion).ask(*names)
    print(json.dumps(answer.as_dict()) if as_json else answer_text(answer))


@app.command()
def sweep(
    model: ModelArgument,
    over: Annotated[str, typer.Option(metavar="PASS.OPTION=VALUES", help="0..6, or values with commas between them.")],
    context: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens in each cache; by default the longest context.")] = None,
    as_json: JsonOption = False,
    arch: ArchOption = None,
    dtype: DtypeOption = "auto",
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
) -> None:
    """Compile once for each value of an option of a pass, and print launches, kernels, bytes moved and arena; with --arch also registers
    and spills, with a GPU also the time of a decode step."""
    from lamella import api
    from lamella.runtime.executor import resolve
    from lamella.tools.sweep import Axis, sweep_table
    from lamella.tools.sweep import sweep as rows_of_sweep

    axis = Axis.parse(over)
    opened = api.open_model(model, random_weights=random_weights)
    with progress("compiling") as show:
        rows = rows_of_sweep(
            opened,
            axis,
            buckets=buckets_of(tokens or "1"),
            dtype=dtype,
            max_context=max_context,
            context=context,
            arch=arch,
            gpu=resolve("auto", "auto")[0] == "cuda",
            show=show,
        )
    print(json.dumps([row.as_dict() for row in rows]) if as_json else sweep_table(axis, rows))


@app.command()
def tune(
    model: ModelArgument,
    tokens: TokensOption = "1",
    sequences: Annotated[str, typer.Option(metavar="B,…", help="Also decode of so many sequences at once, one bucket each.")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File of measurements to extend; by default your own.")
    ] = None,
    budget_seconds: Annotated[float | None, typer.Option(min=0, metavar="S", help="Begin no further region after so long.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure also what was measured before.")] = False,
    in_step: Annotated[
        bool,
        typer.Option(
            "--in-step", help="Decide by the time of the whole step, in which the fastest of each kernel are tried; loads weights."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be measured. Needs no GPU.")] = False,
    as_json: JsonOption = False,
    arch: Annotated[str | None, typer.Option(metavar="sm_NN", help="Architecture of the GPU; by default that of this machine's.")] = None,
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
) -> None:
    """Time the schedules of each kernel on this GPU, and keep the fastest for all later compilations. What was measured stays so."""
    from lamella.tools.tune_command import run_tune

    with progress("compiling") as show:
        text = run_tune(
            model,
            tokens=buckets_of(tokens or "1"),
            sequences=numbers(sequences, "--sequences"),
            arch=arch,
            output=output,
            dtype=dtype,
            max_context=max_context,
            random_weights=random_weights,
            storage=Storage(quantize, quantize_head, activations, kv_cache),
            budget_seconds=budget_seconds,
            again=again,
            in_step=in_step,
            dry_run=dry_run,
            as_json=as_json,
            show=show,
        )
    print(text)


@app.command()
def report(
    model: ModelArgument,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write report.json and pictures (SVG) of arena and layer here.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, metavar="N", help="Tokens in each cache; by default the longest context.")] = None,
    as_json: JsonOption = False,
    arch: ArchOption = None,
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    max_arena: ArenaOption = None,
    random_weights: SeedOption = None,
    library: LibraryOption = "auto",
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A result of `python -m benchmarks kernels` or `all`: what kernels took.")
    ] = None,
) -> None:
    """Print memory, kernels, the work of a step and what bounds it; with --arch also registers, spills, shared memory and occupancy."""
    from lamella.output import output_folder
    from lamella.tools.measured import read_measured
    from lamella.tools.report import as_manifest
    from lamella.tools.report_files import FILES, ModelReport

    most, stored = byte_count(max_arena, "--max-arena"), Storage(quantize, quantize_head, activations, kv_cache)
    program = _compile(model, arch, dtype, tokens, max_context, random_weights, None, max_arena=most, storage=stored, library=library)
    manifest = as_manifest(program.manifest)
    if context is not None and context > manifest.max_context:
        raise PromptError("bad context", where="--context", expected=f"1 to {manifest.max_context}, the longest one", got=str(context))
    longest, figures = context or manifest.max_context, None if arch is None else _figures(program, arch)
    took = {} if measured is None else read_measured(measured, manifest)
    made = ModelReport(manifest, program.kernels, longest, program.accesses, figures, took)
    if output is not None:
        with output_folder(output, FILES) as folder:
            made.write(folder)
    print(json.dumps(made.json()) if as_json else made.text())
    if output is not None and not as_json:
        print(f"wrote {output}")


def _compile(
    model: str,
    arch: str | None,
    dtype: str,
    tokens: str | None,
    max_context: int | None,
    random_weights: int | None,
    until: str | None,
    pass_options: PassOptions | None = None,
    max_arena: int = 0,
    skip: Sequence[str] = (),
    fit: bool = False,
    storage: Storage | None = None,
    library: Library = "auto",
) -> Program:
    """Compile under a progress line."""
    from lamella import api

    with progress("compiling"):
        return api.compile(
            model,
            arch=arch,
            dtype=dtype,
            **asdict(storage or Storage()),
            buckets=None if tokens is None else buckets_of(tokens),
            max_context=max_context,
            random_weights=random_weights,
            until=until,
            pass_options=pass_options,
            max_arena=max_arena,
            skip=skip,
            fit_registers=fit,
            library=library,
        )


def _figures(program: Program, arch: str) -> dict[str, KernelResources]:
    """Registers, spills and shared memory by kernel, compiled for `arch` with no GPU."""
    from lamella.tools.cross_compile import cross_compile

    with progress(f"compiling {len(program.kernels)} kernels for {arch}"):
        return dict(zip(program.kernels, cross_compile(program.kernels, arch), strict=True))


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0; 2 after a mistake of the user and 1 after a fault of Lamella, each one line on stderr."""
    given = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in given
    # The flag may stand anywhere; the commands do not declare it.
    given = [arg for arg in given if arg != "--debug"]
    try:
        return app(given or ["--help"], prog_name="lamella", standalone_mode=False) or 0
    except (LamellaError, typer.TyperException) as error:
        if debug:
            traceback.print_exc()
        text = str(error) if isinstance(error, LamellaError) else " ".join(error.format_message().replace("Value error, ", "").split())
        print(f"lamella: error: {text}", file=sys.stderr)
        return 2
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            raise
        print(f"lamella: internal error: {type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

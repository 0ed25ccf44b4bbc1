"""`lamella generate | inspect | compile | explain | sweep | tune | report`: a model's path goes in; text, a folder of IR and kernels, or tables leave."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from lamella.errors import LamellaError, PromptError
from lamella.runtime.sampling_parameters import SamplingParameters

if TYPE_CHECKING:
    from lamella.api import Program
    from lamella.pipeline import PassOptions
    from lamella.tools.cross_compile import KernelResources

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantization = Literal["none", "int8", "int4", "keep"]
Executor = Literal["auto", "cuda", "interpret", "reference"]

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face directory, a .gguf file, or a bare config.json.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Element type of weights, activations and cache.")]
QuantizeOption = Annotated[Quantization, typer.Option(help="Weights of linears in few bits; keep: packed as a GGUF file has them.")]
SeedOption = Annotated[int | None, typer.Option(metavar="SEED", help="Random weights, for a bare config.json.")]
ArchOption = Annotated[str | None, typer.Option(metavar="sm_NN", help="Compile the kernels for this GPU and show registers.")]
TokensOption = Annotated[str | None, typer.Option(metavar="N,…", help="Tokens of a step, one bucket each.")]
ContextOption = Annotated[int | None, typer.Option(min=1, help="Longest context, prompt and answer together.")]
FitOption = Annotated[
    bool,
    typer.Option(
        "--fit-registers", help="Compile the kernels for --arch: those that spill get smaller schedules, or are taken apart. Needs no GPU."
    ),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="PASS.OPTION=VALUE", help="An option of a pass; may be repeated.")]
ArenaOption = Annotated[
    str | None, typer.Option("--max-arena", metavar="BYTES", help="Most memory for activations of a step: bytes, or with KiB, MiB, GiB.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_NEW_TOKENS = 128

app = typer.Typer(
    name="lamella",
    help="A compiler for LLM inference: checkpoint to IR to Triton to text.",
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """A compiler for LLM inference: checkpoint to IR to Triton to text."""


@app.command()
def generate(
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    prompt_ids: Annotated[str | None, typer.Option(metavar="1,2,3", help="Token ids to continue, in place of text.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many tokens; by default 128, or what the context leaves.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Do not stop at the model's end token.")] = False,
    device: Annotated[Device, typer.Option(help="Where to run.")] = "auto",
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    executor: Annotated[Executor, typer.Option(help="How to run.")] = "auto",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0: among all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest tokens that make up this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="STR", help="Stop before this text; may be repeated.")] = None,
    as_json: JsonOption = False,
    random_weights: SeedOption = None,
    max_context: ContextOption = None,
    max_arena: ArenaOption = None,
    weight_cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that keeps transformed weights, so that the next start is faster.")
    ] = None,
) -> None:
    """Continue a prompt. Text is printed as it is made; with --json one object is printed at the end."""
    given = _prompt(prompt, prompt_ids, chat)
    # Whatever can be wrong with the request is found before the work of compiling and loading begins.
    SamplingParameters(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    most = _bytes(max_arena, "--max-arena")
    if "" in (stop or ()):
        raise PromptError("a stop string is empty", where="--stop", expected="at least one character")
    from lamella import api
    from lamella.runtime.executor import resolve
    from lamella.runtime.generate import token_limit

    resolve(executor, device)
    with _progress("compiling") as show:
        opened = api.open_model(model, random_weights=random_weights)
        ids = api.encode(opened, given, chat=chat)
        limit = token_limit(ids, max_new_tokens, opened.config.vocabulary, api.context_of(opened, max_context))
        if stop and opened.tokenizer is None:
            raise PromptError("stop strings need a tokenizer", where=model, expected="tokenizer.json beside config.json")
        loaded = api.load(
            opened,
            device=device,
            dtype=dtype,
            quantize=quantize,
            executor=executor,
            max_context=max_context,
            weight_cache=weight_cache,
            max_arena=most,
            progress=lambda done, total, weight: show(f"loading weights, {done} of {total}"),
            kernel_progress=lambda done, total, kernel: show(f"compiling kernels, {done} of {total}"),
        )
    result = loaded.generate(
        ids,
        max_new_tokens=max_new_tokens or min(DEFAULT_NEW_TOKENS, limit),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        on_text=None if as_json else _write,
    )
    if as_json:
        fields = {"prompt_ids": result.prompt_ids, "output_ids": result.output_ids, "text": result.text, "stop_reason": result.stop_reason}
        print(json.dumps({**fields, "timings": dict(result.timings)}, ensure_ascii=False))
        return
    # A model without a tokenizer streams no text; its ids are its answer.
    print("" if result.text else ",".join(map(str, result.output_ids)))
    if sys.stderr.isatty():
        rate = result.timings.get("tokens_per_second")
        speed = f", {rate:.1f} tokens/s" if rate else ""
        Console(stderr=True).print(f"[dim]{len(result.output_ids)} tokens{speed}, stopped by {result.stop_reason}[/dim]")


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
) -> None:
    """Print what a model is, whether it runs and why not, the memory it takes and the floor of a token. Loads no weights."""
    from lamella.tools.inspect_command import inspection_text

    with _progress("reading"):
        text = inspection_text(model, arch=arch, dtype=dtype, context=context, batch=batch, as_json=as_json)
    print(text)


@app.command("compile")
def compile_(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; it appears complete or not at all.")],
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
    arch: ArchOption = None,
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
    max_arena: ArenaOption = None,
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
    most, options = _bytes(max_arena, "--max-arena"), _pass_options(settings)
    with output_folder(output) as folder:
        program = _compile(model, arch, dtype, tokens, max_context, random_weights, until, options, most, without or (), fit, quantize)
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
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
) -> None:
    """Print what fused, what did not, and why, for decode or for the buckets of --tokens. Identical layers share a line."""
    from lamella.tools.explain import explain as explanation
    from lamella.tools.ledger_diff import Package, diff_text

    if diff is not None:
        print(diff_text(*(Package.read(folder) for folder in diff)))
        return
    if model is None:
        raise PromptError("no model", where="lamella explain", expected="MODEL, or --diff DIR_A DIR_B")
    options = _pass_options(settings)
    if why_not is not None:
        _explain_pair(
            model, why_not, tokens, options, as_json, arch=arch, dtype=dtype, max_context=max_context, random_weights=random_weights
        )
        return
    program = _compile(model, arch, dtype, tokens or "1", max_context, random_weights, None if fit else "plan", options, fit=fit)
    print(json.dumps(list(program.ledger)) if as_json else explanation(program.ledger))


def _explain_pair(model: str, names: tuple[str, str], tokens: str | None, options: PassOptions, as_json: bool, **settings: Any) -> None:
    """Answers `explain --why-not` for one bucket."""
    from lamella import api
    from lamella.passes.fusion_questions import Questions
    from lamella.tools.why_not import answer_text

    (bucket,) = _buckets(tokens or "1", most=1)
    with _progress("compiling"):
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
    with _progress("compiling") as show:
        rows = rows_of_sweep(
            opened,
            axis,
            buckets=_buckets(tokens or "1"),
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be measured. Needs no GPU.")] = False,
    as_json: JsonOption = False,
    arch: Annotated[str | None, typer.Option(metavar="sm_NN", help="Architecture of the GPU; by default that of this machine's.")] = None,
    dtype: DtypeOption = "auto",
    max_context: ContextOption = None,
    random_weights: SeedOption = None,
) -> None:
    """Time the schedules of each kernel on this GPU, and keep the fastest for all later compilations. What was measured stays so."""
    from lamella.tools.tune_command import run_tune

    with _progress("compiling") as show:
        text = run_tune(
            model,
            tokens=_buckets(tokens or "1"),
            sequences=_numbers(sequences, "--sequences"),
            arch=arch,
            output=output,
            dtype=dtype,
            max_context=max_context,
            random_weights=random_weights,
            budget_seconds=budget_seconds,
            again=again,
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
    tokens: TokensOption = None,
    max_context: ContextOption = None,
    max_arena: ArenaOption = None,
    random_weights: SeedOption = None,
) -> None:
    """Print memory, kernels, the work of a step and what bounds it; with --arch also registers, spills, shared memory and occupancy."""
    from lamella.output import output_folder
    from lamella.tools.report import as_manifest
    from lamella.tools.report_files import FILES, ModelReport

    most = _bytes(max_arena, "--max-arena")
    program = _compile(model, arch, dtype, tokens, max_context, random_weights, None, max_arena=most, quantize=quantize)
    manifest = as_manifest(program.manifest)
    if context is not None and context > manifest.max_context:
        raise PromptError("bad context", where="--context", expected=f"1 to {manifest.max_context}, the longest one", got=str(context))
    longest, figures = context or manifest.max_context, None if arch is None else _figures(program, arch)
    made = ModelReport(manifest, program.kernels, longest, program.accesses, figures)
    if output is not None:
        with output_folder(output, FILES) as folder:
            made.write(folder)
    print(json.dumps(made.json()) if as_json else made.text())
    if output is not None and not as_json:
        print(f"wrote {output}")


def _prompt(text: str | None, ids: str | None, chat: bool) -> str | list[int]:
    """The one prompt that was given. Raises PromptError."""
    if (text is None) == (ids is None):
        raise PromptError("give either --prompt or --prompt-ids", got="both" if text is not None else "neither")
    if text is not None:
        return text
    if chat:
        raise PromptError("--chat needs text", got="--prompt-ids", remedy="use --prompt")
    return list(_numbers(ids or "", "--prompt-ids"))


def _numbers(text: str, option: str) -> tuple[int, ...]:
    """`1,2,3` as integers. Raises PromptError."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise PromptError("bad list", where=option, expected="integers with commas between them", got=f"'{text}'") from error


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
    quantize: Quantization = "none",
) -> Program:
    """Compile under a progress line."""
    from lamella import api

    with _progress("compiling"):
        return api.compile(
            model,
            arch=arch,
            dtype=dtype,
            quantize=quantize,
            buckets=None if tokens is None else _buckets(tokens),
            max_context=max_context,
            random_weights=random_weights,
            until=until,
            pass_options=pass_options,
            max_arena=max_arena,
            skip=skip,
            fit_registers=fit,
        )


def _bytes(text: str | None, option: str) -> int:
    """`64MiB`, `512KiB`, `1GiB` or a plain number of bytes; 0 for None. Raises PromptError."""
    if text is None:
        return 0
    found = re.fullmatch(r"(\d+)(KiB|MiB|GiB|)", text.strip())
    size = int(found[1]) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]] if found else 0
    if size < 1:
        raise PromptError("bad number of bytes", where=option, expected="at least 1, alone or with KiB, MiB or GiB", got=f"'{text}'")
    return size


def _buckets(tokens: str, most: int | None = None) -> tuple[int, ...]:
    """The buckets of --tokens. Raises PromptError."""
    buckets = tuple(dict.fromkeys(_numbers(tokens, "--tokens")))
    if min(buckets, default=0) < 1:
        raise PromptError("bad numbers of tokens", where="--tokens", expected="at least one, each at least 1", got=f"'{tokens}'")
    if most is not None and len(buckets) > most:
        raise PromptError("too many buckets", where="--tokens", expected=f"at most {most}", got=f"'{tokens}'")
    return buckets


def _pass_options(settings: list[str] | None) -> PassOptions:
    """`--set PASS.OPTION=VALUE`, each. Raises PassError."""
    from lamella.tools.sweep import Axis

    options: dict[str, dict[str, int | float | bool | str]] = {}
    for text in settings or ():
        axis = Axis.parse(text, one=True)
        options.setdefault(axis.name, {})[axis.option] = axis.values[0]
    return options


def _figures(program: Program, arch: str) -> dict[str, KernelResources]:
    """Registers, spills and shared memory by kernel, compiled for `arch` with no GPU."""
    from lamella.tools.cross_compile import cross_compile

    with _progress(f"compiling {len(program.kernels)} kernels for {arch}"):
        return dict(zip(program.kernels, cross_compile(program.kernels, arch), strict=True))


@contextmanager
def _progress(what: str) -> Generator[Callable[[str], None]]:
    """A line with a spinner on stderr, where that is a terminal; yields a function that changes its text."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(f"{what}…") as status:
        yield lambda text: status.update(f"{text}…")


def _write(text: str) -> None:
    print(text, end="", flush=True)


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

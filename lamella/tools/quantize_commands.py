"""`lamella quantize` and `lamella perplexity`: a model's path goes in; a folder with packed weights and a table of errors, or a number, leave."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lamella.errors import OutputError, PromptError
from lamella.tools.options import (
    ActivationsOption,
    CacheOption,
    ContextOption,
    Device,
    DtypeOption,
    HeadOption,
    JsonOption,
    ModelArgument,
    QuantizeOption,
    SeedOption,
    progress,
)

Kind = Literal["int8", "int4", "fp8"]
HeadKind = Literal["int8", "int4", "fp8", "none"]

CALIBRATION = "calibration.txt"
"""Text that comes with the package: some prose, numbers, code and languages."""
WINDOW = 512
"""Tokens that are predicted from one another."""
ROWS = 256
"""Tokens of a launch whose logits are all computed."""


def quantize(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="New folder; it appears complete or not at all.")],
    kind: Annotated[Kind, typer.Option(help="How the weights of linears are stored.")] = "int8",
    group: Annotated[int, typer.Option(metavar="N", help="Columns that share a scale; 0: whole rows, 64 for int4.")] = 0,
    clip: Annotated[bool, typer.Option("--clip/--no-clip", help="Search the ranges of groups for the least error of products.")] = True,
    head: Annotated[HeadKind, typer.Option(help="The same for the linear that makes the logits, and embeddings tied to it.")] = "int8",
    embed: Annotated[HeadKind, typer.Option(help="The same for embeddings of their own.")] = "none",
    skip: Annotated[str, typer.Option(metavar="PATTERNS", help="Linears that keep their floats: 'layers.0.* *.down'.")] = "",
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text that the float model reads, to see which errors count; by default a short one."),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the error of each linear here, as JSON.")] = None,
    as_json: JsonOption = False,
    random_weights: SeedOption = None,
) -> None:
    """Write a model with its weights in few bits, which the other commands open as any other. Shows how far the products of each linear are off."""
    from lamella import api
    from lamella.output import output_folder
    from lamella.tools.quantize_checkpoint import Settings, quantize_checkpoint
    from lamella.tools.quantize_report import report_text

    if report is not None and not report.absolute().parent.is_dir():
        raise OutputError("cannot write: there is no such folder", where=str(report))
    opened = api.open_model(model, random_weights=random_weights)
    if calibration is not None:
        ids = opened.require_tokenizer().encode(read_text(calibration, "--calibration"))
    elif opened.tokenizer is not None:
        ids = opened.tokenizer.encode(files("lamella.tools").joinpath(CALIBRATION).read_text(encoding="utf-8"))
    else:
        ids = list[int]()
    settings = Settings(kind, group, head, embed, skip, clip)
    with output_folder(output, ours=()) as folder, progress("quantizing") as show:
        made = quantize_checkpoint(opened, folder, settings, ids, lambda done, total, name: show(f"quantizing {name}, {done} of {total}"))
    text = json.dumps(made.json())
    if report is not None:
        write_text(report, text)
    print(text if as_json else f"{report_text(made)}\n\nwrote {output}")


def perplexity(
    model: ModelArgument,
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="The text to predict, UTF-8.")],
    window: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens that are predicted from one another.")] = WINDOW,
    device: Annotated[Device, typer.Option(help="Where to run.")] = "auto",
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
    max_context: ContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print how well a model predicts a text: exp of the mean negative log likelihood of its tokens. Lower is better, 1 is certainty."""
    from lamella import api
    from lamella.runtime.perplexity import perplexity as measured

    content = read_text(text, "--text")
    with progress("compiling") as show:
        opened = api.open_model(model)
        ids = opened.require_tokenizer().encode(content)
        context = min(window, api.context_of(opened, max_context))
        rows = min(ROWS, context)
        loaded = api.load(
            opened,
            device=device,
            dtype=dtype,
            quantize=quantize,
            quantize_head=quantize_head,
            activations=activations,
            kv_cache=kv_cache,
            max_context=context,
            buckets=[api.Shape.decode(), api.Shape(rows, 1, rows, rows)],
            progress=lambda done, total, weight: show(f"loading weights, {done} of {total}"),
            kernel_progress=lambda done, total, kernel: show(f"compiling kernels, {done} of {total}"),
        )
        found = measured(loaded.session, ids, context, lambda done, total: show(f"reading, {done} of {total}"))
    fields: dict[str, Any] = {"perplexity": found.value, "mean": found.mean, "predicted": found.predicted, "windows": found.windows}
    many = f"{found.windows} window{'s' * (found.windows != 1)} of {context}"
    print(json.dumps(fields) if as_json else f"perplexity {found.value:.4f}, {found.predicted} tokens in {many}")


def read_text(path: Path, option: str) -> str:
    """The content of a text file. Raises PromptError for one that cannot be read, is no UTF-8, or is empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"the text cannot be read: {error.strerror}", where=f"{option} {path}") from error
    except UnicodeDecodeError as error:
        raise PromptError("the text is no UTF-8", where=f"{option} {path}", got=f"byte {error.object[error.start]:#04x}") from error
    if not text:
        raise PromptError("the text is empty", where=f"{option} {path}")
    return text


def write_text(path: Path, text: str) -> None:
    """Raises OutputError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror}", where=str(path)) from error

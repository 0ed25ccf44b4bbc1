"""`lamella embed`: an encoder and texts go in; one vector a text leaves, a line each or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lamella.errors import PromptError
from lamella.tools.options import ContextOption, Device, DtypeOption, Executor, JsonOption, ModelArgument, SeedOption, progress

Pooling = Literal["auto", "mean", "cls", "max"]


def embed(
    model: ModelArgument,
    text: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A text; may be repeated.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with a text on each line.")] = None,
    pooling: Annotated[Pooling, typer.Option(help="How vectors of tokens become one; auto: as the model's files say.")] = "auto",
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Divide by the length; by default as the model's files say.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = "auto",
    dtype: DtypeOption = "auto",
    executor: Annotated[Executor, typer.Option(help="How to run.")] = "auto",
    as_json: JsonOption = False,
    random_weights: SeedOption = None,
    max_context: ContextOption = None,
) -> None:
    """Embed texts with an encoder such as BERT. A line of numbers a text; with --json one object."""
    texts = texts_of(text, file)
    from lamella import api
    from lamella.runtime.executor import resolve

    resolve(executor, device)
    with progress("compiling") as show:
        opened = api.open_model(model, random_weights=random_weights)
        if opened.config.causal:
            raise PromptError(
                "this model generates text and embeds none", where=model, expected="an encoder", remedy="use lamella generate"
            )
        opened.require_tokenizer()
        loaded = api.load(
            opened,
            device=device,
            dtype=dtype,
            executor=executor,
            max_context=max_context,
            progress=lambda done, total, weight: show(f"loading weights, {done} of {total}"),
            kernel_progress=lambda done, total, kernel: show(f"compiling kernels, {done} of {total}"),
        )
    embedded: Any = loaded.embed(texts, pooling=None if pooling == "auto" else pooling, normalize=normalize)
    vectors: list[list[float]] = embedded.tolist()
    if as_json:
        print(json.dumps({"texts": texts, "embeddings": vectors}, ensure_ascii=False))
        return
    for vector in vectors:
        print(" ".join(f"{number:.7g}" for number in vector))


def texts_of(given: list[str] | None, file: Path | None) -> list[str]:
    """The texts of the options, then those of the file's lines that are not empty. Raises PromptError where there are none."""
    texts = list(given or ())
    if file is not None:
        try:
            texts += [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise PromptError(f"the file cannot be read: {reason}", where=str(file)) from error
    if not texts:
        raise PromptError("there is nothing to embed", expected="--text, or --file with a text on each line")
    return texts

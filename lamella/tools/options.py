"""What commands share: types of options, texts of options that become values, and the line that shows progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from lamella.errors import PromptError

if TYPE_CHECKING:
    from lamella.pipeline import PassOptions

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantization = Literal["none", "int8", "int4", "fp8", "keep"]
Head = Literal["int8", "int4", "fp8", "none", "same"]
Activations = Literal["none", "int8", "fp8"]
KvCache = Literal["auto", "fp8"]
Executor = Literal["auto", "cuda", "interpret", "reference"]
Library = Literal["auto", "off", "on"]

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face directory, a .gguf file, or a bare config.json.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Element type of weights, activations and cache.")]
QuantizeOption = Annotated[Quantization, typer.Option(help="Weights of linears in few bits; keep: packed as a GGUF file has them.")]
HeadOption = Annotated[
    Head | None,
    typer.Option(help="The same for the linear that makes the logits, and embeddings tied to it; same: as the others. By default int8."),
]
ActivationsOption = Annotated[
    Activations,
    typer.Option(help="What linears read in eight bits too, a scale a row, where their weights are of that kind with a scale a row."),
]
CacheOption = Annotated[KvCache, typer.Option(help="Keys and values as float8 with a scale a head, in half the memory; auto: as --dtype.")]
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
LibraryOption = Annotated[
    Library, typer.Option("--library", help="Whether cuBLAS computes linears of many tokens; auto: where the cost model finds it faster.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Storage:
    """How weights and cache lie in memory: arguments of `api.load` and `api.compile` by their names."""

    quantize: Quantization = "none"
    quantize_head: Head | None = None
    activations: Activations = "none"
    kv_cache: KvCache = "auto"


def prompt_of(text: str | None, ids: str | None, chat: bool) -> str | list[int]:
    """The one prompt that was given. Raises PromptError."""
    if (text is None) == (ids is None):
        raise PromptError("give either --prompt or --prompt-ids", got="both" if text is not None else "neither")
    if text is not None:
        return text
    if chat:
        raise PromptError("--chat needs text", got="--prompt-ids", remedy="use --prompt")
    return list(numbers(ids or "", "--prompt-ids"))


def numbers(text: str, option: str) -> tuple[int, ...]:
    """`1,2,3` as integers. Raises PromptError."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise PromptError("bad list", where=option, expected="integers with commas between them", got=f"'{text}'") from error


def byte_count(text: str | None, option: str) -> int:
    """`64MiB`, `512KiB`, `1GiB` or a plain number of bytes; 0 for None. Raises PromptError."""
    if text is None:
        return 0
    found = re.fullmatch(r"(\d+)(KiB|MiB|GiB|)", text.strip())
    size = int(found[1]) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]] if found else 0
    if size < 1:
        raise PromptError("bad number of bytes", where=option, expected="at least 1, alone or with KiB, MiB or GiB", got=f"'{text}'")
    return size


def buckets_of(tokens: str, most: int | None = None) -> tuple[int, ...]:
    """The buckets of --tokens. Raises PromptError."""
    buckets = tuple(dict.fromkeys(numbers(tokens, "--tokens")))
    if min(buckets, default=0) < 1:
        raise PromptError("bad numbers of tokens", where="--tokens", expected="at least one, each at least 1", got=f"'{tokens}'")
    if most is not None and len(buckets) > most:
        raise PromptError("too many buckets", where="--tokens", expected=f"at most {most}", got=f"'{tokens}'")
    return buckets


def pass_options_of(settings: list[str] | None) -> PassOptions:
    """`--set PASS.OPTION=VALUE`, each. Raises PassError."""
    from lamella.tools.sweep import Axis

    options: dict[str, dict[str, int | float | bool | str]] = {}
    for text in settings or ():
        axis = Axis.parse(text, one=True)
        options.setdefault(axis.name, {})[axis.option] = axis.values[0]
    return options


@contextmanager
def progress(what: str) -> Generator[Callable[[str], None]]:
    """A line with a spinner on stderr, where that is a terminal; yields a function that changes its text."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(f"{what}…") as status:
        yield lambda text: status.update(f"{text}…")

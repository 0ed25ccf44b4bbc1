"""`lamella generate`: a model and a prompt go in; text, or an object with what was made and how long it took, leaves."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lamella.errors import PromptError
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.tools.options import (
    ActivationsOption,
    ArenaOption,
    CacheOption,
    ContextOption,
    Device,
    DtypeOption,
    Executor,
    HeadOption,
    JsonOption,
    LibraryOption,
    ModelArgument,
    QuantizeOption,
    SeedOption,
    byte_count,
    progress,
    prompt_of,
)

DEFAULT_NEW_TOKENS = 128


def generate(
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    prompt_ids: Annotated[str | None, typer.Option(metavar="1,2,3", help="Token ids to continue, in place of text.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="With --chat: the system prompt.")] = None,
    tools: Annotated[Path | None, typer.Option(metavar="FILE", help="With --chat: functions to offer, a JSON list.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many tokens; by default 128, or what the context leaves.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Do not stop at the model's end token.")] = False,
    device: Annotated[Device, typer.Option(help="Where to run.")] = "auto",
    dtype: DtypeOption = "auto",
    quantize: QuantizeOption = "none",
    quantize_head: HeadOption = None,
    activations: ActivationsOption = "none",
    kv_cache: CacheOption = "auto",
    executor: Annotated[Executor, typer.Option(help="How to run.")] = "auto",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0: among all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest tokens that make up this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Sample among tokens at least so likely, as a share of the likeliest.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divide logits of tokens that the text has by this, multiply negative ones; 1: leave them.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="STR", help="Stop before this text; may be repeated.")] = None,
    as_json: JsonOption = False,
    random_weights: SeedOption = None,
    max_context: ContextOption = None,
    max_arena: ArenaOption = None,
    library: LibraryOption = "auto",
    weight_cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that keeps transformed weights, so that the next start is faster.")
    ] = None,
    steps_per_replay: Annotated[
        int | None,
        typer.Option(min=1, max=64, metavar="N", help="Tokens made together; by default 1 where text is printed, else 8 on a GPU."),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print times, and memory of graphs, on stderr.")] = False,
) -> None:
    """Continue a prompt. Text is printed as it is made; with --json one object is printed at the end."""
    given = prompt_of(prompt, prompt_ids, chat)
    if not chat and (system is not None or tools is not None):
        raise PromptError("a conversation is missing", where="--tools" if system is None else "--system", remedy="add --chat")
    # Whatever can be wrong with the request is found before the work of compiling and loading begins.
    sampling = SamplingParameters(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    most = byte_count(max_arena, "--max-arena")
    if "" in (stop or ()):
        raise PromptError("a stop string is empty", where="--stop", expected="at least one character")
    from lamella import api
    from lamella.runtime.executor import resolve
    from lamella.runtime.generate import token_limit
    from lamella.tools.generation_stats import stats_text

    offered = [] if tools is None else api.read_tools(tools)
    resolve(executor, device)
    # Printed text should come as it is made.
    steps = steps_per_replay if steps_per_replay is not None or as_json else 1
    with progress("compiling") as show:
        opened = api.open_model(model, random_weights=random_weights)
        ids = api.encode(opened, given, chat=chat, system=system, tools=offered)
        limit = token_limit(ids, max_new_tokens, opened.config.vocabulary, api.context_of(opened, max_context))
        if stop and opened.tokenizer is None:
            raise PromptError("stop strings need a tokenizer", where=model, expected="tokenizer.json beside config.json")
        loaded = api.load(
            opened,
            device=device,
            dtype=dtype,
            quantize=quantize,
            quantize_head=quantize_head,
            activations=activations,
            kv_cache=kv_cache,
            executor=executor,
            max_context=max_context,
            weight_cache=weight_cache,
            max_arena=most,
            library=library,
            penalties=repetition_penalty != 1,
            steps_per_replay=steps,
            progress=lambda done, total, weight: show(f"loading weights, {done} of {total}"),
            kernel_progress=lambda done, total, kernel: show(f"compiling kernels, {done} of {total}"),
        )
    result = loaded.generate(
        ids,
        max_new_tokens=max_new_tokens or min(DEFAULT_NEW_TOKENS, limit),
        **asdict(sampling),
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        steps_per_replay=steps,
        on_text=None if as_json else _write,
    )
    if as_json:
        fields = {"prompt_ids": result.prompt_ids, "output_ids": result.output_ids, "text": result.text, "stop_reason": result.stop_reason}
        print(json.dumps({**fields, "timings": dict(result.timings)}, ensure_ascii=False))
    else:
        # A model without a tokenizer streams no text; its ids are its answer.
        print("" if result.text else ",".join(map(str, result.output_ids)))
    if stats:
        graph_bytes = loaded.executor.graph_bytes
        print(stats_text(len(result.prompt_ids), len(result.output_ids), result.timings, graph_bytes), file=sys.stderr)
    elif sys.stderr.isatty() and not as_json:
        rate = result.timings.get("tokens_per_second")
        speed = f", {rate:.1f} tokens/s" if rate else ""
        Console(stderr=True).print(f"[dim]{len(result.output_ids)} tokens{speed}, stopped by {result.stop_reason}[/dim]")


def _write(text: str) -> None:
    print(text, end="", flush=True)

# pyright: basic
"""`python -m benchmarks decode | prefill | kernels | timeline | accuracy | agreement | traffic | ablation | compile | all`: a configuration and shapes enter; a table and a JSON file leave.

`summary` and `picture` read such files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from lamella.errors import LamellaError

ConfigOption = Annotated[str, typer.Option(help="A name from benchmarks/models, or the path of a config.json.")]
LayersOption = Annotated[int | None, typer.Option(min=1, help="Another number of layers.")]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
DtypeOption = Annotated[Dtype, typer.Option(help="Element type of all; auto: the configuration's, float32 on a CPU.")]
DeviceOption = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to run.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Sequences.")]
ContextOption = Annotated[int, typer.Option(min=1, help="Tokens each sequence has when measuring starts.")]
MaxContextOption = Annotated[int, typer.Option(min=1, help="Tokens a sequence has room for.")]
StepsOption = Annotated[int, typer.Option(min=1, help="Launches of one measurement.")]
RepetitionsOption = Annotated[int, typer.Option(min=1, help="Measurements; their median counts.")]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", help="JSON file to write.")]
KindsOption = Annotated[
    str,
    typer.Option(
        metavar="KIND,…",
        help="Weights of these kinds too: int8, int4, fp8, or int8+int8, fp8+fp8, where what they are multiplied by is in eight bits; or none.",
    ),
]
PEERS = "eager,compile,compile-max"
PeersOption = Annotated[
    str,
    typer.Option(
        help="Comma-separated: eager, eager-graph, compile, compile-max (autotuned), each with +int8, +torchao-int8, +torchao-int4 or"
        " +torchao-fp8 for weights in few bits, and :sdpa or :explicit to choose how attention is written; hf-generate (decode only); or none."
    ),
]

app = typer.Typer(
    name="benchmarks",
    help="Measures Lamella beside its peers, and its bound, in one run.",
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def decode(
    config: ConfigOption = "llama-3.2-1b",
    batch: BatchOption = 1,
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    peers: PeersOption = PEERS,
    quantize: KindsOption = "none",
    kv_cache: Annotated[Literal["auto", "fp8"], typer.Option(help="Element type of keys and values of Lamella's rows.")] = "auto",
    steps_per_replay: Annotated[int, typer.Option(min=1, help="Graphs of so many steps too.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PASS.OPTION=VALUE", help="Lamella's rows with these options of passes too.")
    ] = None,
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    steps: StepsOption = 50,
    repetitions: RepetitionsOption = 5,
    output: OutputOption = None,
) -> None:
    """Milliseconds a token, beside PyTorch and the bytes that a step moves."""
    from benchmarks import speed

    with _settings(config, layers, device, dtype, steps, repetitions) as made:
        speed.decode(
            made(output),
            batch=batch,
            context=context,
            max_context=max_context,
            peers=_list(peers),
            quantize=_kinds(quantize),
            kv_cache=kv_cache,
            steps_per_replay=steps_per_replay,
            set_options=set_ or (),
        )


@app.command()
def prefill(
    config: ConfigOption = "llama-3.2-1b",
    tokens: Annotated[str, typer.Option(metavar="N,…", help="Lengths of the prompts.")] = "512,2048",
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    peers: PeersOption = PEERS,
    quantize: KindsOption = "none",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    steps: StepsOption = 10,
    repetitions: RepetitionsOption = 5,
    output: OutputOption = None,
) -> None:
    """Milliseconds of a prompt, beside PyTorch and the operations that it takes. Several lengths write several files."""
    from benchmarks import speed

    lengths = _integers(tokens)
    with _settings(config, layers, device, dtype, steps, repetitions) as made:
        for count in lengths:
            file = output if output is None or len(lengths) == 1 else output.with_stem(f"{output.stem}-{count}")
            speed.prefill(made(file), tokens=count, max_context=max(max_context, count), peers=_list(peers), quantize=_kinds(quantize))


@app.command()
def kernels(
    config: ConfigOption = "llama-3.2-1b",
    batch: BatchOption = 1,
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    tokens: Annotated[int | None, typer.Option(min=1, help="Measure the prefill bucket of so many tokens instead.")] = None,
    quantize: Annotated[str, typer.Option(metavar="KIND", help="Kind of weights: none, int8, int4, fp8.")] = "none",
    dtype: DtypeOption = "auto",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    steps: StepsOption = 50,
    repetitions: RepetitionsOption = 5,
    output: OutputOption = None,
) -> None:
    """Microseconds and bytes of each kernel of a step."""
    from benchmarks import kernels as measured

    with _settings(config, layers, device, dtype, steps, repetitions) as made:
        measured.kernels(made(output), batch=batch, context=context, max_context=max_context, tokens=tokens, quantize=quantize)


@app.command()
def timeline(
    config: ConfigOption = "llama-3.2-1b",
    batch: BatchOption = 1,
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    tokens: Annotated[int | None, typer.Option(min=1, help="The prefill bucket of so many tokens instead.")] = None,
    quantize: Annotated[str, typer.Option(metavar="KIND", help="Kind of weights: none, int8, int4, fp8.")] = "none",
    dtype: DtypeOption = "auto",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    steps: StepsOption = 50,
    repetitions: RepetitionsOption = 5,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the layer in the middle, as SVG.")] = None,
    output: OutputOption = None,
) -> None:
    """When each launch of a step starts, stops waiting and ends, by the device's clock."""
    from benchmarks import timeline as measured

    with _settings(config, layers, device, dtype, steps, repetitions) as made:
        report = measured.timeline(made(output), batch=batch, context=context, max_context=max_context, tokens=tokens, quantize=quantize)
        if svg is not None:
            svg.write_text(measured.picture(report.document()), encoding="utf-8")


@app.command()
def ablation(
    config: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name from benchmarks/models, or the path of a config.json.")
    ] = "llama-3.2-1b",
    tokens: Annotated[str, typer.Option(metavar="N,…", help="Buckets: 1 is decode, more are prefill.")] = "1,512",
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    steps: StepsOption = 20,
    repetitions: RepetitionsOption = 5,
    output: OutputOption = None,
    doc: Annotated[Path | None, typer.Option(metavar="FILE", help="Also render the result as a page, such as docs/ablation.md.")] = None,
) -> None:
    """Each pass off in turn: launches, bytes, arena, and on a GPU microseconds."""
    from benchmarks import ablation as measured

    counts = _integers(tokens)
    with _settings(config, layers, device, dtype, steps, repetitions) as made:
        report = measured.ablation(made(output), tokens=counts, context=context, max_context=max_context)
    if doc is not None:
        doc.write_text(measured.page(report.document()), encoding="utf-8")


@app.command("compile")
def compile_(
    config: ConfigOption = "llama-3.1-8b",
    tokens: Annotated[str, typer.Option(metavar="N,…", help="Buckets: 1 is decode, more are prefill.")] = "1,512",
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that compile kernels.")] = None,
    output: OutputOption = None,
) -> None:
    """Seconds from a configuration to binaries of all kernels, cold and warm; needs no weights and no GPU."""
    from benchmarks import compile_time as measured

    counts = _integers(tokens)
    with _settings(config, layers, device, dtype, 1, 1) as made:
        measured.compile_time(made(output), tokens=counts, max_context=max_context, workers=workers)


@app.command()
def start(
    config: ConfigOption = "llama-3.2-1b",
    tokens: Annotated[str, typer.Option(metavar="N,…", help="Lengths of the prompts.")] = "512,2047",
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    peers: Annotated[str, typer.Option(help="hf-generate or none.")] = "hf-generate",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    repetitions: RepetitionsOption = 5,
    output: OutputOption = None,
) -> None:
    """Time to the first token, seconds to load, and memory that a loaded model takes."""
    from benchmarks import start as measured

    counts = _integers(tokens)
    with _settings(config, layers, device, dtype, 1, repetitions) as made:
        measured.start(made(output), tokens=counts, max_context=max_context, peers=_list(peers))


@app.command("all")
def all_(
    config: ConfigOption = "llama-3.2-1b",
    batches: Annotated[str, typer.Option(metavar="N,…", help="Sequences of a decode step.")] = "1,8,32",
    prompts: Annotated[str, typer.Option(metavar="N,…", help="Lengths of the prompts of prefill.")] = "512,2048,8192",
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    peers: PeersOption = "compile,eager,hf-generate",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    steps: StepsOption = 50,
    repetitions: RepetitionsOption = 5,
    seconds: Annotated[
        float, typer.Option(min=0, help="One measurement, all repetitions of it: fewer launches where they take longer.")
    ] = 4,
    limit: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Nothing begins after this time, and no peer near its end.")] = 540,
    output: OutputOption = None,
) -> None:
    """All of these for one model, in one run and one file, written after each measurement: compile, start, decode, kernels, prefill, peers."""
    from benchmarks.everything import Plan, everything

    plan = Plan(_integers(batches), _integers(prompts), context, max_context)
    with _settings(config, layers, device, dtype, steps, repetitions) as made:
        settings = replace(made(output), seconds=seconds)
        everything(settings, plan, peers=[p for p in _list(peers) if p != "none"], limit=limit)


@app.command()
def summary(
    files: Annotated[list[Path], typer.Argument(help="Results of the same benchmark of the same model, from several runs.")],
    doc: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page of tables instead of printing them.")] = None,
) -> None:
    """Every figure of several runs side by side, with their spread, and each kernel beside a library, as markdown."""
    from benchmarks import summary as made

    with _reported():
        page = made.markdown([made.read(file) for file in files])
    if doc is None:
        print(page, end="")
    else:
        doc.write_text(page, encoding="utf-8")


@app.command()
def picture(
    files: Annotated[list[Path], typer.Argument(help="Results of decode or all; of a number that several hold, the last counts.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="SVG file to write.")],
) -> None:
    """Milliseconds a decode step of Lamella and its peers, as a picture."""
    from benchmarks.picture import picture as drawn
    from benchmarks.summary import read

    with _reported():
        output.write_text(drawn([read(file) for file in files]), encoding="utf-8")


@app.command()
def accuracy(
    config: ConfigOption = "llama-3.2-1b",
    seeds: Annotated[str, typer.Option(metavar="N,…", help="Each makes other weights and tokens.")] = "0,1,2",
    positions: Annotated[int, typer.Option(min=1, help="Teacher-forced positions.")] = 64,
    dtype: DtypeOption = "bfloat16",
    layers: LayersOption = None,
    device: DeviceOption = "auto",
    output: OutputOption = None,
) -> None:
    """Logit errors beside those of transformers in the same element type; exits with 1 when they are too large."""
    from benchmarks import accuracy as measured

    numbers = _integers(seeds)
    with _settings(config, layers, device, dtype, 1, 1) as made:
        report = measured.accuracy(made(output), seeds=numbers, positions=positions)
    if not report.facts["ok"]:
        raise typer.Exit(1)


@app.command()
def traffic(
    config: ConfigOption = "llama-3.2-1b",
    quantize: Annotated[str, typer.Option(metavar="KIND,…", help="Kinds of weights: none, int8, int4, fp8.")] = "none,int8,int4,fp8",
    batch: BatchOption = 1,
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    layers: LayersOption = 2,
    device: DeviceOption = "auto",
    ncu: Annotated[Path | None, typer.Option(metavar="FILE", help="Nsight Compute's command; else it is looked for.")] = None,
    output: OutputOption = None,
) -> None:
    """Bytes that the kernels of a decode step read from memory: by their IR, and counted by the GPU under Nsight Compute."""
    from benchmarks import dram as measured

    kinds = _list(quantize)
    if not kinds:
        raise typer.BadParameter(f"'{quantize}' names no kind of weights")
    with _settings(config, layers, device, dtype, 1, 1) as made:
        measured.traffic(made(output), measured.Shapes(batch, context, max_context), quantize=kinds, ncu=ncu)


@app.command("one-step", hidden=True)
def one_step(
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")],
    config: ConfigOption = "llama-3.2-1b",
    quantize: Annotated[str, typer.Option(metavar="KIND", help="Kind of weights.")] = "none",
    batch: BatchOption = 1,
    context: ContextOption = 1000,
    max_context: MaxContextOption = 2048,
    dtype: DtypeOption = "auto",
    device: DeviceOption = "auto",
) -> None:
    """One decode step with the profiler on: what `traffic` runs under Nsight Compute."""
    from benchmarks import dram as measured

    with _settings(config, None, device, dtype, 1, 1) as made:
        measured.one_step(made(output), measured.Shapes(batch, context, max_context), quantize=quantize)


@app.command()
def agreement(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A quantized checkpoint: a .gguf file, or a folder.")],
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON list of texts, or of lists of ids; without it, ten that come along.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens after each prompt.")] = 32,
    dtype: DtypeOption = "auto",
    device: DeviceOption = "auto",
    output: OutputOption = None,
) -> None:
    """Greedy text of weights kept packed beside that of the same weights as floats; exits with 1 where they differ by more than a near-tie."""
    from benchmarks import agreement as measured
    from benchmarks.settings import Settings, device_of

    with _reported():
        given = measured.read_prompts(prompts or measured.PROMPTS)
        report = measured.agreement(Settings(model.stem, model, device_of(device), dtype, 1, 1, output), given, tokens=tokens)
    if not report.facts["ok"]:
        raise typer.Exit(1)


@contextmanager
def _settings(config: str, layers: int | None, device: str, dtype: str, steps: int, repetitions: int) -> Generator[Callable]:
    """A function from the output file to the settings; a user's mistake is reported."""
    from benchmarks.configurations import configuration, known_models
    from benchmarks.settings import Settings, device_of

    name = f"{config if config in known_models() else Path(config).stem}{f' with {layers} layers' if layers else ''}"
    with _reported(), configuration(config, layers) as path:
        where = device_of(device)
        yield lambda output: Settings(name, path, where, dtype, steps, repetitions, output)


@contextmanager
def _reported() -> Generator[None]:
    """A user's mistake becomes one line and exit code 2."""
    try:
        yield
    except LamellaError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


def _kinds(text: str) -> list[str]:
    """The kinds of weights beside those as they are."""
    return [kind for kind in _list(text) if kind != "none"]


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _integers(text: str) -> list[int]:
    """Raises BadParameter, which typer reports."""
    try:
        found = [int(part) for part in _list(text)]
    except ValueError as error:
        raise typer.BadParameter(f"'{text}' is no list of integers") from error
    if not found or min(found) < 0:
        raise typer.BadParameter(f"'{text}' holds no number, or one below 0")
    return found


if __name__ == "__main__":
    app()

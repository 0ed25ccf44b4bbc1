"""The public API: a path goes in; a model that generates, or a compiled program, leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lamella.errors import DtypeError, PromptError, nearest
from lamella.frontends import LoadedModel, Survey, keep_packed, open_model, source_names, survey, weight_shapes, written
from lamella.frontends.pooling import read_pooling
from lamella.pipeline import PassOptions
from lamella.program import BLOCK, DEFAULT_ARCH, Program, Shape, compile_model
from lamella.program import decide_fusion as decide_program_fusion
from lamella.tokenizer import read_tools

if TYPE_CHECKING:
    from torch import Tensor

    from lamella.passes.fusion import Fusion
    from lamella.runtime.executor import Executor
    from lamella.runtime.generate import Session

DTYPES: Mapping[str, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""Names of element types as people type them, and as the IR has them."""
QUANTIZATIONS = ("none", "int8", "int4", "fp8", "keep")
"""What `quantize` may be: weights as floats, quantized when they are loaded, or packed as a GGUF file has them."""
KV_CACHES = ("auto", "fp8")
"""What `kv_cache` may be: keys and values in the element type of activations, or as float8 with a scale for each head of each."""
ACTIVATIONS = ("none", "int8", "fp8")
"""What `activations` may be: multiplied as they are, or each row in eight bits with a scale, by weights of that kind."""
DEFAULT_CONTEXT = 4096
PREFILL_BUCKETS = (16, 128, 512)
"""Tokens of the prefill buckets of `load`; longer prompts run in chunks."""
COMPILE_BUCKETS = (1, 512)
STEPS_PER_REPLAY = 8
"""Decode steps of a graph on a GPU: the host then waits, and the GPU is idle between graphs, an eighth as often."""
TEXT_BUCKETS = (32, 128, 512, 2048)
"""Tokens of the buckets of an encoder, whose steps take whole texts."""

Message = Mapping[str, Any]
"""One turn of a chat: `role`, `content`, and whatever else the model's template reads (`tool_calls`)."""


@dataclass(frozen=True)
class Generation:
    """A finished generation. `stop_reason` is `eos`, `length` or `stop_string`; the eos token is not among `output_ids`.

    `timings`: seconds of compile, load, prefill and decode, and tokens_per_second of decode.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    stop_reason: str
    timings: Mapping[str, float]


class Model:
    """A model, compiled and loaded."""

    def __init__(
        self, opened: LoadedModel, program: Program, executor: Executor, seconds: Mapping[str, float], steps_per_replay: int = 1
    ) -> None:
        from lamella.runtime.generate import Session

        self.opened = opened
        self.program = program
        self.executor = executor
        self.session: Session = Session(executor)
        self.seconds: Mapping[str, float] = dict(seconds)
        self.steps_per_replay = steps_per_replay

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        chat: bool = False,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        steps_per_replay: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """Continues text, token ids, or (with chat messages, or `chat` and text) a conversation.

        `system` opens the conversation; `tools` are functions the model may call, as `Tokenizer.chat` takes them. `on_text` is called with
        each piece of text as it is made. Temperature 0 is greedy. A `repetition_penalty` other than 1 wants a model loaded with `penalties`. `steps_per_replay` tokens are made between two looks of the host, and are
        the same for any number; None: one where `on_text` waits for them, else what the model was loaded with.
        Raises PromptError for an empty prompt, one that does not fit the context, ids outside the vocabulary, bad sampling parameters, text
        for a model without a tokenizer, or a system prompt or tools that no conversation takes.
        """
        from lamella.runtime.sampling_parameters import SamplingParameters
        from lamella.runtime.text import Completion

        ids = encode(self.opened, prompt, chat=chat, system=system, tools=tools)
        sampling = SamplingParameters(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
        )
        tokenizer = self.opened.tokenizer
        if tokenizer is not None and not tokenizer.loads and not stop:
            tokenizer = None  # ids were given, and ids are the answer
        completion = Completion(
            self.session,
            tokenizer,
            ids,
            max_new_tokens,
            sampling,
            stop_strings=tuple(stop),
            stop_ids=self.opened.generation.eos or None,
            ignore_eos=ignore_eos,
            steps_per_replay=(self.steps_per_replay if on_text is None else 1) if steps_per_replay is None else steps_per_replay,
        )
        for piece in completion:
            if on_text is not None:
                on_text(piece)
        made = completion.generation
        timings = {
            **self.seconds,
            "prefill": made.timings.prefill,
            "decode": made.timings.decode,
            "tokens_per_second": made.timings.tokens_per_second,
        }
        return Generation(made.prompt_ids, made.output_ids, made.text, made.stop_reason, timings)

    def embed(self, texts: str | Sequence[str | Sequence[int]], *, pooling: str | None = None, normalize: bool | None = None) -> Tensor:
        """One vector a text (or list of token ids), float32 [texts, hidden] on the CPU, by an encoder.

        `pooling` (`mean`, `cls` or `max`) and `normalize` default to what the files of sentence-transformers beside the model say, else to
        the mean as it is. Longer texts than those files allow, or than the model has positions, are cut, the closing token kept.
        Raises PromptError for a model that is no encoder, an empty text, or bad ids; ConfigError for files that ask for something else.
        """
        if self.opened.config.causal:
            raise PromptError("this model generates text and embeds none", where=str(self.opened.path), expected="an encoder, such as BERT")
        from lamella.runtime.embed import Embedder

        way, embedder = read_pooling(self.opened.path), Embedder(self.executor)
        longest = min(self.executor.manifest.max_context, way.max_length or self.executor.manifest.max_context)
        ids: list[list[int]] = []
        for text in [texts] if isinstance(texts, str) else texts:
            if not isinstance(text, str):
                ids.append(list(text))
                continue
            whole = self.opened.require_tokenizer().encode(text.strip().lower() if way.lower else text.strip())
            # As with truncation in transformers: the text is cut, not the token that closes it.
            ids.append(whole if len(whole) <= longest else [*whole[: longest - 1], whole[-1]])
        kind = way.kind if pooling is None else pooling
        return embedder.embed(ids, pooling=kind, normalize=way.normalize if normalize is None else normalize)


def encode(
    opened: LoadedModel,
    prompt: str | Sequence[int] | Sequence[Message],
    *,
    chat: bool = False,
    system: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The token ids of a prompt: of text (with `chat`, of a conversation it opens), of chat messages, or the ids themselves.

    Raises PromptError for an empty text, for text where the model has no tokenizer, and for a system prompt or tools without a conversation.
    """
    if not opened.config.causal:
        raise PromptError(
            "this model is an encoder: it continues no text", where=str(opened.path), remedy="use lamella embed, or Model.embed"
        )
    opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError("the prompt is empty", expected="at least one token")
        if not chat and (opening or tools):
            raise PromptError(f"{'a system prompt' if opening else 'tools'} without a conversation", remedy="add --chat")
        tokenizer = opened.require_tokenizer()
        return tokenizer.chat([*opening, {"role": "user", "content": prompt}], tools) if chat else tokenizer.encode(prompt)
    ids: list[int] = []
    messages: list[Message] = []
    for item in prompt:
        if isinstance(item, int):
            ids.append(item)
        else:
            messages.append(dict(item))
    if not messages:
        if opening or tools:
            raise PromptError("token ids take no system prompt and no tools", remedy="give text")
        return ids
    if ids:
        raise PromptError("a prompt is token ids or messages", got="both")
    return opened.require_tokenizer().chat([*opening, *messages], tools)


def element_name(dtype: str, opened: LoadedModel, *, on_gpu: bool) -> str:
    """The element type of weights, activations and cache. `auto`: the checkpoint's on a GPU, float32 on a CPU. Raises DtypeError."""
    if dtype == "auto":
        return opened.config.dtype if on_gpu and opened.config.dtype in DTYPES.values() else "bf16" if on_gpu else "f32"
    found = DTYPES.get(dtype)
    if found is None:
        raise DtypeError("unsupported dtype", expected=", ".join(("auto", *DTYPES)), got=dtype, remedy=nearest(dtype, DTYPES))
    return found


def shapes_of(opened: LoadedModel, buckets: Sequence[Shape | int], context: int) -> list[Shape]:
    """The shapes of buckets, some of which are numbers of tokens: of one text that is continued, or of an encoder's whole texts."""
    causal = opened.config.causal
    return [s if isinstance(s, Shape) else Shape.of(s) if causal else Shape.batch(s, context) for s in buckets]


def context_of(opened: LoadedModel, max_context: int | None) -> int:
    """Tokens of the longest context. Raises PromptError for one the model was not made for."""
    longest = opened.config.max_positions
    if max_context is None and not opened.config.causal:
        # Longer texts are cut: nothing is compiled for them.
        return min(longest, read_pooling(opened.path).max_length or longest)
    if max_context is None:
        return min(longest, DEFAULT_CONTEXT)
    if not 1 <= max_context <= longest:
        raise PromptError("bad max_context", expected=f"1 to {longest}, the positions of the model", got=str(max_context))
    return max_context


def quantized(
    opened: LoadedModel, quantize: str, pass_options: PassOptions | None, head: str | None = None
) -> tuple[LoadedModel, PassOptions | None]:
    """Model and pass options for one of QUANTIZATIONS, and the kind of the head (None: int8); options of `quantize-weights` that are given
    count more. Raises DtypeError.
    """
    if quantize not in QUANTIZATIONS:
        remedy = nearest(quantize, QUANTIZATIONS)
        raise DtypeError("unsupported quantization", expected=", ".join(QUANTIZATIONS), got=quantize, remedy=remedy)
    if quantize in ("keep", "none") and head is not None:
        raise DtypeError(
            "the head alone is quantized with --set quantize-weights.head", expected="quantize as well", got=f"quantize_head={head}"
        )
    if quantize == "keep":
        return keep_packed(opened), pass_options
    if quantize == "none":
        return opened, pass_options
    if opened.config.packed:
        raise DtypeError(
            "the weights are quantized already",
            where=str(opened.path),
            expected="none or keep",
            got=quantize,
            remedy="leave the option out, or take the checkpoint it was made from",
        )
    given = dict(pass_options or {})
    # Eight bits cost the head next to nothing, and it is read whole for every token; four would show in the logits.
    given["quantize-weights"] = {"kind": quantize, "head": head or "int8", **given.get("quantize-weights", {})}
    return opened, given


def activated(opened: LoadedModel, quantize: str, activations: str, pass_options: PassOptions | None) -> PassOptions | None:
    """Pass options for one of ACTIVATIONS; options of `quantize-activations` that are given count more. Raises DtypeError."""
    if activations not in ACTIVATIONS:
        remedy = nearest(activations, ACTIVATIONS)
        raise DtypeError("unsupported activations", expected=", ".join(ACTIVATIONS), got=activations, remedy=remedy)
    if activations == "none":
        return pass_options
    if quantize != activations and not (quantize in ("none", "keep") and opened.config.packed):
        what, expected = f"activations of {activations} need weights of {activations}", f"quantize {activations}"
        raise DtypeError(what, where=str(opened.path), expected=expected, got=quantize)
    given = dict(pass_options or {})
    given["quantize-activations"] = {"kind": activations, **given.get("quantize-activations", {})}
    return given


def cached_as(opened: LoadedModel, kv_cache: str) -> LoadedModel:
    """The model with a cache of one of KV_CACHES. Raises DtypeError."""
    if kv_cache not in KV_CACHES:
        raise DtypeError("unsupported cache", expected=" or ".join(KV_CACHES), got=kv_cache, remedy=nearest(kv_cache, KV_CACHES))
    if kv_cache == "auto":
        return opened
    if not opened.config.causal:
        raise DtypeError("an encoder keeps nothing in its cache", where=str(opened.path), expected="kv_cache auto", got=kv_cache)
    return replace(opened, config=replace(opened.config, kv_cache="f8"))


def load(
    model: str | Path | LoadedModel,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str = "none",
    quantize_head: str | None = None,
    activations: str = "none",
    kv_cache: str = "auto",
    executor: str = "auto",
    random_weights: int | None = None,
    max_context: int | None = None,
    buckets: Sequence[Shape | int] | None = None,
    cache_tokens: int | None = None,
    graphs: bool = True,
    shuffle_seed: int | None = 0,
    weight_cache: str | Path | None = None,
    pass_options: PassOptions | None = None,
    max_arena: int = 0,
    library: str = "auto",
    penalties: bool = False,
    steps_per_replay: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    kernel_progress: Callable[[int, int, str], None] | None = None,
) -> Model:
    """Compiles a checkpoint for this machine and loads its weights.

    `model`: a Hugging Face directory, a .gguf file, or (with `random_weights`, a seed) a config.json; or what `open_model` made of one.
    `quantize`: `int8`, `int4` or `fp8` quantizes the weights of linears when they are loaded, `keep` leaves blocks of a GGUF file packed.
    `quantize_head` is the kind of the linear that makes the logits, and of embeddings tied to it: also `none`, or `same`; None: int8.
    `activations`: `int8` or `fp8` multiplies what linears read in eight bits too, each row with a scale, by weights of that kind with one scale a row.
    `kv_cache` `fp8` stores keys and values as float8, each head of a token with a scale, in little more than half the memory of bfloat16.
    `executor` and `device`: `auto` takes the GPU where there is one, else the reference executor on the CPU. `buckets`: shapes (or numbers of tokens) to compile for;
    None: one-token decode and PREFILL_BUCKETS, for an encoder TEXT_BUCKETS. `cache_tokens` sizes the cache pool; None: what the buckets can use. `weight_cache`: a
    folder in which transformed weights wait for the next time; None: they are made each time.
    `pass_options` sets options of passes, `{"fuse-regions": {"max-depth": 2}}`. `max_arena` is the most bytes
    that activations of a step may take (0: any number): longer prefill then runs in smaller chunks. `penalties`: what is generated may have a repetition penalty, for which
    each step keeps a factor a token of the vocabulary. `steps_per_replay` is how many decode
    steps run as one graph where nobody waits for each token; None: STEPS_PER_REPLAY on a GPU, where that saves time, else one. `library` says
    whether cuBLAS computes linears of many tokens: `auto` where the cost model finds it faster, `on`, `off`. `progress(done, total, weight)` is called as weights load,
    `kernel_progress(done, total, kernel)` as kernels that Triton's cache lacks compile. Raises LamellaError for everything a user can mend.
    """
    from lamella.runtime.embed import cache_tokens as texts_cache
    from lamella.runtime.executor import make_executor, resolve
    from lamella.runtime.generate import step_count
    from lamella.runtime.weight_cache import WeightCache
    from lamella.runtime.weights import load_weights

    chosen, where = resolve(executor, device)
    steps = step_count(steps_per_replay, STEPS_PER_REPLAY if chosen == "cuda" else 1)
    opened = model if isinstance(model, LoadedModel) else open_model(model, random_weights=random_weights)
    opened, pass_options = quantized(cached_as(opened, kv_cache), quantize, pass_options, quantize_head)
    pass_options = activated(opened, quantize, activations, pass_options)
    cache = None if weight_cache is None else WeightCache(weight_cache, opened.source.fingerprint())
    start = perf_counter()
    context = context_of(opened, max_context)
    usual = (1, *(n for n in PREFILL_BUCKETS if n <= context)) if opened.config.causal else TEXT_BUCKETS
    shapes = shapes_of(opened, usual if buckets is None else buckets, context)
    if not opened.config.causal and cache_tokens is None:
        cache_tokens = texts_cache([(s.tokens, s.sequences) for s in shapes], BLOCK)
    program = compile_model(
        opened.config,
        shapes,
        dtype=element_name(dtype, opened, on_gpu=chosen == "cuda"),
        max_context=context,
        kernels=chosen != "reference",
        pass_options=pass_options,
        max_arena=max_arena,
        library=library,
        penalties=penalties,
    )
    assert program.manifest is not None
    compiled = perf_counter()
    weights = load_weights(program.manifest, opened.source, where, progress, cache=cache)
    made = make_executor(
        program.manifest,
        weights,
        executor=chosen,
        device=str(where),
        kernels=program.kernels,
        cache_tokens=cache_tokens,
        graphs=graphs,
        shuffle_seed=shuffle_seed,
    )
    loaded = perf_counter()
    made.prepare(progress=kernel_progress, steps=min(steps, context))
    ready = perf_counter()
    return Model(opened, program, made, {"compile": compiled - start + ready - loaded, "load": loaded - compiled}, steps)


def compile(
    model: str | Path | LoadedModel,
    *,
    arch: str | None = None,
    dtype: str = "auto",
    quantize: str = "none",
    quantize_head: str | None = None,
    activations: str = "none",
    kv_cache: str = "auto",
    buckets: Sequence[Shape | int] | None = None,
    until: str | None = None,
    max_context: int | None = None,
    random_weights: int | None = None,
    verify_each: bool = False,
    keep_ir: bool = True,
    pass_options: PassOptions | None = None,
    skip: Collection[str] = (),
    max_arena: int = 0,
    library: str = "auto",
    penalties: bool = False,
    fit_registers: bool = False,
) -> Program:
    """Compiles a model without loading weights; needs no GPU. `buckets` None stands for COMPILE_BUCKETS; `dtype` auto is the checkpoint's.
    `quantize`, `quantize_head`, `activations`, `kv_cache` and `penalties` are as for `load`.

    `until` names the last stage; IR of every stage is kept. `skip` names passes that do not run. `library`: as for `load`. `max_arena` bounds the bytes of each bucket's arena (0: any size): a bucket
    of one sequence that needs more becomes a smaller one, whose chunks do the same work. With `fit_registers` the kernels are compiled for `arch`, which needs Triton but no GPU: regions of those that spill get smaller
    schedules, or are taken apart, and the ledger says so. Raises LamellaError.
    """
    opened = model if isinstance(model, LoadedModel) else open_model(model, random_weights=random_weights)
    opened, pass_options = quantized(cached_as(opened, kv_cache), quantize, pass_options, quantize_head)
    pass_options = activated(opened, quantize, activations, pass_options)
    context = context_of(opened, max_context)
    usual = COMPILE_BUCKETS if opened.config.causal else TEXT_BUCKETS[-2:-1]
    compiled = partial(
        compile_model,
        opened.config,
        shapes_of(opened, usual if buckets is None else buckets, context),
        dtype=element_name(dtype, opened, on_gpu=True),
        max_context=context,
        arch=arch,
        until=until,
        keep_ir=keep_ir,
        verify_each=verify_each,
        pass_options=pass_options,
        skip=skip,
        max_arena=max_arena,
        library=library,
        penalties=penalties,
    )
    if not fit_registers:
        return compiled()
    from lamella.tools.fit_registers import fit_registers as fitted

    policy = str((pass_options or {}).get("fuse-regions", {}).get("policy", ""))
    return fitted(lambda given: compiled(bucket_options=given), arch or DEFAULT_ARCH, policy=policy)


def decide_fusion(
    model: str | Path | LoadedModel,
    *,
    arch: str | None = None,
    dtype: str = "auto",
    quantize: str = "none",
    quantize_head: str | None = None,
    activations: str = "none",
    kv_cache: str = "auto",
    bucket: Shape | int = 1,
    max_context: int | None = None,
    random_weights: int | None = None,
    pass_options: PassOptions | None = None,
    library: str = "auto",
) -> Fusion:
    """The groups of ops that become the regions of one bucket, with the record of why; `passes/fusion_questions.py` asks them. Raises LamellaError."""
    opened = model if isinstance(model, LoadedModel) else open_model(model, random_weights=random_weights)
    opened, pass_options = quantized(cached_as(opened, kv_cache), quantize, pass_options, quantize_head)
    pass_options = activated(opened, quantize, activations, pass_options)
    return decide_program_fusion(
        opened.config,
        *shapes_of(opened, [bucket], context_of(opened, max_context)),
        dtype=element_name(dtype, opened, on_gpu=True),
        max_context=context_of(opened, max_context),
        arch=arch,
        pass_options=pass_options,
        library=library,
    )


__all__ = [
    "ACTIVATIONS",
    "KV_CACHES",
    "QUANTIZATIONS",
    "Generation",
    "LoadedModel",
    "Model",
    "Program",
    "Shape",
    "Survey",
    "activated",
    "cached_as",
    "compile",
    "decide_fusion",
    "encode",
    "load",
    "open_model",
    "quantized",
    "read_tools",
    "source_names",
    "survey",
    "weight_shapes",
    "written",
]

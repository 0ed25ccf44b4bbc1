"""Tiny Llamas of odd sizes: the model in `transformers`, the same model compiled, and executors of every level behind one `Session`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from xdsl.dialects.func import FuncOp

from lamella import pipeline
from lamella.dialects import signature
from lamella.dialects.attributes import attributes_of
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import build, source_names, weight_shapes
from lamella.lowering.body import export_function, handle_name, handles_of, is_handle
from lamella.pipeline import Options
from lamella.program import BLOCK, Program, Shape, compile_model
from lamella.runtime.evaluate import compile_body
from lamella.runtime.executor import MemoryExecutor, Progress, make_executor
from lamella.runtime.generate import Session
from lamella.runtime.manifest import Bucket, Manifest
from lamella.runtime.memory import BlockAllocator, reserve
from lamella.runtime.weights import load_weights, make_constants
from lamella.semantics import DTYPES, IMPLEMENTATIONS

CONTEXT = 128
POOL = 640
"""Tokens of the cache pool: more than one sequence uses, so that block tables can be shuffled and unused blocks stay NaN."""

BASE = ModelConfig(
    family="llama",
    layers=3,
    hidden=96,
    heads=6,
    kv_heads=2,
    head_dim=16,
    ffn=200,
    vocabulary=257,
    norm_eps=1e-5,
    rope_theta=10000.0,
    max_positions=CONTEXT,
)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
BIASED = replace(BASE, tied=True, attention_bias=True, mlp_bias=True, rope_scaling=LLAMA3)
GELU = replace(BASE, activation="gelu_tanh", heads=2, head_dim=24, rope_scaling={"rope_type": "linear", "factor": 2.0})
SMALL = replace(BASE, layers=2, hidden=48, heads=3, kv_heads=1, ffn=24, vocabulary=41)
WIDE = replace(BASE, layers=1, hidden=272, heads=4, kv_heads=4, ffn=72, vocabulary=67)
"""Wider than the rows an epilogue may reduce, so that its norms are prologues of contractions."""
PARTIAL = replace(BASE, heads=4, kv_heads=1, head_dim=20, rotary_dim=12, layers=2)


def peer(config: ModelConfig) -> LlamaForCausalLM:
    """The same model in transformers, its weights large enough that logits differ clearly from token to token.

    Where RoPE is partial, its model turns whole heads with the frequencies of the last pairs set to zero, which is the same thing.
    """
    torch.manual_seed(0)
    described = LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden_act={"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[config.activation],
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta, **config.rope_scaling},
        tie_word_embeddings=config.tied,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(described).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (1.0 if parameter.dim() == 1 else 0.0))
        if config.rotary < config.head_dim:
            turning = torch.arange(0, config.rotary, 2) / config.rotary
            frequencies = torch.zeros(config.head_dim // 2)
            frequencies[: config.rotary // 2] = config.rope_theta**-turning
            model.model.rotary_emb.inv_freq.copy_(frequencies)
    return model


def weights_of(config: ModelConfig, model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The weights of `peer(config)` by canonical name, rows of q and k in the order `config` expects."""
    state, names = model.state_dict(), source_names(config)
    weights = {name: state[names[name]] for name in weight_shapes(config)}
    if config.rotary < config.head_dim:
        # transformers pairs d with d + head_dim/2, a partial rotation d with d + rotary/2.
        half, whole = config.rotary // 2, config.head_dim // 2
        first, second = list(range(half)), list(range(whole, whole + half))
        order = [*first, *second, *(d for d in range(config.head_dim) if d not in (*first, *second))]
        for name, weight in weights.items():
            if name.split(".bias", maxsplit=1)[0].endswith(("q_proj", "k_proj")):
                weights[name] = weight.unflatten(0, (-1, config.head_dim))[:, order].flatten(0, 1)
    return weights


@dataclass(frozen=True)
class Tensors:
    """A tensor source over tensors that are already here."""

    tensors: Mapping[str, torch.Tensor]

    def names(self) -> list[str]:
        return sorted(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> str:
        return "f32"

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        return self.tensors[name].to(device=device, dtype=DTYPES[dtype or "f32"])

    def fingerprint(self) -> str:
        return "tensors"

    def describe(self) -> dict[str, object]:
        return {}


class StageExecutor(MemoryExecutor):
    """Runs the module of an early stage by the meaning of its ops: inputs and caches are those of the manifest, there is no plan."""

    def __init__(self, functions: Mapping[tuple, FuncOp], manifest: Manifest, weights: Mapping[str, torch.Tensor]) -> None:
        """`functions` holds that stage of each bucket by its key; `weights` are those it names, as `load_weights` makes them."""
        super().__init__(reserve(manifest, {}, make_constants(manifest), cache_tokens=POOL))
        self.results: dict[str, torch.Tensor] = {}
        self.programs = {key: (compile_body(export_function(f)[0]), self.handles(f, weights), f) for key, f in functions.items()}

    @staticmethod
    def handles(function: FuncOp, weights: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The tensor of each weight and table of a function."""
        out: list[torch.Tensor] = []
        for op in handles_of(function):
            assert is_handle(op)
            value = weights[handle_name(op)] if op.name == "transformer.weight" else IMPLEMENTATIONS[op.name](**attributes_of(op))
            out.append(value)
        return out

    def prepare(self, buckets: Iterable[Bucket] | None = None, progress: Progress | None = None, *, steps: int = 1) -> None:
        """Nothing is compiled."""

    def launch(self, bucket: Bucket, steps: int = 1) -> None:
        self.repeat(bucket, steps, partial(self._run, bucket))

    def _run(self, bucket: Bucket) -> None:
        run, handles, function = self.programs[bucket.key]
        names = signature.input_names(function)
        caches = {f"cache.{layer}": cache for layer, cache in enumerate(self.caches)}
        inputs = self.inputs(bucket)
        with torch.inference_mode():
            values = run(*((inputs | caches)[name] for name in names), *handles)
        self.results = dict(zip(signature.output_names(function), values, strict=True))
        for value, argument in zip(values, signature.tied(function), strict=True):
            if argument >= 0 and not names[argument].startswith("cache."):
                inputs[names[argument]].copy_(value)

    def output(self, bucket: Bucket, name: str) -> torch.Tensor:
        return self.results[name]


@dataclass(frozen=True)
class Tiny:
    """A tiny model, compiled for some buckets: whatever a test asks to run is the same program at one of its levels."""

    config: ModelConfig
    model: LlamaForCausalLM
    weights: Mapping[str, torch.Tensor]
    program: Program
    dtype: str = "f32"

    @staticmethod
    def of(config: ModelConfig, shapes: Sequence[Shape], *, dtype: str = "f32", kernels: bool = True, penalties: bool = False) -> Tiny:
        """Compiles, verifying after every pass."""
        model = peer(config)
        program = compile_model(config, shapes, dtype=dtype, max_context=CONTEXT, kernels=kernels, verify_each=True, penalties=penalties)
        return Tiny(config, model, weights_of(config, model), program, dtype)

    def session(
        self, level: str, *, weights: Mapping[str, torch.Tensor] | None = None, block_seed: int | None = 1, shuffle_seed: int = 0
    ) -> Session:
        """A session over `reference`, `interpret`, or the meaning of the ops at a stage (`specialized`, `tiles`, `regions`).

        Blocks are handed out in an order drawn from `block_seed`; caches and arena start as NaN.
        """
        given = self.weights if weights is None else weights
        manifest = self.program.manifest
        assert manifest is not None
        loaded = load_weights(manifest, Tensors(given))
        if level in pipeline.stage_names():
            modules = {(s.tokens, s.sequences, s.longest_query, s.logit_rows, s.advance): self.stage(level, s) for s in self.program.shapes}
            executor = StageExecutor(modules, manifest, loaded)
        else:
            executor = make_executor(
                manifest, loaded, executor=level, kernels=self.program.kernels, cache_tokens=POOL, shuffle_seed=shuffle_seed
            )
        return Session(executor, BlockAllocator(executor.caches[0].shape[0], block_seed))

    def stage(self, name: str, shape: Shape) -> FuncOp:
        """The function of one bucket as stage `name` leaves it."""
        module = build(self.config, dtype=self.dtype, block=BLOCK)
        options = Options(
            tokens=shape.tokens,
            sequences=shape.sequences,
            longest_query=shape.longest_query,
            logit_rows=shape.logit_rows,
            advance=shape.advance,
            blocks=CONTEXT // BLOCK,
            length=CONTEXT,
        )
        (function,) = signature.steps(pipeline.run(module, options, until=name, verify_each=True))
        return function

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """What transformers says after each token, float32 [N, V]."""
        with torch.no_grad():
            return self.model(torch.tensor([list(tokens)])).logits[0]

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens by transformers."""
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        return out[0, len(tokens) :].tolist()


def text(length: int, seed: int, vocabulary: int = BASE.vocabulary) -> list[int]:
    """Random token ids, never the last one of the vocabulary: tests keep that for padding."""
    return torch.randint(0, vocabulary - 1, (length,), generator=torch.Generator().manual_seed(seed)).tolist()

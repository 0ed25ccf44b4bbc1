"""The Llama family: a `ModelConfig` enters, the level-1 module of one model step leaves, with the weights it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects.builtin import ModuleOp, TensorType, f32, i32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from lamella.dialects import signature
from lamella.dialects.attributes import ELEMENT_TYPES, attribute_of
from lamella.dialects.transformer import (
    UNARY,
    AddOp,
    AdvanceOp,
    AttentionOp,
    CacheWriteOp,
    EmbeddingOp,
    GatherRowsOp,
    KVCacheType,
    LinearOp,
    MulOp,
    RMSNormOp,
    RopeOp,
    SampleOp,
    WeightOp,
    named_tensor,
)
from lamella.frontends.config import ModelConfig

INPUTS: Mapping[str, tuple[Attribute, tuple[str, ...]]] = {
    "tokens": (i32, ("N",)),
    "positions": (i32, ("N",)),
    "query_start": (i32, ("B+1",)),
    "context_len": (i32, ("B",)),
    "block_table": (i32, ("B", "M")),
    "logit_rows": (i32, ("R",)),
    "temperature": (f32, ("R",)),
    "top_k": (i32, ("R",)),
    "top_p": (f32, ("R",)),
    "seed": (i32, ("R",)),
}
"""The inputs of a step before its caches: element type and named dimensions."""

NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
ATTENTION = {name: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
FFN = {name: f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the model by its canonical name, in the order of use, with its shape; projections are [outputs, inputs]."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "attn.q_proj": (q, config.hidden, config.attention_bias),
        "attn.k_proj": (kv, config.hidden, config.attention_bias),
        "attn.v_proj": (kv, config.hidden, config.attention_bias),
        "attn.o_proj": (config.hidden, q, config.attention_bias),
        "ffn.gate_proj": (config.ffn, config.hidden, config.mlp_bias),
        "ffn.up_proj": (config.ffn, config.hidden, config.mlp_bias),
        "ffn.down_proj": (config.hidden, config.ffn, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocabulary, config.hidden)}
    for layer in range(config.layers):
        for name, (outputs, inputs, biased) in linears.items():
            if name in ("attn.q_proj", "ffn.gate_proj"):
                norm = "attn_norm" if name == "attn.q_proj" else "ffn_norm"
                shapes[f"layers.{layer}.{norm}"] = (config.hidden,)
            shapes[f"layers.{layer}.{name}"] = (outputs, inputs)
            if biased:
                shapes[f"layers.{layer}.{name}.bias"] = (outputs,)
    shapes["final_norm"] = (config.hidden,)
    if not config.tied:
        shapes["lm_head"] = (config.vocabulary, config.hidden)
    return shapes


def source_names(config: ModelConfig) -> dict[str, str]:
    """Canonical name -> the tensor's name in a Hugging Face checkpoint of the family."""
    parts = {
        **NORMS,
        **{f"attn.{name}": source for name, source in ATTENTION.items()},
        **{f"ffn.{name}": source for name, source in FFN.items()},
    }
    ends = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
    names: dict[str, str] = {}
    for name in weight_shapes(config):
        if name in ends:
            names[name] = ends[name]
            continue
        _, layer, part = name.split(".", 2)
        stem, kind = (part.removesuffix(".bias"), "bias") if part.endswith(".bias") else (part, "weight")
        names[name] = f"model.layers.{layer}.{parts[stem]}.{kind}"
    return names


def model_facts(config: ModelConfig) -> dict[str, int | str | Sequence[int]]:
    """What the manifest says under `model`."""
    return {
        "family": config.family,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "ffn": config.ffn,
        "vocabulary": config.vocabulary,
        "eos": list(config.eos),
    }


def build(config: ModelConfig, *, dtype: str, block: int) -> ModuleOp:
    """The module with `@forward`: one step of a ragged batch, as docs/architecture.md describes it.

    `dtype` (`f32 f16 bf16`) is the element type of weights, activations and cache; logits are float32. `block` is the number of tokens in
    a cache block. The module's attribute `lamella.model` holds `model_facts`.
    """
    element = ELEMENT_TYPES[dtype]
    paired = config.rotary if config.rope_style == "paired" else 0
    cache = KVCacheType.of(config.kv_heads, config.head_dim, element, block=block, paired=paired)
    caches = [f"cache.{layer}" for layer in range(config.layers)]
    names = [*INPUTS, *caches]
    types = [*(named_tensor(kind, dims) for kind, dims in INPUTS.values()), *(cache for _ in caches)]
    results = [named_tensor(f32, ["R", config.vocabulary]), named_tensor(i32, ["R"]), *(cache for _ in caches)]
    function = FuncOp("forward", (types, results))
    for value, name in zip(function.body.block.args, names, strict=True):
        value.name_hint = name
    signature.describe(function, names, ["logits", "next", *caches], [-1, -1, *range(len(INPUTS), len(names))])
    inputs = dict(zip(names, function.body.block.args, strict=True))
    Step(config, element, Builder(InsertPoint.at_end(function.body.block)), inputs).model()
    return ModuleOp([function], attributes={"lamella.model": attribute_of(model_facts(config))})


@dataclass(frozen=True)
class Step:
    """Emits the ops of one step at `builder`, from the inputs by name."""

    config: ModelConfig
    element: Attribute
    builder: Builder
    inputs: Mapping[str, SSAValue]
    weights: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    """Weight ops emitted so far: each name has one."""

    def emit(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Insert an op; its first result, named `hint` in the text."""
        value = self.builder.insert(op).results[0]
        value.name_hint = hint
        return value

    def weight(self, name: str) -> SSAValue:
        """The handle of a weight."""
        if name not in self.weights:
            type = TensorType(self.element, weight_shapes(self.config)[name])
            self.weights[name] = self.emit(WeightOp(name, type), name)
        return self.weights[name]

    def linear(self, x: SSAValue, name: str, biased: bool, loc: str) -> SSAValue:
        """x times the weight `name`, plus its bias where the model has one."""
        bias = self.weight(f"{name}.bias") if biased else None
        return self.emit(LinearOp(x, self.weight(name), bias, loc=loc), loc.rpartition(".")[2])

    def rope(self, x: SSAValue, heads: int, loc: str) -> SSAValue:
        """x [N, heads·head_dim] with its heads turned by their positions."""
        config = self.config
        op = RopeOp(
            x,
            self.inputs["positions"],
            heads=heads,
            head_dim=config.head_dim,
            rotary_dim=config.rotary,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            style=config.rope_style,
            loc=loc,
        )
        return self.emit(op, loc.rpartition(".")[2])

    def attention(self, x: SSAValue, cache: SSAValue, prefix: str) -> tuple[SSAValue, SSAValue]:
        """The attention block on normalized x: its output, and the cache with this step's keys and values."""
        config, inputs, biased = self.config, self.inputs, self.config.attention_bias
        q, k, v = (self.linear(x, f"{prefix}.{part}_proj", biased, f"{prefix}.{part}") for part in "qkv")
        q = self.rope(q, config.heads, f"{prefix}.rope_q")
        k = self.rope(k, config.kv_heads, f"{prefix}.rope_k")
        write = CacheWriteOp(cache, k, v, inputs["positions"], inputs["query_start"], inputs["block_table"], loc=f"{prefix}.cache")
        cache = self.emit(write, "cache")
        mixed = AttentionOp(
            q,
            cache,
            inputs["block_table"],
            inputs["query_start"],
            inputs["context_len"],
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            loc=f"{prefix}.attention",
        )
        return self.linear(self.emit(mixed, "mixed"), f"{prefix}.o_proj", biased, f"{prefix}.o"), cache

    def ffn(self, x: SSAValue, prefix: str) -> SSAValue:
        """The gated feed-forward block on normalized x."""
        config = self.config
        gate = self.linear(x, f"{prefix}.gate_proj", config.mlp_bias, f"{prefix}.gate")
        up = self.linear(x, f"{prefix}.up_proj", config.mlp_bias, f"{prefix}.up")
        active = self.emit(UNARY[config.activation](gate, loc=f"{prefix}.activation"), "active")
        gated = self.emit(MulOp(active, up, loc=f"{prefix}.gated"), "gated")
        return self.linear(gated, f"{prefix}.down_proj", config.mlp_bias, f"{prefix}.down")

    def norm(self, x: SSAValue, name: str) -> SSAValue:
        """x normalized, with the weight `name`."""
        return self.emit(RMSNormOp(x, self.weight(name), self.config.rms_eps, loc=name), "normal")

    def model(self) -> None:
        """The whole step, and its return."""
        inputs, caches = self.inputs, list[SSAValue]()
        x = self.emit(EmbeddingOp(inputs["tokens"], self.weight("embed"), loc="embed"), "x")
        for layer in range(self.config.layers):
            prefix = f"layers.{layer}"
            out, cache = self.attention(self.norm(x, f"{prefix}.attn_norm"), inputs[f"cache.{layer}"], f"{prefix}.attn")
            caches.append(cache)
            x = self.emit(AddOp(x, out, loc=f"{prefix}.attn.residual"), "x")
            out = self.ffn(self.norm(x, f"{prefix}.ffn_norm"), f"{prefix}.ffn")
            x = self.emit(AddOp(x, out, loc=f"{prefix}.ffn.residual"), "x")
        # Rows that want no logits are dropped before the last norm: it and the head work on R rows, not N.
        x = self.norm(self.emit(GatherRowsOp(x, inputs["logit_rows"], loc="logit_rows"), "x"), "final_norm")
        head = self.weight("embed" if self.config.tied else "lm_head")
        logits = self.emit(LinearOp(x, head, element=f32, loc="lm_head"), "logits")
        position = self.emit(GatherRowsOp(inputs["positions"], inputs["logit_rows"], loc="sample.position"), "position")
        position = self.emit(AdvanceOp(position, loc="sample.position"), "position")
        temperature, top_k, top_p, seed = (inputs[name] for name in ("temperature", "top_k", "top_p", "seed"))
        token = self.emit(SampleOp(logits, temperature, top_k, top_p, seed, position, loc="sample"), "next")
        self.builder.insert(ReturnOp(logits, token, *caches))

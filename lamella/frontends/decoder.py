"""A `ModelConfig` enters; the level-1 module of one step of the decoder (or encoder) it describes leaves, with the weights it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.builder import Builder
from xdsl.dialects.builtin import ModuleOp, f32, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.rewriter import InsertPoint

from lamella.dialects import signature
from lamella.dialects.attributes import ELEMENT_TYPES, attribute_of
from lamella.dialects.transformer import KVCacheType, named_tensor
from lamella.frontends.blocks import Step
from lamella.frontends.config import Experts, ModelConfig
from lamella.frontends.family import family

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
    "min_p": (f32, ("R",)),
    "seed": (i32, ("R",)),
}
"""The inputs of a decoder's step before its caches: element type and named dimensions."""
PENALTIES: Mapping[str, tuple[Attribute, tuple[str | int, ...]]] = {"penalty": (f32, ("R",)), "factors": (f32, ("R", "V"))}
"""Two more where tokens that a text has are held back: what each row divides logits of such tokens by, and that, or 1, for every token (V: the vocabulary)."""
LENGTHS: Mapping[str, tuple[Attribute, tuple[str, ...]]] = {"text_length": (i32, ("N",))}
"""One more where a rotation depends on how long the text of a token is (LongRoPE)."""
ENCODER_INPUTS: Mapping[str, tuple[Attribute, tuple[str, ...]]] = {
    **{name: INPUTS[name] for name in ("tokens", "positions", "query_start", "context_len", "block_table")},
    "token_types": (i32, ("N",)),
}
"""Those of an encoder's, which draws no token."""


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint by its canonical name, in the order of use, with its shape; projections are [outputs, inputs]."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocabulary, config.hidden)}
    if config.token_types:
        shapes["embed_types"] = (config.token_types, config.hidden)
    if config.positions == "learned":
        shapes["embed_positions"] = (config.position_offset + config.max_positions, config.hidden)
    shapes |= _norm_shapes(config, "embed_norm") if config.embed_norm else {}
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config, layer).items()}
    shapes |= {} if config.sum_norm else _norm_shapes(config, "final_norm")
    if config.causal and not config.tied:
        shapes["lm_head"] = (config.vocabulary, config.hidden)
    return shapes


def _norm_shapes(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}{suffix}": (config.hidden,) for suffix in config.norm_suffixes}


def _linear_shapes(config: ModelConfig, name: str, outputs: int, inputs: int, biased: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {name: (inputs, outputs) if config.transposed else (outputs, inputs)}
    return {**shapes, f"{name}.bias": (outputs,)} if biased else shapes


def _head_norm_shapes(config: ModelConfig, name: str, heads: int) -> dict[str, tuple[int, ...]]:
    match config.qk_norm:
        case "":
            return {}
        case "row":
            return {name: (heads * config.head_dim,)}
        case "head":
            return {name: (config.head_dim,)}
        case _ if config.qk_norm_tensors == "many":
            return {f"{name}.{head}": (config.head_dim,) for head in range(heads)}
        case _:
            return {name: (heads, config.head_dim)}


def _layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, by their names within it."""
    q, kv, hidden = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.hidden
    shapes = _norm_shapes(config, "attn_norm") if config.pre_norm else {}
    widths = {"qkv_proj": q + 2 * kv} if config.fused_qkv else {"q_proj": q, "k_proj": kv, "v_proj": kv}
    for name, width in widths.items():
        shapes |= _linear_shapes(config, f"attn.{name}", width, hidden, config.attention_bias)
    shapes |= _head_norm_shapes(config, "attn.q_norm", config.heads)
    shapes |= _head_norm_shapes(config, "attn.k_norm", config.kv_heads)
    output_bias = config.attention_bias if config.output_bias is None else config.output_bias
    shapes |= _linear_shapes(config, "attn.o_proj", hidden, q, output_bias)
    shapes |= _norm_shapes(config, "attn_post_norm") if config.post_norm else {}
    shapes |= _norm_shapes(config, "attn_sum_norm") if config.sum_norm else {}
    shapes |= _norm_shapes(config, "ffn_norm") if config.pre_norm and not (config.parallel and config.shared_norm) else {}
    mixture = None if config.layer(layer).dense else config.experts
    shapes |= _ffn_shapes(config, "ffn", config.ffn) if mixture is None else _experts_shapes(config, mixture)
    shapes |= _norm_shapes(config, "ffn_post_norm") if config.post_norm else {}
    return shapes | (_norm_shapes(config, "ffn_sum_norm") if config.sum_norm else {})


def _experts_shapes(config: ModelConfig, experts: Experts) -> dict[str, tuple[int, ...]]:
    """The tensors of a mixture of experts: its router, then all gates, all ups and all downs; then those of the expert for all tokens."""
    hidden = config.hidden
    shapes: dict[str, tuple[int, ...]] = {"ffn.router": (experts.count, hidden)}
    for name in ("gate_proj", "up_proj", "down_proj"):
        rows, columns = (hidden, experts.width) if name == "down_proj" else (experts.width, hidden)
        if config.experts_stacked:
            shapes[f"ffn.experts.{name}"] = (experts.count * rows, columns)
        else:
            shapes |= {f"ffn.experts.{number}.{name}": (rows, columns) for number in range(experts.count)}
    if experts.shared:
        shapes |= {"ffn.shared_gate": (1, hidden), **_ffn_shapes(config, "ffn.shared", experts.shared)}
    return shapes


def _ffn_shapes(config: ModelConfig, place: str, ffn: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a feed-forward layer of that width that serves all tokens."""
    hidden, shapes = config.hidden, dict[str, tuple[int, ...]]()
    widths = {"gate_up_proj": 2 * ffn} if config.fused_gate else {"gate_proj": ffn, "up_proj": ffn} if config.gated else {"up_proj": ffn}
    for name, width in widths.items():
        shapes |= _linear_shapes(config, f"{place}.{name}", width, hidden, config.mlp_bias)
    return shapes | _linear_shapes(config, f"{place}.down_proj", hidden, ffn, config.mlp_bias)


def source_names(config: ModelConfig) -> dict[str, str]:
    """Canonical name -> the tensor's name in a Hugging Face checkpoint of the family."""
    stored = family(config.family).stored
    return {name: stored(name) for name in weight_shapes(config)}


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


def build(config: ModelConfig, *, dtype: str, block: int, penalties: bool = False) -> ModuleOp:
    """The module with `@forward`: one step of a ragged batch, as docs/architecture.md describes it; of an encoder one whose texts are whole.

    `dtype` (`f32 f16 bf16`) is the element type of weights, activations and (without `config.kv_cache`) cache; logits are float32. `block` is
    the number of tokens in a cache block. `penalties`: the inputs of PENALTIES, by which logits are penalized before a token is drawn. The module's attribute `lamella.model` holds `model_facts`.
    """
    element = ELEMENT_TYPES[dtype]
    paired = config.rotary if config.rope_style == "paired" and config.positions == "rope" else 0
    stored = ELEMENT_TYPES[config.kv_cache] if config.kv_cache else element
    cache = KVCacheType.of(config.kv_heads, config.head_dim, stored, block=block, paired=paired)
    caches = [f"cache.{layer}" for layer in range(config.layers if config.causal else 1)]
    drawn = {**INPUTS, **(PENALTIES if penalties else {}), **(LENGTHS if config.lengths_matter else {})}
    own = drawn if config.causal else ENCODER_INPUTS
    names = [*own, *caches]
    sized = {name: (kind, [config.vocabulary if d == "V" else d for d in dims]) for name, (kind, dims) in own.items()}
    types = [*(named_tensor(kind, dims) for kind, dims in sized.values()), *(cache for _ in caches)]
    made = {"logits": named_tensor(f32, ["R", config.vocabulary]), "next": named_tensor(i32, ["R"])}
    made = made if config.causal else {"hidden": named_tensor(element, ["N", config.hidden])}
    results = [*made.values(), *(cache for _ in caches)]
    function = FuncOp("forward", (types, results))
    for value, name in zip(function.body.block.args, names, strict=True):
        value.name_hint = name
    signature.describe(function, names, [*made, *caches], [*(-1 for _ in made), *range(len(own), len(names))])
    inputs = dict(zip(names, function.body.block.args, strict=True))
    step = Step(config, element, Builder(InsertPoint.at_end(function.body.block)), inputs, weight_shapes(config))
    if config.causal:
        step.model()
    else:
        step.encoder()
    if step.records:
        signature.record(function, step.records)
    return ModuleOp([function], attributes={"lamella.model": attribute_of(model_facts(config))})

"""What GGUF files call the architectures of families, and the fields of their configurations; and where the format stores weights differently.

The keys are those of llama.cpp's converter and of the gguf package; tensor names are the package's own map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nextafter
from typing import Any

from lamella.checkpoints import GgufFile, GgufSource
from lamella.errors import TensorError
from lamella.frontends.config import ModelConfig
from lamella.frontends.fields import Fields

BASE: Mapping[str, str] = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
}
"""Fields of a config.json, and the metadata they stand in, after the architecture's name."""
WINDOW = {"sliding_window": "attention.sliding_window"}
EXPERTS = {
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

Extra = Callable[[Fields, GgufFile], Mapping[str, Any]]


@dataclass(frozen=True)
class Architecture:
    """One architecture of the format."""

    family: str
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where fields stand, beside BASE."""
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields the format does not keep."""
    layout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How its weights are stored, as changes of the `ModelConfig` that the family reads."""
    biases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields that say whether a tensor is there."""
    extra: Extra = lambda own, header: {}
    """Fields that follow from others, or from tensors."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Canonical parts whose names the package's map does not know by the family's."""


def config_fields(architecture: Architecture, own: Fields, header: GgufFile, vocabulary: int, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that a file of an architecture amounts to. `own` are the metadata without the architecture's name."""
    keys = {**BASE, **architecture.fields}
    values: dict[str, Any] = {name: own.values[key] for name, key in keys.items() if key in own.values}
    turning, size = own.values.get("rope.dimension_count"), _head_size(own)
    if type(turning) is int and size and turning != size:
        # A share whose product with the size of a head is rounded down to the number that was given.
        values["partial_rotary_factor"] = nextafter(turning / size, 2.0)
    values |= {"vocab_size": vocabulary, "tie_word_embeddings": "output.weight" not in header.tensors}
    values |= {name: tensor in header.tensors for name, tensor in architecture.biases.items()}
    if scaling:
        values["rope_scaling"] = dict(scaling)
    return {**values, **architecture.constants, **architecture.extra(own, header)}


def _head_size(own: Fields) -> int:
    """The size of a head as far as the metadata can be read; 0 where they make no sense, which the family then says."""
    stated, hidden, heads = (own.values.get(key) for key in ("attention.key_length", "embedding_length", "attention.head_count"))
    if stated is not None:
        return stated if type(stated) is int and stated > 0 else 0
    return hidden // heads if type(hidden) is int and type(heads) is int and heads > 0 and hidden > 0 else 0


def tensor_names(architecture: str, config: ModelConfig, stored: Callable[[str], str], prefix: str, canonical: list[str]) -> dict[str, str]:
    """
    The file's name of each canonical name, by the gguf package's map from the names that `stored` gives; `prefix` is what some of those
    begin with, and the package leaves out. Raises TensorError for one that the package does not know.
    """
    import gguf

    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known: Any = gguf.get_tensor_name_map(number, config.layers)
    own = ARCHITECTURES[architecture].names
    out: dict[str, str] = {}
    for name in canonical:
        stem, kind = (name.removesuffix(".bias"), "bias") if name.endswith(".bias") else (name, "weight")
        layer, part = stem.split(".", 2)[1:] if stem.startswith("layers.") else ("", stem)
        if part in own:
            out[name] = f"blk.{layer}.{own[part]}.{kind}" if layer else f"{own[part]}.{kind}"
            continue
        theirs = stored(name)
        found = known.get_name(theirs, try_suffixes=(".weight", ".bias"))
        found = found or known.get_name(theirs.removeprefix(prefix), try_suffixes=(".weight", ".bias"))
        if found is None:
            raise TensorError(f"{theirs} ({name}) has no name in GGUF files of {architecture}")
        out[name] = str(found)
    return out


def _gemma2_scale(own: Fields, header: GgufFile) -> Mapping[str, Any]:
    """Scores are scaled by the size of a head, in the 27B model by hidden / heads: the file does not say, llama.cpp tells it by its layers."""
    return _scaled_by(own, largest=46)


def _gemma3_scale(own: Fields, header: GgufFile) -> Mapping[str, Any]:
    """As for Gemma 2."""
    return _scaled_by(own, largest=62)


def _scaled_by(own: Fields, largest: int) -> Mapping[str, Any]:
    if own.count("block_count") == largest:
        return {"query_pre_attn_scalar": own.count("embedding_length") // own.count("attention.head_count")}
    return {"query_pre_attn_scalar": own.count("attention.key_length", 256)}


def _phi3_factors(own: Fields, header: GgufFile) -> Mapping[str, Any]:
    """LongRoPE's factors are tensors; the original length and the attention factor are metadata."""
    given: dict[str, Any] = {}
    original = own.values.get("rope.scaling.original_context_length")
    if original is not None:
        given["original_max_position_embeddings"] = original
    if LONG not in header.tensors or SHORT not in header.tensors:
        return given
    source = GgufSource.open(header, {"long_factor": LONG, "short_factor": SHORT}, None, lambda name: True)
    factors = {name: [float(v) for v in source.load(name, "f32").flatten()] for name in ("long_factor", "short_factor")}
    attention = own.values.get("rope.scaling.attn_factor")
    return {**given, "rope_scaling": {"rope_type": "longrope", **factors, **({} if attention is None else {"attention_factor": attention})}}


def _gpt2_names(own: Fields, header: GgufFile) -> Mapping[str, Any]:
    """GPT-2's sizes have names of their own."""
    keys = {"n_embd": "embedding_length", "n_head": "attention.head_count", "n_layer": "block_count", "n_inner": "feed_forward_length"}
    return {name: own.values[key] for name, key in {**keys, "n_positions": "context_length"}.items() if key in own.values}


def _bloom_names(own: Fields, header: GgufFile) -> Mapping[str, Any]:
    """As do BLOOM's."""
    keys = {"n_inner": "feed_forward_length", "seq_length": "context_length"}
    return {name: own.values[key] for name, key in keys.items() if key in own.values}


ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
MLP_BIAS = {"mlp_bias": "blk.0.ffn_up.bias"}
PLUS_ONE = {"norm_offset": 0.0}
"""Gemma's norms are stored with the 1 added."""
PAIRED = {"rope_style": "paired"}
"""Rows of q and k lie in pairs."""
STACKED = {"experts_stacked": True}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "mixtral",
        {**WINDOW, **EXPERTS},
        layout={**STACKED, **PAIRED},
        names={"ffn.router": "ffn_gate_inp", **{f"ffn.experts.{kind}_proj": f"ffn_{kind}_exps" for kind in ("gate", "up", "down")}},
    ),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", biases=ATTENTION_BIAS),
    "qwen2moe": Architecture("qwen2_moe", EXPERTS, layout=STACKED, biases={"qkv_bias": "blk.0.attn_q.bias"}),
    # llama.cpp always divides by the sum of the chosen weights here.
    "qwen3moe": Architecture("qwen3_moe", EXPERTS, {"norm_topk_prob": True}, STACKED, ATTENTION_BIAS),
    "gemma": Architecture("gemma", layout=PLUS_ONE),
    "gemma2": Architecture(
        "gemma2",
        {**WINDOW, "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
        layout=PLUS_ONE,
        extra=_gemma2_scale,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {**WINDOW, "rope_local_base_freq": "rope.freq_base_swa", "final_logit_softcapping": "final_logit_softcapping"},
        layout=PLUS_ONE,
        extra=_gemma3_scale,
    ),
    "phi3": Architecture("phi3", WINDOW, extra=_phi3_factors),
    "stablelm": Architecture(
        "stablelm",
        {"use_parallel_residual": "use_parallel_residual"},
        layout={"qk_norm_tensors": "one"},
        biases={"use_qkv_bias": "blk.0.attn_q.bias", "qk_layernorm": "blk.0.attn_q_norm.weight"},
        names={"attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm"},
    ),
    "olmo2": Architecture("olmo2", biases=ATTENTION_BIAS),
    "granite": Architecture(
        "granite",
        {
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention.scale",
            "logits_scaling": "logit_scale",
        },
        layout=PAIRED,
        biases={**ATTENTION_BIAS, **MLP_BIAS},
    ),
    "smollm3": Architecture("smollm3", layout=PAIRED, biases={**ATTENTION_BIAS, **MLP_BIAS}),
    "command-r": Architecture(
        "cohere", {"logit_scale": "logit_scale"}, biases={**ATTENTION_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"}
    ),
    "gpt2": Architecture("gpt2", layout={"transposed": False}, extra=_gpt2_names),
    "gptneox": Architecture(
        "gpt_neox",
        {"use_parallel_residual": "use_parallel_residual"},
        layout={"fused_qkv": "rows"},
        biases={"attention_bias": "blk.0.attn_qkv.bias"},
    ),
    "bloom": Architecture("bloom", layout={"fused_qkv": "rows"}, extra=_bloom_names, names={"embed_norm": "token_embd_norm"}),
}
"""The architectures of the format. `llama` stands for its mixtures of experts here: the others `frontends.gguf` reads itself."""

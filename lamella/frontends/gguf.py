"""A GGUF header enters; the model's configuration, and what the file calls each tensor, leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import pi
from typing import Any

from lamella.checkpoints import GgufFile, GgufSource
from lamella.errors import ConfigError, TensorError, UnknownArchitectureError, nearest
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import weight_shapes
from lamella.frontends.family import family
from lamella.frontends.fields import Fields
from lamella.frontends.gguf_architectures import ARCHITECTURES, LONG, SHORT, Architecture, config_fields, tensor_names
from lamella.frontends.huggingface import GenerationDefaults
from lamella.frontends.parts import MOST_HEADS, MOST_LAYERS

TENSORS: Mapping[str, str] = {
    "embed": "token_embd",
    "final_norm": "output_norm",
    "lm_head": "output",
    "attn_norm": "attn_norm",
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.o_proj": "attn_output",
    "ffn_norm": "ffn_norm",
    "ffn.gate_proj": "ffn_gate",
    "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down",
}
"""Canonical names, without layer and `.bias`, and those of the llama architecture."""

ROPE_FACTORS = "rope_freqs.weight"


def gguf_config(header: GgufFile) -> ModelConfig:
    """
    The configuration of a file. `dtype` is that of its plain matrices; bf16, which has float32's range, for quantized ones.
    Raises ConfigError, UnknownArchitectureError, TensorError.
    """
    fields = Fields(str(header.path), header.metadata)
    architecture = fields.text("general.architecture")
    own = Fields(
        fields.where, {k.removeprefix(f"{architecture}."): v for k, v in header.metadata.items() if k.startswith(f"{architecture}.")}
    )
    if architecture == "llama" and not own.values.get("expert_count"):
        return _llama(header, fields, own)
    if architecture not in ARCHITECTURES:
        hint = nearest(architecture, ARCHITECTURES)
        # All of them would not be one clear line.
        remedy = hint if hint.startswith("nearest") else "see docs/families.md for those that are read"
        raise UnknownArchitectureError(f"unknown architecture {architecture}", where=fields.where, remedy=remedy)
    return _of_family(ARCHITECTURES[architecture], header, fields, own)


def _of_family(architecture: Architecture, header: GgufFile, fields: Fields, own: Fields) -> ModelConfig:
    """The configuration of a file that has the fields of a family, under other names."""
    vocabulary = _vocabulary(header, own)
    made = family(architecture.family)
    if own.values.get("expert_count") and "num_experts" not in architecture.fields:
        raise own.error("mixtures of experts are not supported in this architecture: expert_count", "none", own.values["expert_count"])
    size = own.values.get("attention.key_length")
    if size is not None and own.values.get("attention.value_length", size) != size:
        raise own.error("keys and values differ in size: attention.value_length", str(size), own.values["attention.value_length"])
    if own.values.get("rope.scaling.type") == "longrope":
        own = replace(own, values={**own.values, "rope.scaling.type": "none"})
    config = made.read(Fields(fields.where, config_fields(architecture, own, header, vocabulary, _scaling(own))))
    bos = fields.ids("tokenizer.ggml.bos_token_id")
    config = replace(config, eos=_ends(fields), bos=bos[0] if bos else None, dtype=_dtype(header), **architecture.layout)
    return config if ROPE_FACTORS not in header.tensors else replace(config, rope_scaling=_llama3_scaling(config, header))


def _vocabulary(header: GgufFile, own: Fields) -> int:
    """The rows of the embedding. Raises TensorError where there is none, ConfigError where the metadata say something else."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise TensorError("tensor token_embd.weight (embed) is missing", where=own.where, expected="a matrix of vocabulary × hidden")
    if own.has("vocab_size") and own.count("vocab_size") != embedding.shape[0]:
        raise own.error("vocab_size contradicts token_embd.weight", f"{embedding.shape[0]}", own.count("vocab_size"))
    return embedding.shape[0]


def as_matrices(header: GgufFile) -> GgufFile:
    """The header with the weights of all experts of a layer as one matrix, their rows in order, and the gate of a shared expert as a row."""

    def shape(name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if "_exps." in name and len(sizes) == 3:
            return sizes[0] * sizes[1], sizes[2]
        return (1, *sizes) if "ffn_gate_inp_shexp." in name and len(sizes) == 1 else sizes

    return replace(header, tensors={name: replace(t, shape=shape(name, t.shape)) for name, t in header.tensors.items()})


def _llama(header: GgufFile, fields: Fields, own: Fields) -> ModelConfig:
    """The configuration of a file of the llama architecture. Its query and key rows are stored interleaved, hence `rope_style` `paired`."""
    hidden, heads = own.count("embedding_length"), own.count("attention.head_count", most=MOST_HEADS)
    kv_heads = own.count("attention.head_count_kv", heads, most=MOST_HEADS)
    if not own.has("attention.key_length") and hidden % heads:
        raise own.error("embedding_length is not a multiple of attention.head_count", f"a multiple of {heads}", hidden)
    head_dim = own.count("attention.key_length", max(1, hidden // heads))
    if own.count("attention.value_length", head_dim) != head_dim:
        raise own.error("keys and values differ in size: attention.value_length", str(head_dim), own.values["attention.value_length"])
    if heads % kv_heads:
        raise own.error("attention.head_count is not a multiple of attention.head_count_kv", f"a multiple of {kv_heads}", heads)
    rotary = own.count("rope.dimension_count", head_dim)
    if rotary % 2 or rotary > head_dim:
        raise own.error("rope.dimension_count does not fit a head", f"an even number up to {head_dim}", rotary)
    context = own.count("context_length", 2048)
    if own.values.get("attention.sliding_window") and own.count("attention.sliding_window") < context:
        raise own.error("sliding-window attention is not supported", f"a window of {context}", own.values["attention.sliding_window"])
    vocabulary = _vocabulary(header, own)
    bos = fields.ids("tokenizer.ggml.bos_token_id")
    config = ModelConfig(
        family="llama",
        layers=own.count("block_count", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=own.count("feed_forward_length"),
        vocabulary=vocabulary,
        norm_eps=own.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope_theta=own.number("rope.freq_base", 10000.0),
        rope_scaling=_scaling(own),
        rotary_dim=rotary,
        rope_style="paired",
        tied="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        activation="silu",
        max_positions=context,
        eos=_ends(fields),
        bos=bos[0] if bos else None,
        dtype=_dtype(header),
    )
    if ROPE_FACTORS in header.tensors:
        config = replace(config, rope_scaling=_llama3_scaling(config, header))
    return config


def file_names(header: GgufFile, config: ModelConfig) -> dict[str, str]:
    """What the file calls each tensor of the configuration."""
    architecture, canonical = str(header.metadata["general.architecture"]), list(weight_shapes(config))
    if config.family == "llama":
        return gguf_names(canonical)
    made = family(config.family)
    return tensor_names(architecture, config, made.stored, made.prefix, canonical)


def gguf_names(canonical: Iterable[str]) -> dict[str, str]:
    """The name of each canonical name in the llama architecture: `layers.3.attn.q_proj.bias` → `blk.3.attn_q.bias`."""
    names: dict[str, str] = {}
    for name in canonical:
        stem, bias = (name.removesuffix(".bias"), "bias") if name.endswith(".bias") else (name, "weight")
        if stem.startswith("layers."):
            _, layer, part = stem.split(".", 2)
            names[name] = f"blk.{layer}.{TENSORS[part]}.{bias}"
        else:
            names[name] = f"{TENSORS[stem]}.{bias}"
    return names


def gguf_harmless(name: str) -> bool:
    """Tensors that `gguf_config` has turned into configuration, or that old converters wrote for nobody."""
    return name in (ROPE_FACTORS, LONG, SHORT) or name.endswith((".attn_rot_embd.weight", ".rope_freqs.weight"))


def gguf_generation(config: ModelConfig) -> GenerationDefaults:
    """GGUF stores end tokens and no sampling parameters."""
    return GenerationDefaults(eos=config.eos)


def _ends(fields: Fields) -> tuple[int, ...]:
    """End of text and, where the file names another one, end of turn."""
    ends = fields.ids("tokenizer.ggml.eos_token_id") + fields.ids("tokenizer.ggml.eot_token_id")
    return tuple(dict.fromkeys(ends))


def _dtype(header: GgufFile) -> str:
    kinds = Counter(t.dtype for t in header.tensors.values() if len(t.shape) == 2)
    kind = kinds.most_common(1)[0][0]
    return kind if kind in ("f32", "f16", "bf16") else "bf16"


def _scaling(own: Fields) -> dict[str, int | float | str]:
    """The scaling that the metadata name: linear, or none. Yarn and others change the mathematics: ConfigError."""
    kind = own.text("rope.scaling.type", "none")
    # Older converters wrote only a factor, meaning linear.
    if own.has("rope.scale_linear"):
        kind, factor = "linear", own.number("rope.scale_linear")
    else:
        factor = own.number("rope.scaling.factor", 1.0)
    if kind not in ("none", "linear"):
        raise own.error(f"unknown RoPE scaling {kind}", remedy=nearest(kind, ("none", "linear")))
    return {"rope_type": "linear", "factor": factor} if kind == "linear" and factor != 1.0 else {}


def _llama3_scaling(config: ModelConfig, header: GgufFile) -> dict[str, Any]:
    """
    The parameters behind a tensor of frequency divisors. llama.cpp's converter writes it from Llama 3.1's scaling, whose parameters
    the file does not keep: the factor is the largest divisor; the rest are those all Llama 3 checkpoints share, and are verified.
    """
    source = GgufSource.open(header, {"factors": ROPE_FACTORS}, None)
    divisors = [float(d) for d in source.load("factors", "f32").flatten()]
    where, half = str(header.path), config.rotary // 2
    if len(divisors) != half:
        raise TensorError(f"tensor {ROPE_FACTORS} has the wrong shape", where=where, expected=f"({half},)", got=f"({len(divisors)},)")
    if all(d == 1 for d in divisors):
        return dict(config.rope_scaling)
    factor, low, high, original = max(divisors), 1.0, 4.0, 8192
    for j, divisor in enumerate(divisors):
        wavelength = 2 * pi * config.rope_theta ** (2 * j / config.rotary)
        blend = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        expected = 1 / ((1 - blend) / factor + blend)
        if abs(divisor - expected) > 1e-4 * expected or config.rope_scaling:
            what = f"tensor {ROPE_FACTORS} holds RoPE factors of an unknown rule"
            raise ConfigError(what, where=where, expected=f"Llama 3's: {expected:.6g} at {j}", got=f"{divisor:.6g}")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }

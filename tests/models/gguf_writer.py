"""Tiny models of `transformers` as GGUF files in float32, as llama.cpp's converter would write them: names by the gguf package's map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

Tensors = dict[str, torch.Tensor]


def unchanged(tensors: Tensors, config: Any) -> Tensors:
    """Most architectures store what transformers has."""
    return tensors


def plus_one(tensors: Tensors, config: Any) -> Tensors:
    """Gemma: norms with the 1 added."""
    return {name: tensor + 1 if name.endswith("norm.weight") else tensor for name, tensor in tensors.items()}


def paired(tensors: Tensors, config: Any) -> Tensors:
    """Rows of q and k whose halves turn together come to lie side by side."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if f"self_attn.{part}." in name:
                halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
                out[name] = halves.transpose(1, 2).reshape(tensor.shape)
    return out


def by_rows(tensors: Tensors, config: Any) -> Tensors:
    """q, k and v of each head become all of q, of k, of v."""
    out = dict(tensors)
    heads = config.num_attention_heads
    for name, tensor in tensors.items():
        if "query_key_value." in name:
            each = tensor.reshape(heads, 3, -1, *tensor.shape[1:])
            out[name] = each.transpose(0, 1).reshape(tensor.shape)
    return out


def turned(tensors: Tensors, config: Any) -> Tensors:
    """GPT-2: projections as [outputs, inputs]."""
    return {n: t.T if t.dim() == 2 and any(p in n for p in ("c_attn", "c_proj", "c_fc")) else t for n, t in tensors.items()}


def stacked_norms(tensors: Tensors, config: Any) -> Tensors:
    """StableLM: the norms of all heads as one matrix."""
    out: Tensors = {}
    for name, tensor in tensors.items():
        head, found, _ = name.partition(".norms.")
        if not found:
            out[name] = tensor
        elif f"{head}.weight" not in out:
            count = sum(other.startswith(f"{head}.norms.") for other in tensors)
            out[f"{head}.weight"] = torch.stack([tensors[f"{head}.norms.{number}.weight"] for number in range(count)])
    return out


def stacked_experts(tensors: Tensors, config: Any) -> Tensors:
    """All experts of a layer as one tensor; gate and up apart, which transformers holds together; the gate of a shared one as a vector."""
    out: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, 1)
            out |= {name.replace("gate_up_proj", "gate_proj.weight"): gate, name.replace("gate_up_proj", "up_proj.weight"): up}
        elif name.endswith("experts.down_proj"):
            out[f"{name}.weight"] = tensor
        else:
            out[name] = tensor[0] if name.endswith("shared_expert_gate.weight") else tensor
    return out


def as_llama(tensors: Tensors, config: Any) -> Tensors:
    """Mixtral: q and k in pairs, experts together, by the names of Llama's mixtures."""
    stacked = stacked_experts(paired(tensors, config), config)
    return {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in stacked.items()}


@dataclass(frozen=True)
class Written:
    """How one case is written."""

    case: str
    """Its name among CASES."""
    architecture: str
    convert: Callable[[Tensors, Any], Tensors] = unchanged
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key -> field of transformers' configuration, beside the usual ones."""
    prefix: str = ""
    """Start of names that the package's map leaves out."""
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of the configuration than the case has: what the format cannot say."""
    peer: bool = True
    """Whether transformers reads the file too."""


USUAL = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
WINDOW = {"attention.sliding_window": "sliding_window"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
MIXTURE = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
GRANITE = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
NO_WINDOW = {"use_sliding_window": False}
FILES = (
    Written(
        "mixtral",
        "llama",
        as_llama,
        {**WINDOW, **MIXTURE, "expert_count": "num_local_experts"},
        changes={"num_key_value_heads": 2},
        peer=False,
    ),
    Written("qwen2", "qwen2", changes=NO_WINDOW),
    Written("qwen3", "qwen3", changes={**NO_WINDOW, "attention_bias": False}),
    Written("qwen2_moe", "qwen2moe", stacked_experts, MIXTURE, changes={"mlp_only_layers": [], "norm_topk_prob": False}),
    Written("qwen3_moe", "qwen3moe", stacked_experts, MIXTURE, changes={"mlp_only_layers": []}),
    Written("gemma", "gemma", plus_one, peer=False),
    Written("gemma2", "gemma2", plus_one, {**WINDOW, **CAPS}, changes={"query_pre_attn_scalar": 16}),
    Written(
        "gemma3",
        "gemma3",
        plus_one,
        {**WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        changes={"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "layer_types": None, "attn_logit_softcapping": None},
    ),
    Written("phi3, both", "phi3", metadata=WINDOW),
    Written("stablelm", "stablelm", stacked_norms, {"use_parallel_residual": "use_parallel_residual"}, peer=False),
    Written("stablelm, sequential", "stablelm", metadata={"use_parallel_residual": "use_parallel_residual"}),
    Written("olmo2", "olmo2", peer=False),
    Written("granite", "granite", paired, GRANITE, changes={"attention_bias": False, "mlp_bias": False}, peer=False),
    Written(
        "smollm3",
        "smollm3",
        paired,
        changes={**NO_WINDOW, "no_rope_layer_interval": 4, "num_hidden_layers": 5, "attention_bias": False},
        peer=False,
    ),
    Written("cohere", "command-r", metadata={"logit_scale": "logit_scale"}, peer=False),
    Written(
        "gpt2",
        "gpt2",
        turned,
        {"feed_forward_length": "n_inner", "attention.layer_norm_epsilon": "layer_norm_epsilon"},
        changes={"scale_attn_by_inverse_layer_idx": False},
    ),
    Written("gpt_neox", "gptneox", by_rows, {"use_parallel_residual": "use_parallel_residual"}, peer=False),
    Written("bloom", "bloom", by_rows, {"attention.layer_norm_epsilon": "layer_norm_epsilon"}, prefix="transformer."),
)


def write(made: Written, model: transformers.PreTrainedModel, file: Path, kind: gguf.GGMLQuantizationType | None = None) -> None:
    """The model as a file; its matrices in blocks of a `kind`, where their rows are whole blocks."""
    config: Any = model.config
    writer = gguf.GGUFWriter(file, made.architecture)
    for key, name in {**USUAL, **made.metadata}.items():
        value = getattr(config, name, None)
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}.get(type(value))
        if add is not None:
            add(f"{made.architecture}.{key}", value)
    tensors = made.convert(dict(model.state_dict()), config)
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if rope:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", torch.tensor(rope[f"{name}_factor"], dtype=torch.float32).numpy())
    if "sliding_attention" in (getattr(config, "rope_parameters", None) or {}):
        writer.add_float32(f"{made.architecture}.rope.freq_base_swa", config.rope_parameters["sliding_attention"]["rope_theta"])
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == made.architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    written: set[str] = set()
    for name, tensor in tensors.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        own = names.get_name(name.removeprefix(made.prefix), try_suffixes=(".weight", ".bias")) or names.get_name(
            name, (".weight", ".bias")
        )
        if own is None and made.architecture == "bloom":
            # The package maps the norm of the embeddings by another name of BLOOM's modules.
            own = name.removeprefix(made.prefix).replace("word_embeddings_layernorm", "token_embd_norm")
        assert own is not None and own not in written, name
        written.add(own)
        values = tensor.float().contiguous().numpy()
        if kind is None or tensor.dim() < 2 or tensor.shape[-1] % 32:
            writer.add_tensor(own, values)
        else:
            writer.add_tensor(own, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""A tiny random model of each family, of odd sizes and with the family's peculiarities switched on, as `transformers` makes and saves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.2, 2.0, 3.5, 7.0],
    "original_max_position_embeddings": 64,
}
LOCAL_AND_GLOBAL = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

BASE: Mapping[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 60,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """One configuration: the stem of transformers' classes, and what differs from BASE (None leaves a field out)."""

    stem: str
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_context: int | None = None
    causal: str = "ForCausalLM"
    lengths: tuple[int, ...] = (1, 7, 65)
    """Tokens of the prompts that are compared."""

    @property
    def config_class(self) -> type[transformers.PreTrainedConfig]:
        """transformers' configuration of the family."""
        return getattr(transformers, f"{'Gemma3Text' if self.stem == 'Gemma3' else self.stem}Config")

    @property
    def model_type(self) -> str:
        """The family's name in the registry."""
        return self.config_class.model_type

    @property
    def architecture(self) -> str:
        """transformers' model of the family."""
        return f"{self.stem}{self.causal}"

    def model(self, seed: int = 0) -> transformers.PreTrainedModel:
        """The model, its weights large enough that logits differ clearly from token to token."""
        values = {name: value for name, value in {**BASE, **self.changes}.items() if value is not None or name not in BASE}
        config = self.config_class(**values)
        config._attn_implementation = "eager"
        torch.manual_seed(seed)
        model = getattr(transformers, self.architecture)(config).eval()
        shift = 0.0 if self.stem.startswith("Gemma") else 1.0
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                scale = 0.15 if parameter.dim() == 1 or parameter.shape[-1] < 100 else 0.1
                is_scale = name.endswith("weight") and ("norm" in name or "ln_" in name)
                parameter.copy_(torch.randn_like(parameter) * scale + (shift if is_scale else 0.0))
        return model

    def save(self, folder: Path, **options: Any) -> transformers.PreTrainedModel:
        """The model, after saving it in a folder."""
        model = self.model()
        model.save_pretrained(folder, **options)
        return model


GPT2 = {
    "n_embd": 60,
    "n_head": 6,
    "n_layer": 2,
    "n_inner": 76,
    "n_positions": 128,
    **dict.fromkeys(
        ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size", "max_position_embeddings")
    ),
}
BLOOM = {
    "n_head": 6,
    "n_layer": 2,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size", "max_position_embeddings")),
}
CASES: Mapping[str, Case] = {
    "llama": Case("Llama", {"head_dim": 12, "rope_parameters": {"rope_theta": 10000.0, **LLAMA3}}),
    "llama, biased, linear": Case(
        "Llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
        },
    ),
    "llama, yarn": Case("Llama", {"rope_parameters": {"rope_theta": 10000.0, **YARN}}),
    "llama, dynamic": Case("Llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}}),
    "mistral": Case("Mistral", {"head_dim": 12, "sliding_window": 5}),
    "mistral, no window": Case("Mistral", {"sliding_window": None}),
    "qwen2": Case("Qwen2", {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": Case(
        "Qwen3", {"head_dim": 16, "attention_bias": True, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    ),
    "mixtral": Case(
        "Mixtral", {"head_dim": 12, "sliding_window": 5, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 36}
    ),
    "qwen2_moe": Case(
        "Qwen2Moe",
        {
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 28,
            "shared_expert_intermediate_size": 44,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe": Case(
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 28,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe, not normalized": Case(
        "Qwen3Moe", {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 20, "decoder_sparse_step": 2}
    ),
    "phi3": Case("Phi3", {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.8, **LONGROPE}, "sliding_window": 9}, 64),
    "phi3, long": Case(
        "Phi3", {"original_max_position_embeddings": 16, "rope_parameters": {"partial_rotary_factor": 0.8, **LONGROPE}}, lengths=(17, 65)
    ),
    "phi3, both": Case(
        "Phi3",
        {"original_max_position_embeddings": 32, "rope_parameters": {"partial_rotary_factor": 0.8, **LONGROPE}},
        lengths=(1, 7, 31, 33, 65),
    ),
    "gemma": Case("Gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": Case(
        "Gemma2",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": Case(
        "Gemma3",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "query_pre_attn_scalar": 24,
            "layer_types": LAYERS,
            "rope_parameters": LOCAL_AND_GLOBAL,
            "final_logit_softcapping": 4.0,
        },
    ),
    "smollm3": Case(
        "SmolLM3",
        {"num_hidden_layers": 3, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 6, "attention_bias": True},
    ),
    "granite": Case(
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "olmo2": Case("Olmo2"),
    "stablelm": Case("StableLm", {"partial_rotary_factor": 0.4, "use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    "stablelm, sequential": Case("StableLm", {"partial_rotary_factor": 0.4}),
    "gpt_neox": Case("GPTNeoX", {"num_key_value_heads": None, "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.4}}),
    "gpt_neox, sequential": Case(
        "GPTNeoX",
        {
            "num_key_value_heads": None,
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 1.0},
        },
    ),
    "gpt2": Case("GPT2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, causal="LMHeadModel"),
    "cohere": Case("Cohere", {"use_qk_norm": True, "logit_scale": 0.3}),
    "bloom": Case("Bloom", BLOOM, max_context=90),
    "cohere, biased": Case("Cohere", {"attention_bias": True}),
}
"""By name: the first of a family carries its name in the registry, or nearly so."""
TEXTS = {"num_key_value_heads": None, "max_position_embeddings": 70, "type_vocab_size": 3}
LONGER = {**TEXTS, "max_position_embeddings": 72, "pad_token_id": 1, "bos_token_id": 0}
ENCODERS: Mapping[str, Case] = {
    "bert": Case("Bert", TEXTS, causal="Model"),
    "roberta": Case("Roberta", LONGER, causal="Model"),
    "xlm-roberta": Case("XLMRoberta", LONGER, causal="Model"),
}
"""They have no logits: their tests are in `test_embed.py`."""

# pyright: basic
"""A configuration and Lamella's weights enter; the same model in `transformers` leaves."""

from __future__ import annotations

from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from lamella.checkpoints import TensorSource
from lamella.frontends import ModelConfig
from lamella.frontends.decoder import source_names

ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu"}


def transformers_model(
    config: ModelConfig, source: TensorSource, dtype: torch.dtype, device: torch.device, *, weights: str, attention: str = "sdpa"
) -> torch.nn.Module:
    """A LlamaForCausalLM that computes in `dtype` with the weights as they are in the element type `weights` (`bf16`)."""
    described = LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden_act=ACTIVATIONS[config.activation],
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta, **config.rope_scaling},
        tie_word_embeddings=config.tied,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    # Made in `dtype` rather than cast to it: a cast would round the frequencies of RoPE, which stay in float32.
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(described, dtype=dtype, attn_implementation=attention).eval()
    state = model.state_dict()
    with torch.no_grad():
        for canonical, name in source_names(config).items():
            state[name].copy_(source.load(canonical, dtype=weights, device=str(device)))
    return model


def logits(model: torch.nn.Module, ids: list[int], device: torch.device) -> torch.Tensor:
    """Teacher-forced logits, float32 [len(ids), V], on the CPU."""
    with torch.no_grad():
        return model(torch.tensor([ids], device=device)).logits[0].float().cpu()


def generate_milliseconds(
    model: torch.nn.Module, batch: int, context: int, steps: int, device: torch.device, repetitions: int
) -> list[float]:
    """Milliseconds a token of `generate`, one number a repetition: the time of steps + 1 new tokens less that of one."""
    ids = torch.randint(model.config.vocab_size, (batch, context), generator=torch.Generator().manual_seed(0)).to(device)
    mask = torch.ones_like(ids)

    def seconds(count: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = perf_counter()
        made = model.generate(ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, use_cache=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert made.shape[1] == context + count
        return perf_counter() - start

    seconds(2)
    return [(seconds(steps + 1) - seconds(1)) * 1e3 / steps for _ in range(repetitions)]

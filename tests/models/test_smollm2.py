"""SmolLM2-135M-Instruct from its GGUF file, in float32 on the reference executor, against `transformers` reading the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import lamella
from lamella.api import encode

CONTEXT = 1024
NEW_TOKENS = 64

PROMPTS = {
    "one token": "The",
    "a sentence": "Once upon a time, in a village at the foot of a mountain,",
    "a question": "Why is the sky blue?",
    "code": 'def fibonacci(n: int) -> int:\n    """The n-th Fibonacci number."""\n    if n < 2:\n        return n\n',
    "json": '{"name": "Ada", "languages": ["en", "fr"], "born": 1815, "notes": [',
    "arithmetic": "12 + 30 = 42\n7 + 8 = 15\n25 + 17 =",
    "french": "La révolution industrielle a commencé en Angleterre parce que",
    "other scripts": "日本の首都は東京です。Москва — столица России. Η Αθήνα είναι",
    "emoji and spaces": "  \t\n🙂🙃   Tabs\tand   spaces …\r\n",
    "more than 600 tokens": " ".join(f"{n} bottles of beer on wall number {n * 7 % 31}, take {n % 5} down;" for n in range(60, 12, -1)),
}


@pytest.fixture(scope="module")
def model(smollm2: Path) -> lamella.Model:
    return lamella.load(smollm2, device="cpu", dtype="float32", max_context=CONTEXT)


@pytest.fixture(scope="module")
def peer(smollm2: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()


def test_rows_are_those_of_transformers_paired(model: lamella.Model, peer: torch.nn.Module) -> None:
    """Query rows 2j and 2j + 1 of a head are rows j and j + 32 of the Hugging Face layout."""
    config, source, reference = model.opened.config, model.opened.source, peer.state_dict()
    for layer in (0, config.layers - 1):
        for part, heads in (("q_proj", config.heads), ("k_proj", config.kv_heads)):
            halves = reference[f"model.layers.{layer}.self_attn.{part}.weight"]
            paired = halves.view(heads, 2, config.head_dim // 2, -1).transpose(1, 2).reshape(halves.shape)
            assert torch.equal(source.load(f"layers.{layer}.attn.{part}"), paired)
        assert torch.equal(source.load(f"layers.{layer}.attn.v_proj"), reference[f"model.layers.{layer}.self_attn.v_proj.weight"])


def test_it_answers_a_chat(model: lamella.Model) -> None:
    generation = model.generate("What is the capital of France?", 32, chat=True)
    assert generation.output_ids == (504, 3575, 282, 4649, 314, 7042, 30)
    assert generation.text == "The capital of France is Paris."
    assert generation.stop_reason == "eos"


@pytest.mark.parametrize("name", PROMPTS)
def test_64_greedy_tokens_are_those_of_transformers(model: lamella.Model, peer: torch.nn.Module, name: str) -> None:
    """Given the tokens so far, `transformers` would take the very token that follows, each of 64 times; first-step logits are near."""
    ids = encode(model.opened, PROMPTS[name])
    assert len(ids) > 600 or name != "more than 600 tokens"
    made = list(model.generate(ids, NEW_TOKENS, ignore_eos=True).output_ids)
    assert len(made) == NEW_TOKENS
    with torch.inference_mode():
        expected = peer(torch.tensor([ids + made[:-1]])).logits[0, len(ids) - 1 :]
    assert made == expected.argmax(-1).tolist()
    torch.testing.assert_close(model.session.forward_logits(ids, [len(ids) - 1])[0], expected[0], rtol=0, atol=1e-3)

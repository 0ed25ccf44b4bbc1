"""Checkpoints of every family as they come: shards, element types, end tokens, tied heads, old names and masks; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from xdsl.parser import Parser

from lamella import pipeline, registry
from lamella.dialects.transformer import WeightOp
from lamella.errors import ConfigError, LamellaError, TensorError
from lamella.frontends import LoadedModel, open_model
from lamella.frontends.blocks import rounded
from lamella.frontends.decoder import build, source_names, weight_shapes
from lamella.frontends.family import family
from lamella.frontends.huggingface import read_config
from lamella.verification import verify
from tests.models.tiny_families import CASES, ENCODERS, Case

FIRST = {case.model_type: case for case in reversed(CASES.values())}
"""The first case of each family."""


def edited(folder: Path, **changes: Any) -> dict[str, Any]:
    """The folder's config.json after some changes, as it was before them."""
    path = folder / "config.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, **changes}))
    return before


def refused(folder: Path, *parts: str, kind: type[LamellaError] = ConfigError) -> None:
    """Opening raises `kind`, in one line that holds each of `parts`."""
    with pytest.raises(kind) as caught:
        open_model(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in parts if part not in text] == [], text


def test_every_family_has_a_case() -> None:
    known = {**FIRST, **{case.model_type: case for case in ENCODERS.values()}}
    assert known.keys() == registry.FAMILIES.keys()
    assert {name: family(name).name for name in registry.FAMILIES} == {name: name for name in registry.FAMILIES}
    assert all(family(name).architecture == case.architecture for name, case in known.items())


@pytest.fixture(scope="module", params=sorted(FIRST))
def saved(request, tmp_path_factory) -> tuple[Case, Path, transformers.PreTrainedModel]:
    """Each family in bfloat16 and several files, with end tokens of its own for generation."""
    folder = tmp_path_factory.mktemp(request.param)
    case = FIRST[request.param]
    model = case.model().to(torch.bfloat16)
    model.generation_config.eos_token_id = [2, 5]
    model.save_pretrained(folder, max_shard_size="60KB")
    return case, folder, model


def test_shards_types_and_end_tokens(saved: tuple[Case, Path, transformers.PreTrainedModel]) -> None:
    case, folder, model = saved
    files = list(folder.glob("*.safetensors"))
    assert len(files) > 1
    opened = open_model(folder)
    config = opened.config
    assert (config.family, config.dtype, config.eos, opened.generation.eos) == (case.model_type, "bf16", (2,), (2, 5))
    assert config.tied == model.config.tie_word_embeddings
    state, names = {name: tensor for file in files for name, tensor in load_file(file).items()}, source_names(config)
    for name, shape in weight_shapes(config).items():
        loaded = opened.source.load(name)
        assert (loaded.dtype, tuple(loaded.shape)) == (torch.bfloat16, shape)
        assert torch.equal(loaded, state[names[name]])
    for dtype in ("f32", "f16"):
        assert torch.equal(
            opened.source.load("embed", dtype).float(), state[names["embed"]].to(opened.source.load("embed", dtype).dtype).float()
        )
    assert ("lm_head" in weight_shapes(config)) == (not config.tied)


def test_what_changes_the_mathematics_is_refused(saved: tuple[Case, Path, transformers.PreTrainedModel]) -> None:
    _, folder, _ = saved
    names = {"gpt2": "activation_function", "bloom": "activation", "gemma2": "hidden_activation", "gemma3_text": "hidden_activation"}
    activation = names.get(open_model(folder).config.family, "hidden_act")
    changes: dict[str, tuple[Any, ...]] = {
        activation: ("quick_gelu", f"unknown activation quick_gelu in {activation}"),
        "alibi": (True, "alibi", "expected false"),
        "attention_sinks": (4, "attention_sinks", "expected 0"),
        "quantization_config": ({"quant_method": "hqq"}, "hqq"),
        "vocab_size": (-1, "vocab_size", "a positive integer"),
    }
    rope = json.loads((folder / "config.json").read_text()).get("rope_parameters")
    if rope is not None:
        strange = {**rope, "rope_type": "spiral"}
        if "full_attention" in rope:
            strange = {**rope, "full_attention": {**rope["full_attention"], "rope_type": "spiral"}}
        changes["rope_parameters"] = (strange, "unknown RoPE scaling spiral")
    for field, (value, *parts) in changes.items():
        before = edited(folder, **{field: value})
        refused(folder, str(folder), *parts, kind=LamellaError)
        (folder / "config.json").write_text(json.dumps(before))


def write(case: Case, folder: Path) -> tuple[dict[str, torch.Tensor], Path]:
    """A saved model in one file: its tensors, and the file."""
    case.save(folder)
    file = folder / "model.safetensors"
    return load_file(file), file


def loads_alike(opened: LoadedModel, tensors: dict[str, torch.Tensor]) -> bool:
    """Whether each weight is the tensor of its name."""
    names = source_names(opened.config)
    return all(torch.equal(opened.source.load(name), tensors[names[name]]) for name in opened.source.names())


def test_gpt2_as_it_was_first_published(tmp_path: Path) -> None:
    """Names without prefix, and causal masks among the tensors."""
    tensors, file = write(FIRST["gpt2"], tmp_path)
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    masks = {f"h.{layer}.attn.{name}": torch.ones(1, 1, 4, 4) for layer in range(2) for name in ("bias", "masked_bias")}
    save_file({**old, **masks}, file)
    assert loads_alike(open_model(tmp_path), tensors)


def test_pythia_with_its_buffers(tmp_path: Path) -> None:
    tensors, file = write(FIRST["gpt_neox"], tmp_path)
    layer = "gpt_neox.layers.0.attention"
    save_file({**tensors, f"{layer}.bias": torch.ones(1, 1, 4, 4), f"{layer}.rotary_emb.inv_freq": torch.ones(2)}, file)
    assert loads_alike(open_model(tmp_path), tensors)


@pytest.mark.parametrize("name", ["gemma", "cohere", "gpt2"])
def test_a_tied_head_may_be_stored_again(name: str, tmp_path: Path) -> None:
    tensors, file = write(FIRST[name], tmp_path)
    save_file({**tensors, "lm_head.weight": torch.zeros(97, 60)}, file)
    opened = open_model(tmp_path)
    assert "lm_head" not in opened.source.names()
    assert loads_alike(opened, tensors)


def test_a_head_that_is_not_tied_must_be_there(tmp_path: Path) -> None:
    tensors, file = write(FIRST["gemma"], tmp_path)
    save_file(tensors, file)
    edited(tmp_path, tie_word_embeddings=False)
    refused(tmp_path, "lm_head.weight (lm_head) is missing", kind=TensorError)


def test_tensors_of_a_layer_are_those_of_its_kind(tmp_path: Path) -> None:
    """A configuration that switches a norm off and a checkpoint that has it do not go together."""
    write(FIRST["stablelm"], tmp_path)
    edited(tmp_path, qk_layernorm=False)
    refused(tmp_path, "unexpected tensor model.layers.0.self_attn.k_layernorm.norms.0.weight", kind=TensorError)


@pytest.mark.parametrize(
    ("name", "changes", "parts"),
    [
        ("gemma2", {"layer_types": ["sliding_attention", "linear_attention", "full_attention"]}, ("layer_types", "got linear_attention")),
        ("gemma2", {"layer_types": ["full_attention"]}, ("layer_types", "expected 3 of", "got 1 values")),
        ("gemma2", {"sliding_window": None}, ("a layer slides and sliding_window is null",)),
        ("gemma3_text", {"use_bidirectional_attention": True}, ("use_bidirectional_attention", "expected false")),
        ("qwen2", {"max_window_layers": -1}, ("max_window_layers", "0 or more", "got -1")),
        ("smollm3", {"no_rope_layers": [0, 1, 2]}, ("no_rope_layers", "got 2")),
        ("stablelm", {"rope_parameters": {"partial_rotary_factor": 0.5}}, ("turns 5 of 10 dimensions", "an even number from 2 to 10")),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", "short_factor": 3}}, ("short_factor", "positive numbers", "got 3")),
        ("gpt_neox", {"num_attention_heads": 7}, ("hidden_size is not a multiple of num_attention_heads",)),
        ("gpt2", {"n_head": 7}, ("n_embd is not a multiple of n_head",)),
        ("gpt2", {"add_cross_attention": True}, ("add_cross_attention", "expected false")),
        ("mixtral", {"num_experts_per_tok": 6}, ("num_experts_per_tok is more than there are experts", "at most 5", "got 6")),
        ("mixtral", {"num_experts": 4}, ("num_experts and num_local_experts contradict each other", "expected 4", "got 5")),
        ("mixtral", {"num_local_experts": 10**6}, ("num_local_experts", "at most 4096", "got 1000000")),
        ("mixtral", {"num_local_experts": 4000, "num_hidden_layers": 9000}, ("too many experts in all", "at most 200000", "got 36000000")),
        ("qwen3_moe", {"mlp_only_layers": ["1"]}, ("mlp_only_layers", "a list of integers", 'got ["1"]')),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, ("apply_residual_connection_post_layernorm", "expected false")),
        ("granite", {"logits_scaling": 0}, ("logits_scaling", "a positive number", "got 0")),
    ],
)
def test_contradictions_of_single_families(name: str, changes: dict[str, Any], parts: tuple[str, ...], tmp_path: Path) -> None:
    FIRST[name].save(tmp_path)
    edited(tmp_path, **changes)
    refused(tmp_path, "config.json", *parts)


def spellings(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same rotation as transformers 4 wrote it, as 5 does, and both at once, out of a config.json of transformers 5."""
    new = config["rope_parameters"]
    rest = {name: value for name, value in config.items() if name not in ("rope_parameters", *TOP_LEVEL)}
    if "full_attention" in new:
        whole, local = new["full_attention"], new["sliding_attention"]
        top: dict[str, Any] = {"rope_theta": whole["rope_theta"], "rope_local_base_freq": local["rope_theta"]}
    else:
        whole, neox = new, config["model_type"] == "gpt_neox"
        top = {"rotary_emb_base" if neox else "rope_theta": whole["rope_theta"]}
        if "partial_rotary_factor" in whole:
            top["rotary_pct" if neox else "partial_rotary_factor"] = whole["partial_rotary_factor"]
    scaling = {"type" if name == "rope_type" else name: value for name, value in whole.items() if name not in TOP_LEVEL}
    top["rope_scaling"] = None if scaling["type"] == "default" else scaling
    return {"old": {**rest, **top}, "new": {**rest, "rope_parameters": new}, "both": {**rest, **top, "rope_parameters": new}}


TOP_LEVEL = ("rope_theta", "rotary_emb_base", "partial_rotary_factor", "rotary_pct", "rope_local_base_freq", "rope_scaling")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.stem not in ("GPT2", "Bloom")])
def test_every_spelling_of_a_rotation_reads_alike(name: str, tmp_path: Path) -> None:
    CASES[name].model().config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    expected, _ = read_config(path)
    written = spellings(config)
    for spelling in written.values():
        path.write_text(json.dumps(spelling))
        assert read_config(path)[0] == expected
    for field in ("rope_theta", "rotary_emb_base", "partial_rotary_factor", "rotary_pct", "rope_local_base_freq"):
        if field in written["both"]:
            path.write_text(json.dumps({**written["both"], field: 0.5 * written["both"][field]}))
            with pytest.raises(ConfigError, match=rf"contradicts {field} elsewhere"):
                read_config(path)


@pytest.mark.parametrize("name", CASES)
def test_the_module_reads_every_tensor_and_parses_unchanged(name: str, tmp_path: Path) -> None:
    CASES[name].model().config.save_pretrained(tmp_path)
    config, _ = read_config(tmp_path / "config.json")
    module = build(config, dtype="bf16", block=16)
    verify(module)
    assert {op.weight_name.data for op in module.walk() if isinstance(op, WeightOp)} == weight_shapes(config).keys()
    unlocated = {op.name for op in module.walk() if op.name.startswith("transformer.") and "loc" not in op.attributes}
    assert unlocated <= {"transformer.weight", *(f"transformer.{kind}" for kind in ("transpose", "slice_rows", "concat_rows", "flatten"))}
    text = pipeline.text(module)
    assert pipeline.text(Parser(registry.context(), text).parse_module()) == text


@pytest.mark.parametrize(("element", "dtype"), [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_factors_are_rounded_as_torch_rounds(element: str, dtype: torch.dtype) -> None:
    values = [*torch.rand(200, generator=torch.Generator().manual_seed(1)).double().mul(90).tolist(), 1.00390625, 1.01171875, 3584**0.5]
    assert [rounded(value, element) for value in values] == torch.tensor(values, dtype=torch.float64).float().to(dtype).double().tolist()

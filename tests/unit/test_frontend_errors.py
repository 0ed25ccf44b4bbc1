"""Opening models: each supported kind of path opens, and each mistake is refused in one line that says what, where and why."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lamella.checkpoints import GgufSource, SafetensorsSource
from lamella.errors import (
    CheckpointError,
    ConfigError,
    DtypeError,
    LamellaError,
    ModelNotFoundError,
    PromptError,
    TensorError,
    UnknownArchitectureError,
)
from lamella.frontends import GenerationDefaults, open_model
from lamella.frontends.decoder import source_names, weight_shapes
from lamella.frontends.gguf import gguf_names
from lamella.frontends.huggingface import read_config
from lamella.frontends.parts import ACTIVATIONS
from lamella.semantics.rope import inverse_frequencies

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "torch_dtype": "bfloat16",
}


def write_config(folder: Path, **changes: Any) -> Path:
    """config.json with some fields changed; None leaves a field out."""
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in {**CONFIG, **changes}.items() if v is not None}))
    return path


def write_model(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """A folder with configuration and random weights of it, by their stored names."""
    config, _ = read_config(write_config(folder, **changes))
    names = source_names(config)
    tensors = {
        names[n]: torch.randn(s, generator=torch.Generator().manual_seed(len(n))).bfloat16() for n, s in weight_shapes(config).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return tensors


def write_gguf(
    path: Path, drop: tuple[str, ...] = (), architecture: str = "llama", factors: np.ndarray | None = None, **metadata: Any
) -> dict[str, np.ndarray]:
    """A GGUF file of CONFIG's shapes, matrices as Q8_0 and Q4_0, output tied; `metadata` replaces or adds llama.* keys."""
    writer = gguf.GGUFWriter(path, architecture)
    keys = {
        "block_count": 2, "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4,
        "attention.head_count_kv": 2, "context_length": 128, "rope.dimension_count": 16,
    }  # fmt: skip
    for key, value in {**keys, **metadata}.items():
        if isinstance(value, str):
            writer.add_string(f"llama.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"llama.{key}", value)
        elif value is not None:
            writer.add_int32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_eos_token_id(2)
    folder = path.parent / "shape"
    folder.mkdir(exist_ok=True)
    config, _ = read_config(write_config(folder, tie_word_embeddings=True))
    shapes = weight_shapes(config)
    values: dict[str, np.ndarray] = {}
    for name, stored in gguf_names(shapes).items():
        kind = gguf.GGMLQuantizationType.F32
        if len(shapes[name]) == 2:
            kind = gguf.GGMLQuantizationType.Q8_0 if name == "embed" else gguf.GGMLQuantizationType.Q4_0
        blocks = gguf.quantize(np.random.default_rng(len(name)).standard_normal(shapes[name]).astype(np.float32), kind)
        values[name] = gguf.dequantize(blocks, kind)
        if stored not in drop:
            writer.add_tensor(stored, blocks, raw_dtype=kind)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def refusal(kind: type[LamellaError], path: Path, *parts: str, seed: int | None = None) -> None:
    """Opening `path` raises `kind`, in one line that holds each of `parts`."""
    with pytest.raises(kind) as caught:
        open_model(path, random_weights=seed)
    text = str(caught.value)
    assert type(caught.value) is kind
    assert "\n" not in text
    assert len(text) < 400
    for part in parts:
        assert part in text, text


# --- what opens


def test_a_folder_opens(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    model = open_model(tmp_path)
    config = model.config
    assert (config.family, config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == ("llama", 2, 64, 4, 2, 16)
    assert (config.ffn, config.vocabulary, config.norm_eps, config.rope_theta, config.rope_scaling) == (96, 50, 1e-5, 10000.0, {})
    assert (config.rotary, config.rope_style, config.tied, config.activation) == (16, "half", False, "silu")
    assert (config.max_positions, config.eos, config.bos, config.dtype) == (128, (2, 3), 1, "bf16")
    assert isinstance(model.source, SafetensorsSource)
    assert model.source.names() == sorted(weight_shapes(config))
    assert torch.equal(model.source.load("layers.1.ffn.up_proj"), tensors["model.layers.1.mlp.up_proj.weight"])
    assert model.tokenizer is None
    assert model.generation == GenerationDefaults(eos=(2, 3))


def test_variants_of_the_configuration(tmp_path: Path) -> None:
    write_model(tmp_path, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=32, num_key_value_heads=None)
    config = open_model(str(tmp_path)).config
    assert (config.tied, config.attention_bias, config.mlp_bias, config.head_dim, config.kv_heads) == (True, True, True, 32, 4)


def test_element_type_comes_from_the_weights_when_unstated(tmp_path: Path) -> None:
    write_model(tmp_path, torch_dtype=None)
    assert open_model(tmp_path).config.dtype == "bf16"
    write_model(tmp_path, torch_dtype=None, dtype="float16")
    assert open_model(tmp_path).config.dtype == "f16"


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ],
)
def test_rope_scaling_in_every_spelling(tmp_path: Path, fields: dict[str, Any]) -> None:
    config, _ = read_config(write_config(tmp_path, **fields))
    assert config.rope_theta == 5e5
    assert config.rope_scaling == {"rope_type": "llama3", **LLAMA3}


def test_unscaled_rope_parameters(tmp_path: Path) -> None:
    config, _ = read_config(write_config(tmp_path, rope_parameters={"rope_theta": 7.0, "rope_type": "default"}))
    assert (config.rope_theta, config.rope_scaling) == (7.0, {})


def test_configurations_agree_with_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.LlamaConfig(vocab_size=11, hidden_size=24, num_attention_heads=6, num_hidden_layers=1, intermediate_size=40)
    reference.save_pretrained(tmp_path)
    config, _ = read_config(tmp_path / "config.json")
    assert (config.kv_heads, config.head_dim, config.norm_eps) == (6, 4, reference.rms_norm_eps)
    assert (config.max_positions, config.tied) == (reference.max_position_embeddings, reference.tie_word_embeddings)
    assert config.rope_theta == reference.rope_parameters["rope_theta"]
    assert (config.eos, config.bos) == ((reference.eos_token_id,), reference.bos_token_id)


def test_every_activation_has_an_op() -> None:
    from lamella.dialects.transformer import UNARY

    assert set(ACTIVATIONS.values()) <= set(UNARY)


def test_windows_of_mistral(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    for given, expected in ({"sliding_window": 64}, 64), ({}, 4096):
        write_model(tmp_path, **mistral, **given)
        config = open_model(tmp_path).config
        assert (config.family, [kind.window for kind in config.layer_kinds]) == ("mistral", [expected] * config.layers)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **mistral, "sliding_window": None}))
    assert {kind.window for kind in open_model(tmp_path).config.layer_kinds} == {0}
    write_config(tmp_path, **mistral, sliding_window=-3)
    refusal(ConfigError, tmp_path, "sliding_window", "a positive integer", "got -3")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("alibi", True, "false"),
        ("attention_sinks", 4, "0"),
        ("sliding_window", 4096, "null"),
        ("layer_types", ["full_attention", "sliding_attention"], "full_attention"),
        ("use_qk_norm", True, "false"),
        ("attn_logit_softcapping", 30.0, "null"),
        ("logit_scale", 0.5, "1"),
        ("num_local_experts", 8, "0"),
        ("position_embedding_type", "alibi", '"rotary"'),
    ],
)
def test_fields_that_change_the_mathematics_are_never_ignored(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    write_config(tmp_path, **{field: value})
    refusal(ConfigError, tmp_path, "config.json", field, f"expected {expected}", "llama")


def test_generation_defaults(tmp_path: Path) -> None:
    write_model(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": 7, "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05}))
    assert open_model(tmp_path).generation == GenerationDefaults((7,), True, 0.6, 20, 0.9, 0.05)
    path.write_text(json.dumps({"temperature": 0.0, "top_k": 0, "top_p": None, "min_p": 0}))
    assert open_model(tmp_path).generation == GenerationDefaults((2, 3), False, 0.0, 0, None, 0.0)


def test_a_bare_configuration_opens_with_a_seed(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    a, b = open_model(path, random_weights=0), open_model(tmp_path, random_weights=1)
    assert a.source.names() == sorted(weight_shapes(a.config))
    assert a.source.load("lm_head").dtype == torch.bfloat16
    assert a.source.fingerprint() != b.source.fingerprint()


def test_a_gguf_file_opens(tmp_path: Path) -> None:
    values = write_gguf(tmp_path / "m.gguf", **{"rope.freq_base": 50000.0})
    model = open_model(tmp_path / "m.gguf")
    config = model.config
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim, config.ffn) == (2, 64, 4, 2, 16, 96)
    assert (config.vocabulary, config.rope_theta, config.rope_style, config.rotary, config.tied) == (50, 50000.0, "paired", 16, True)
    assert (config.max_positions, config.eos, config.dtype) == (128, (2,), "bf16")
    assert isinstance(model.source, GgufSource)
    for name in model.source.names():
        assert torch.equal(model.source.load(name, "f32"), torch.from_numpy(values[name]))
    assert model.tokenizer is None
    assert open_model(tmp_path / "m.gguf", random_weights=3).source.names() == model.source.names()


# --- paths


def test_no_such_path(tmp_path: Path) -> None:
    refusal(ModelNotFoundError, tmp_path / "nothing", str(tmp_path / "nothing"), "no such file or folder", "config.json")


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    refusal(ModelNotFoundError, tmp_path, str(tmp_path), "no config.json")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refusal(ModelNotFoundError, tmp_path, "pass the file", "m.gguf")


def test_a_folder_without_weights(tmp_path: Path) -> None:
    write_config(tmp_path)
    refusal(ModelNotFoundError, tmp_path, "holds no weights", "--random-weights SEED")


def test_a_bare_configuration_needs_a_seed(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    refusal(ModelNotFoundError, path, "no weights", "add --random-weights SEED")
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    refusal(ModelNotFoundError, path, f"pass the folder {tmp_path}")


def test_files_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("hello")
    refusal(ModelNotFoundError, tmp_path / "model.txt", "not a model", "expected a folder")
    (tmp_path / "model.safetensors").write_bytes(b"")
    refusal(ModelNotFoundError, tmp_path / "model.safetensors", "pass the folder that holds it")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        refusal(CheckpointError, path, "pytorch_model.bin", "never opened", "safe_serialization")


# --- configurations


def test_malformed_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 64,\n  oops}')
    refusal(ConfigError, tmp_path, str(path), "malformed JSON at line 2, column 3")
    path.write_text("[1, 2]")
    refusal(ConfigError, tmp_path, "expected a JSON object, got list")
    path.write_bytes(b"\xff\xfe\x00")
    refusal(ConfigError, tmp_path, "malformed JSON")


def test_unknown_architecture(tmp_path: Path) -> None:
    write_config(tmp_path, architectures=["LLamaForCausalLM"])
    refusal(UnknownArchitectureError, tmp_path, "unknown architecture LLamaForCausalLM", "nearest: LlamaForCausalLM")
    write_config(tmp_path, architectures=["Zzz"])
    refusal(UnknownArchitectureError, tmp_path, "Zzz", "known model types: ", "llama, mistral")
    write_config(tmp_path, architectures=None, model_type="lama")
    refusal(UnknownArchitectureError, tmp_path, "unknown model type lama", "nearest: llama")
    write_config(tmp_path, architectures=None, model_type=None)
    refusal(ConfigError, tmp_path, "neither architectures nor model_type")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model_type": "mistral"}, ("contradict", "expected model_type llama", "got mistral")),
        ({"architectures": "LlamaForCausalLM"}, ("architectures",)),
        ({"hidden_size": None}, ("field hidden_size is missing",)),
        ({"hidden_size": -64}, ("hidden_size", "a positive integer", "got -64")),
        ({"hidden_size": 64.0}, ("hidden_size", "a positive integer", "got 64.0")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "got 0")),
        ({"vocab_size": "50"}, ("vocab_size", 'got "50"')),
        ({"vocab_size": True}, ("vocab_size", "got true")),
        ({"hidden_size": 66}, ("hidden_size is not a multiple", "expected a multiple of 4", "got 66")),
        ({"num_key_value_heads": 3}, ("num_key_value_heads", "expected a multiple of 3", "got 4")),
        ({"head_dim": 15}, ("head_dim is odd", "got 15")),
        ({"rms_norm_eps": -1e-5}, ("rms_norm_eps", "a positive number")),
        ({"rope_theta": float("nan")}, ("rope_theta", "a positive number", "NaN")),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "true or false")),
        ({"eos_token_id": [2, "x"]}, ("eos_token_id",)),
        ({"hidden_act": "gelu_pytorch_tan"}, ("hidden_act", "nearest: gelu_pytorch_tanh")),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 4.0}}, ("rope_scaling", "unknown RoPE scaling yarm", "nearest: yarn")),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
            ("short_factor", "expected 8 positive numbers", "got 1 values"),
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("rope_scaling", "low_freq_factor is missing")),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, ("low_freq_factor is not below",)),
        ({"rope_scaling": 4}, ("rope_scaling", "a JSON object")),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}, ("both given",)),
        ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "got 0.5")),
    ],
)
def test_contradictory_configuration(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    write_config(tmp_path, **changes)
    refusal(ConfigError, tmp_path, "config.json", *parts)


def test_unsupported_element_types(tmp_path: Path) -> None:
    write_config(tmp_path, torch_dtype="float8_e4m3fn")
    refusal(DtypeError, tmp_path, "torch_dtype", "expected float32, float16, bfloat16", "got float8_e4m3fn")


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors with one entry."""
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, **weights}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"quant_method": "hqq"}, ("quantization method hqq", "expected one of awq", "--quantize int8 or int4")),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("quantization method bitsandbytes",)),
        ({"load_in_8bit": True}, ("quantization method bitsandbytes",)),
        ({"quant_method": "quanto"}, ("quantization method quanto",)),
        ({"quant_method": "mxfp4"}, ("quantization method mxfp4",)),
        ({"bits": 4}, ("quantization method unknown",)),
        ({"quant_method": "gptq", "bits": 3}, ("GPTQ with bits: 3", "4 or 8 bits")),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, ("checkpoint_format: marlin", "gptq or gptq_v2")),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, ("checkpoint_format: marlin",)),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, ("dynamic", "+:.*down.*")),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, ("AWQ of version gemv", "version gemm")),
        ({"quant_method": "awq", "bits": 3}, ("AWQ with bits: 3",)),
        ({"quant_method": "awq", "zero_point": False}, ("zero_point: false",)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("method fp8", "scales for blocks", "a scale a row")),
        (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), ("format: nvfp4-pack-quantized", "pack-quantized, int-quantized")),
        (compressed("pack-quantized", num_bits=3), ("int weights of 3 bits",)),
        (
            compressed("float-quantized", num_bits=8, type="float", strategy="block"),
            ("strategy: block of float weights", "tensor, channel"),
        ),
        (compressed("pack-quantized", num_bits=4, strategy="tensor", symmetric=False), ("zero points",)),
        ({**compressed("pack-quantized"), "sparsity_config": {"format": "sparse-24-bitmask"}}, ("sparsity_config: sparse-24-bitmask",)),
    ],
)
def test_checkpoints_quantized_in_other_ways(tmp_path: Path, given: dict[str, Any], parts: tuple[str, ...]) -> None:
    write_config(tmp_path, quantization_config=given)
    refusal(DtypeError, tmp_path, "config.json: a quantized checkpoint cannot be read", *parts)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"quant_method": "gptq"}, ("field bits",)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, ("field group_size",)),
        ({"quant_method": "gptq", "bits": 4, "desc_act": "yes"}, ("field desc_act",)),
        ({"quant_method": 4}, ("field quant_method",)),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, ("config_groups quantizes no weights",)),
        ({**compressed("pack-quantized"), "ignore": ["re:("]}, ("field ignore holds a pattern that does not parse", 'got "("')),
        ({**compressed("pack-quantized"), "ignore": [3]}, ("field ignore is no list of names",)),
        ({**compressed("pack-quantized"), "ignore": ["re:(.+)+x"]}, ("field ignore holds a pattern that may take long", "none of a group")),
        ({**compressed("pack-quantized"), "ignore": ["re:.*.*.*.*.*x"]}, ("field ignore holds a pattern that may take long",)),
    ],
)
def test_malformed_quantization(tmp_path: Path, given: dict[str, Any], parts: tuple[str, ...]) -> None:
    write_config(tmp_path, quantization_config=given)
    refusal(ConfigError, tmp_path, "config.json", *parts)


def test_bad_generation_configuration(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"top_p": 1.5}')
    refusal(ConfigError, tmp_path, "generation_config.json", "top_p", "got 1.5")
    (tmp_path / "generation_config.json").write_text('{"min_p": 1.5}')
    refusal(ConfigError, tmp_path, "generation_config.json", "min_p", "got 1.5")
    (tmp_path / "generation_config.json").write_text("{")
    refusal(ConfigError, tmp_path, "generation_config.json", "malformed JSON")


# --- weights


def test_truncated_safetensors(tmp_path: Path) -> None:
    write_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    refusal(CheckpointError, tmp_path, str(file), "truncated safetensors", "expected", "got")


def test_missing_extra_and_misshapen_tensors(tmp_path: Path) -> None:
    tensors, file = write_model(tmp_path), tmp_path / "model.safetensors"
    q = "model.layers.1.self_attn.q_proj.weight"
    save_file({k: v for k, v in tensors.items() if k != q}, file)
    refusal(TensorError, tmp_path, f"{q} (layers.1.attn.q_proj) is missing", str(tmp_path))
    save_file({**tensors, "model.layers.1.self_attn.q_norm.weight": torch.ones(16)}, file)
    refusal(TensorError, tmp_path, "unexpected tensor model.layers.1.self_attn.q_norm.weight", str(file))
    save_file({**tensors, q: torch.ones(32, 64)}, file)
    refusal(TensorError, tmp_path, q, "wrong shape", "expected (64, 64)", "got (32, 64)")
    save_file({**tensors, q: torch.ones(64, 64, dtype=torch.int8)}, file)
    refusal(DtypeError, tmp_path, q, "got I8")


def test_index_that_leaves_the_folder(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    refusal(CheckpointError, tmp_path, "outside the folder", "../a.safetensors")


# --- GGUF


def test_not_a_gguf(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04 a zip archive")
    refusal(CheckpointError, tmp_path / "m.gguf", "not a GGUF file", str(tmp_path / "m.gguf"))


def test_truncated_gguf(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file)
    content = file.read_bytes()
    for keep in (100, len(content) // 2, len(content) - 64):
        file.write_bytes(content[:keep])
        refusal(CheckpointError, file, str(file), "truncated GGUF", "bytes")


def test_gguf_that_is_not_a_llama(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", architecture="lama")
    refusal(UnknownArchitectureError, tmp_path / "m.gguf", "unknown architecture lama", "nearest: llama")


def test_gguf_missing_tensor(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", drop=("blk.1.ffn_up.weight",))
    refusal(TensorError, tmp_path / "m.gguf", "blk.1.ffn_up.weight (layers.1.ffn.up_proj) is missing")
    write_gguf(tmp_path / "m.gguf", drop=("token_embd.weight",))
    refusal(TensorError, tmp_path / "m.gguf", "token_embd.weight")


@pytest.mark.parametrize(
    ("metadata", "kind", "parts"),
    [
        ({"block_count": None}, ConfigError, ("block_count is missing",)),
        ({"block_count": 1}, TensorError, ("unexpected tensor blk.1.",)),
        ({"feed_forward_length": 128}, TensorError, ("wrong shape", "expected (128, 64)", "got (96, 64)")),
        ({"attention.head_count": 5}, ConfigError, ("embedding_length", "a multiple of 5")),
        ({"attention.head_count_kv": 3}, ConfigError, ("attention.head_count_kv", "a multiple of 3")),
        ({"attention.value_length": 8}, ConfigError, ("attention.value_length", "expected 16", "got 8")),
        ({"rope.dimension_count": 18}, ConfigError, ("rope.dimension_count", "got 18")),
        ({"rope.scaling.type": "yarn"}, ConfigError, ("unknown RoPE scaling yarn",)),
        ({"expert_count": 8, "expert_used_count": 9}, ConfigError, ("num_experts_per_tok", "at most 8", "got 9")),
        ({"expert_count": 8}, TensorError, ("blk.0.ffn_gate_inp.weight (layers.0.ffn.router) is missing",)),
        ({"attention.sliding_window": 32}, ConfigError, ("sliding-window", "got 32")),
        ({"vocab_size": 51}, ConfigError, ("vocab_size contradicts", "expected 50", "got 51")),
    ],
)
def test_contradictory_gguf(tmp_path: Path, metadata: dict[str, Any], kind: type[LamellaError], parts: tuple[str, ...]) -> None:
    write_gguf(tmp_path / "m.gguf", **metadata)
    refusal(kind, tmp_path / "m.gguf", "m.gguf", *parts)


def test_gguf_linear_scaling(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", **{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert open_model(tmp_path / "m.gguf").config.rope_scaling == {"rope_type": "linear", "factor": 4.0}


def test_gguf_frequency_factors_are_llama3_scaling(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 8192}
    factors = (inverse_frequencies(16, 5e5, {}) / inverse_frequencies(16, 5e5, scaling)).numpy()
    assert len({round(float(f), 3) for f in factors}) > 2, "kept, blended and divided frequencies must all occur"
    write_gguf(tmp_path / "m.gguf", factors=factors, **{"rope.freq_base": 5e5})
    model = open_model(tmp_path / "m.gguf")
    found = inverse_frequencies(16, 5e5, model.config.rope_scaling)
    torch.testing.assert_close(found, inverse_frequencies(16, 5e5, scaling), rtol=1e-5, atol=0)
    write_gguf(tmp_path / "m.gguf", factors=np.ones(8, np.float32))
    assert open_model(tmp_path / "m.gguf").config.rope_scaling == {}


def test_gguf_frequency_factors_of_another_rule(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", factors=np.linspace(1, 3, 8, dtype=np.float32))
    refusal(ConfigError, tmp_path / "m.gguf", "rope_freqs.weight", "unknown rule")
    write_gguf(tmp_path / "m.gguf", factors=np.ones(4, np.float32))
    refusal(TensorError, tmp_path / "m.gguf", "rope_freqs.weight", "expected (8,)", "got (4,)")


# --- tokenizer


def test_a_model_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    write_model(tmp_path)
    with pytest.raises(PromptError, match=r"no tokenizer.*--prompt-ids"):
        open_model(tmp_path).require_tokenizer()

"""Checkpoints that other tools quantized: exact weights, the logits of `transformers` on the floats they stand for, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import lamella
from lamella.api import quantized
from lamella.checkpoints import PackedSource, packed
from lamella.errors import CheckpointError, DtypeError, LamellaError, PassError, TensorError
from lamella.frontends import open_model
from lamella.frontends.decoder import source_names
from lamella.program import Shape
from lamella.semantics import IMPLEMENTATIONS
from lamella.tools import cli
from lamella.tools.explain import byte_size
from tests.models.quantized_files import FLOATS, LLAMA, SIZES, Arrays, Awq, Compressed, Gptq, save
from tests.models.tiny_families import CASES, Case

GPTQ = {
    "plain": Gptq(),
    "ordered": Gptq(ordered=True),
    "ordered, zero points": Gptq(ordered=True, symmetric=False),
    "zero points": Gptq(symmetric=False),
    "second version": Gptq(symmetric=False, version=2),
    "second version, no zero points": Gptq(version=2),
    "whole rows": Gptq(group=-1, symmetric=False, index=False),
    "groups of 16": Gptq(group=16, index=False),
    "groups of no power of 2": Gptq(group=48, ordered=True, symmetric=False),
    "groups longer than a row": Gptq(group=128, symmetric=False),
    "8 bits": Gptq(bits=8),
    "8 bits, ordered, zero points": Gptq(bits=8, ordered=True, symmetric=False),
    "8 bits, whole rows": Gptq(bits=8, group=-1, index=False),
}
AWQ = {"AWQ": Awq(16), "AWQ, whole rows": Awq(-1)}
COMPRESSED = {
    "W4A16": Compressed(),
    "W4A16, zero points": Compressed(symmetric=False),
    "W4A16, zero points in bytes": Compressed(symmetric=False, old_zeros=True),
    "W4A16, ordered": Compressed(ordered=True, symmetric=False),
    "W4A16, whole rows": Compressed(strategy="channel", scales=torch.float16),
    "W8A16": Compressed(bits=8, strategy="channel", symmetric=False),
    "W8A16, whole tensors": Compressed(bits=8, strategy="tensor", scales=torch.float32),
    "W8A8": Compressed("int-quantized", 8, "channel"),
    "W8A8, zero points": Compressed("int-quantized", 8, "group", symmetric=False),
    "integers of 4 bits in bytes": Compressed("int-quantized", 4, "group"),
    "float8, whole rows": Compressed("float-quantized", 8, "channel"),
    "float8, whole tensors": Compressed("float-quantized", 8, "tensor", scales=torch.float32),
}
ALL = {**GPTQ, **AWQ, **COMPRESSED}


PROMPT = [5, 9, 2, 7, 1, 90]


def logits(folder: Path, prompt: list[int], executor: str = "reference") -> torch.Tensor:
    """Of every token of a prompt: the reference takes one after the other, kernels all at once."""
    count = len(prompt) if executor == "interpret" else 1
    buckets = [1, 8] if count == 1 else [Shape(count, 1, count, count)]
    model = lamella.load(folder, device="cpu", dtype="float32", executor=executor, max_context=32, buckets=buckets)
    return model.session.forward_logits(prompt, range(len(prompt)))


def floats_of(source: PackedSource, name: str) -> torch.Tensor:
    """What the parts of a weight stand for by the meaning of `tile.dequantize`, columns put back in their order."""
    packing = source.weights[name].packing
    parts = [source.load(f"{name}.{part}") for part in ("packed", "scales", *(["mins"] if packing.mins else []))]
    assert [source.dtype(f"{name}.{p}") for p in ("packed", "scales")] == [{"fp8": "f8"}.get(packing.kind, "i32"), packing.scales]
    made = IMPLEMENTATIONS["tile.dequantize"](*parts, packing={"kind": packing.kind, "group": packing.group})
    if not packing.order:
        return made
    columns = source.load(packing.order).long()
    assert columns.sort().values.tolist() == list(range(made.shape[1]))
    return torch.empty_like(made).index_copy_(1, columns, made)


@pytest.mark.parametrize("name", ALL)
def test_weights_are_exact_and_logits_those_of_their_floats(name: str, tmp_path: Path) -> None:
    peer = save(tmp_path, LLAMA, ALL[name], ALL[name].config)
    opened = open_model(tmp_path)
    assert isinstance(opened.source, PackedSource)
    assert len(opened.source.weights) == len(opened.config.packed) == 14
    places = source_names(opened.config)
    for weight in opened.source.weights:
        expected = peer.get_parameter(places[weight])
        assert torch.equal(floats_of(opened.source, weight), expected)
        assert torch.equal(opened.source.load(weight), expected)
    assert_close(tmp_path, peer)


@pytest.mark.parametrize("name", ["ordered, zero points", "8 bits", "AWQ", "W4A16, ordered", "W8A8", "float8, whole rows"])
def test_bands_of_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are taken apart a few rows at a time are the same."""
    save(tmp_path, LLAMA, ALL[name], ALL[name].config)
    source = open_model(tmp_path).source
    names = [f"layers.0.{weight}.packed" for weight in ("attn.q_proj", "ffn.gate_proj", "ffn.down_proj")]
    whole = [source.load(name) for name in names]
    floats = source.load("layers.0.ffn.gate_proj")
    monkeypatch.setattr(packed, "BAND", 1)
    for part, expected in zip(names, whole, strict=True):
        assert source.shape(part)[0] > 32
        assert torch.equal(source.load(part).view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(source.load("layers.0.ffn.gate_proj"), floats)


def assert_close(folder: Path, peer: transformers.PreTrainedModel) -> None:
    """The logits of a checkpoint are those of a model."""
    with torch.no_grad():
        expected = peer(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits(folder, PROMPT), expected, rtol=1e-4, atol=1e-4)


SMALL = Case(
    "Llama",
    {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "vocab_size": 33,
    },
)


@pytest.mark.parametrize(
    "form", [Gptq(group=16, ordered=True, symmetric=False), Compressed(bits=8, group=16, ordered=True)], ids=["int4", "int8"]
)
@pytest.mark.parametrize("prompt", [[5], [5, 9, 2, 7, 1]])
def test_kernels_agree(form: Gptq | Compressed, prompt: list[int], tmp_path: Path) -> None:
    """A layer and the head through interpreted Triton, one token and several; `tests/numeric/test_quantized.py` has all kinds of packing."""
    save(tmp_path, SMALL, form, form.config)
    torch.testing.assert_close(logits(tmp_path, prompt, "interpret"), logits(tmp_path, prompt), rtol=1e-4, atol=1e-4)


FAMILIES = {
    "fused by rows": replace(CASES["phi3"], changes={**SIZES, "num_hidden_layers": 1}),
    "fused by heads": replace(
        CASES["gpt_neox"], changes={**CASES["gpt_neox"].changes, **SIZES, "num_key_value_heads": None, "num_hidden_layers": 1}
    ),
    "stored as inputs by outputs": replace(
        CASES["gpt2"], changes={**CASES["gpt2"].changes, "n_embd": 64, "n_head": 4, "n_inner": 80, "n_layer": 1}
    ),
    "experts": replace(CASES["mixtral"], changes={**CASES["mixtral"].changes, **SIZES, "num_hidden_layers": 1}),
    "norms of heads": replace(CASES["qwen3"], changes={**CASES["qwen3"].changes, **SIZES, "head_dim": 16, "num_hidden_layers": 1}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path) -> None:
    """Rows of packed weights are taken apart, turned and paired as those of floats; experts, each with an order of its own, become floats."""
    form = Gptq(ordered=True, symmetric=False)
    peer = save(tmp_path, FAMILIES[name], form, form.config)
    assert_close(tmp_path, peer)


NARROW, WIDE = Compressed(symmetric=False), Compressed(bits=8, strategy="channel")


@dataclass(frozen=True)
class Mixed:
    """Feed-forward layers in 4 bits, attention in 8, the projection of values as it was; the second layer's queries by their name."""

    narrow: Compressed = NARROW
    wide: Compressed = WIDE

    @property
    def config(self) -> dict[str, Any]:
        """`quantization_config`: a name counts more than a pattern, and a pattern more than a class."""
        entries = {
            "group_0": {**self.narrow.weights, "targets": ["re:.*mlp.*", "model.layers.1.self_attn.q_proj"]},
            "group_1": {**self.wide.weights, "targets": ["Linear", "re:.*q_proj"]},
        }
        return {**self.narrow.config, "config_groups": entries, "ignore": ["lm_head", "re:.*v_proj"]}

    def __call__(self, name: str, weight: np.ndarray) -> tuple[Arrays, np.ndarray]:
        if name.endswith("v_proj"):
            return {"weight": weight}, weight
        return (self.narrow if "mlp" in name or name == "model.layers.1.self_attn.q_proj" else self.wide)(name, weight)


def test_each_module_by_its_own_scheme(tmp_path: Path) -> None:
    peer = save(tmp_path, LLAMA, Mixed(), Mixed().config)
    found = open_model(tmp_path).config.packed
    assert {name: found[f"layers.1.attn.{name}"].kind for name in ("q_proj", "k_proj")} == {"q_proj": "int4", "k_proj": "int8"}
    assert "layers.0.attn.v_proj" not in found
    assert_close(tmp_path, peer)


@pytest.mark.parametrize("form", [Gptq(ordered=True, symmetric=False), Compressed("float-quantized", 8, "channel")], ids=["GPTQ", "float8"])
def test_a_packed_head(form: Gptq | Compressed, tmp_path: Path) -> None:
    kept = tuple(part for part in FLOATS if part != "lm_head")
    peer = save(tmp_path, replace(LLAMA, changes={**SIZES, "vocab_size": 96}), form, {**form.config, "ignore": []}, kept)
    assert "lm_head" in open_model(tmp_path).config.packed
    assert_close(tmp_path, peer)


def test_projections_of_one_input_share_their_order(tmp_path: Path) -> None:
    """One permutation and one launch for q, k and v, one for gate and up: as many launches as without an order."""
    launches: dict[bool, int] = {}
    for ordered in (False, True):
        form = Gptq(ordered=ordered)
        save(tmp_path, LLAMA, form, form.config)
        program = lamella.compile(tmp_path, buckets=[1], max_context=32, until="plan")
        assert program.manifest is not None
        launches[ordered] = len(program.manifest.buckets[0].launches)
        orders = sorted(name for name in program.manifest.weights if name.endswith(".columns"))
        firsts = ("attn.o_proj", "attn.q_proj", "ffn.down_proj", "ffn.gate_proj")
        assert orders == ([f"layers.{layer}.{first}.columns" for layer in range(2) for first in firsts] if ordered else [])
    assert launches[True] == launches[False]


def test_what_quantize_means(tmp_path: Path) -> None:
    """Such a checkpoint is packed without being asked; it is not quantized again."""
    save(tmp_path, LLAMA, Gptq(), Gptq().config)
    opened = open_model(tmp_path)
    assert opened.quantization == "GPTQ, 4 bits, groups of 32"
    for option in ("none", "keep"):
        assert quantized(opened, option, None) == (opened, None)
    with pytest.raises(DtypeError, match="quantized already, expected none or keep, got int8"):
        quantized(opened, "int8", None)


@pytest.mark.parametrize(
    ("kind", "form"), [("int8", Compressed("int-quantized", 8, "channel")), ("fp8", Compressed("float-quantized", 8, "channel"))]
)
def test_bytes_times_bytes_where_it_is_asked_for(kind: str, form: Compressed, tmp_path: Path) -> None:
    """A W8A8 checkpoint keeps its activations as they are unless `activations` says otherwise; its weights stay as stored."""
    save(tmp_path, LLAMA, form, form.config)
    ids = list(range(3, 20))
    plain, asked = (lamella.load(tmp_path, executor="reference", activations=a, buckets=[1, 16], max_context=32) for a in ("none", kind))
    assert plain.executor.manifest.weights == asked.executor.manifest.weights
    expected, found = (model.session.forward_logits(ids).float() for model in (plain, asked))
    error = ((found - expected).square().mean() / expected.square().mean()).sqrt().item()
    assert 1e-4 < error < 0.15
    other = "fp8" if kind == "int8" else "int8"
    with pytest.raises(PassError, match=f"no linear can multiply activations of {other}, expected weights of {other} with one scale a row"):
        lamella.load(tmp_path, executor="reference", activations=other, buckets=[1], max_context=32)


def test_inspect_names_the_method(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes in the files are those of all parts; those in memory, of words, float16 scales and float32 least values."""
    assert cli.main(["inspect", str(sound), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["supported"], found["quantization"]) == (True, "GPTQ, 4 bits, groups of 32, zero points, ordered by activation")
    attention = next(row for row in found["tensors"] if row["kind"] == "attention")
    numbers, rows = 2 * (2 * 64 + 2 * 32) * 64, 2 * (2 * 64 + 2 * 32)
    assert attention["parameters"] == numbers
    assert attention["stored_bytes"] == {"I32": numbers // 2 + rows * 2 // 2 + 2 * 4 * 64 * 4, "f16": rows * 2 * 2}
    assert cli.main(["inspect", str(sound)]) == 0
    shown = capsys.readouterr().out
    assert "quantization   GPTQ, 4 bits" in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("attention ") and "f16" in line)
    assert byte_size(numbers // 2 + rows * 2 * (2 + 4)) in row


# What is refused

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gptq")
    save(folder, LLAMA, Gptq(ordered=True, symmetric=False), Gptq(ordered=True, symmetric=False).config)
    return folder


def spoil(sound: Path, folder: Path, change: dict[str, Any], **config: Any) -> Path:
    """The checkpoint with tensors (None: gone) and fields of quantization_config changed."""
    tensors: dict[str, Any] = {**load_file(sound / "model.safetensors"), **change}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")
    fields = json.loads((sound / "config.json").read_text())
    fields["quantization_config"] |= config
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def i32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[LamellaError], tuple[str, ...]]] = {
    "no order": ({f"{Q}.g_idx": None}, {}, TensorError, (f"tensor {Q}.g_idx", "is missing")),
    "no scales": ({f"{Q}.scales": None}, {}, TensorError, (f"tensor {Q}.scales", "is missing")),
    "no numbers": ({f"{Q}.qweight": None}, {}, TensorError, (f"tensor {Q}.weight", "is missing")),
    "wrong shape": ({f"{Q}.qweight": i32(8, 32)}, {}, TensorError, (f"tensor {Q}.qweight", "expected (8, 64)", "got (8, 32)")),
    "wrong type": ({f"{Q}.qweight": torch.zeros(8, 64)}, {}, DtypeError, (f"tensor {Q}.qweight", "expected I32", "got f32")),
    "float numbers": ({f"{Q}.scales": i32(2, 64)}, {}, DtypeError, (f"tensor {Q}.scales", "got I32")),
    "bad groups": ({f"{Q}.g_idx": i32(64)}, {}, TensorError, (f"tensor {Q}.g_idx does not divide", "2 groups of 32 columns")),
    "groups without number": ({f"{Q}.g_idx": i32(64) + 2**31 - 1}, {}, TensorError, (f"tensor {Q}.g_idx does not divide",)),
    "negative groups": ({f"{Q}.g_idx": i32(64) - 1}, {}, TensorError, (f"tensor {Q}.g_idx does not divide",)),
    "a bias": ({f"{Q}.bias": torch.ones(64)}, {}, TensorError, (f"unexpected tensor {Q}.bias", "no bias, or zeros")),
    "other bits": ({}, {"bits": 8}, TensorError, ("qweight", "expected (16, 64)", "got (8, 64)")),
    "other groups": ({}, {"group_size": 16}, TensorError, ("qzeros", "expected (4, 8)", "got (2, 8)")),
    "uneven groups": ({}, {"group_size": 24}, TensorError, ("64 columns in groups of 24",)),
}


COMPRESSED_REFUSED: dict[str, tuple[Compressed, dict[str, Any], dict[str, Any], type[LamellaError], tuple[str, ...]]] = {
    "no scale": (Compressed(), {f"{Q}.weight_scale": None}, {}, TensorError, (f"tensor {Q}.weight_scale", "is missing")),
    "no zero points": (Compressed(symmetric=False), {f"{Q}.weight_zero_point": None}, {}, TensorError, ("weight_zero_point", "is missing")),
    "scales of blocks": (
        Compressed("float-quantized", 8, "channel"),
        {f"{Q}.weight_scale": torch.zeros(2, 2)},
        {},
        TensorError,
        (f"tensor {Q}.weight_scale", "expected (64, 1)", "got (2, 2)"),
    ),
    "integers as floats": (
        Compressed("int-quantized", 8, "channel"),
        {f"{Q}.weight": torch.zeros(64, 64)},
        {},
        DtypeError,
        (f"tensor {Q}.weight", "expected I8", "got f32"),
    ),
    "ignored": (Compressed(), {}, {"ignore": ["re:.*q_proj"]}, TensorError, (f"{Q} is quantized, and no entry of config_groups says how",)),
}


@pytest.mark.parametrize("name", COMPRESSED_REFUSED)
def test_spoiled_checkpoints_of_compressed_tensors(name: str, tmp_path: Path) -> None:
    form, change, config, kind, parts = COMPRESSED_REFUSED[name]
    save(tmp_path, LLAMA, form, form.config)
    with pytest.raises(kind) as caught:
        open_model(spoil(tmp_path, tmp_path, change, **config))
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in parts if part not in text] == [], text


@pytest.mark.parametrize("name", REFUSED)
def test_spoiled_checkpoints_are_refused_in_one_line(name: str, sound: Path, tmp_path: Path) -> None:
    change, config, kind, parts = REFUSED[name]
    with pytest.raises(kind) as caught:
        open_model(spoil(sound, tmp_path, change, **config))
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in parts if part not in text] == [], text


def test_zero_points_where_the_configuration_says_none(sound: Path, tmp_path: Path) -> None:
    opened = open_model(spoil(sound, tmp_path, {}, sym=True))
    with pytest.raises(TensorError, match="holds zero points, and the configuration says sym: true"):
        opened.source.load("layers.0.attn.q_proj.scales")


def test_biases_of_zeros_say_nothing(sound: Path, tmp_path: Path) -> None:
    opened = open_model(spoil(sound, tmp_path, {f"{Q}.bias": torch.zeros(64, dtype=torch.float16)}))
    assert "layers.0.attn.q_proj.packed" in opened.source.names()


def test_a_checkpoint_of_floats_that_says_it_is_quantized(tmp_path: Path) -> None:
    LLAMA.save(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "quantization_config": Awq().config}))
    with pytest.raises(CheckpointError, match="none is stored so"):
        open_model(tmp_path)

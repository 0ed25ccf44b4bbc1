"""`lamella inspect`: what headers say of a model, of one that does not run too, agrees with what a compiled model takes and moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lamella import api
from lamella.checkpoints import GgufSource, SafetensorsSource
from lamella.errors import CheckpointError, ConfigError, ModelNotFoundError
from lamella.frontends.survey import kind_of
from lamella.tools import cli
from lamella.tools.inspect_command import inspect
from tests.models.model_files import CONFIG, save, write_config, write_folder, write_gguf

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *args: object) -> dict[str, Any]:
    """What `lamella inspect --json` prints."""
    assert cli.main(["inspect", *map(str, args), "--json"]) == 0
    out, err = capsys.readouterr()
    assert (err, out.count("\n")) == ("", 1)
    return json.loads(out)


def test_a_folder_is_described_without_loading_a_weight(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = write_folder(tmp_path, dtype=torch.bfloat16, torch_dtype="bfloat16")

    def load(*args: object, **options: object) -> None:
        raise AssertionError("a weight was loaded")

    monkeypatch.setattr(SafetensorsSource, "load", load)
    found = told(capsys, tmp_path, "--context", 48, "--batch", 3)
    assert (found["architecture"], found["supported"], found["reason"], found["weights"]) == ("LlamaForCausalLM", True, None, True)
    assert found["parameters"] == sum(t.numel() for t in tensors.values())
    assert found["stored_bytes"] == 2 * found["parameters"]
    by_kind = {row["kind"]: row for row in found["tensors"]}
    assert list(by_kind) == ["embedding", "attention", "feed-forward", "norms", "output head"]
    # q and o [32, 32], k and v [16, 32]; gate, up and down [48, 32]; three norms.
    assert (by_kind["attention"]["tensors"], by_kind["attention"]["parameters"]) == (4, 2 * 32 * 32 + 2 * 16 * 32)
    assert by_kind["feed-forward"]["parameters"] == 3 * 48 * 32
    assert by_kind["norms"] == {"kind": "norms", "tensors": 3, "parameters": 96, "stored_bytes": {"bf16": 192}}
    # A layer, keys and values, one head of 16, bfloat16; a block of 16 tokens more for the null block.
    assert found["memory"]["bytes"]["cache"] == (48 * 3 + 16) * 2 * 16 * 2
    assert found["memory"]["bytes"]["total"] == sum(v for k, v in found["memory"]["bytes"].items() if k != "total")
    assert found["step"]["floor_us_a_token"] == pytest.approx(found["step"]["floor_us"] / 3)
    assert found["step"]["tokens_per_second"] == pytest.approx(3e6 / found["step"]["floor_us"])


def test_the_figures_are_those_of_the_compiled_step(tmp_path: Path) -> None:
    write_folder(tmp_path)
    made = inspect(str(tmp_path), context=32, dtype="float32")
    assert made.manifest is not None and made.work is not None
    program = api.compile(tmp_path, dtype="float32", buckets=[1, 16], max_context=32, until="plan")
    assert program.manifest is not None
    assert made.manifest.buckets == program.manifest.buckets
    assert made.work.cost.weights <= made.memory["weights"]
    longer = inspect(str(tmp_path), context=64, dtype="float32")
    assert longer.work is not None
    assert longer.work.cost.cache > made.work.cost.cache
    assert longer.work.floor > made.work.floor


def test_tables_for_people(tmp_path: Path, capsys: Capture) -> None:
    write_folder(tmp_path, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert cli.main(["inspect", str(tmp_path), "--arch", "sm_80"]) == 0
    out = capsys.readouterr().out
    for text in (
        *("LlamaForCausalLM", "runs", "float32", "causal, 2 heads of 16, 2 share keys and values", "base 10000, linear", "silu, gated"),
        *("Tensors", "embedding", "Memory in float32, caches for 1 sequence of 64 tokens", "a token on sm_80", "tokens/s at most"),
    ):
        assert text in out


def test_a_bare_configuration_and_a_folder_without_weights(tmp_path: Path, capsys: Capture) -> None:
    file = write_config(tmp_path, max_position_embeddings=96)
    for path in (file, tmp_path):
        found = told(capsys, path)
        assert (found["supported"], found["weights"], found["stored_bytes"]) == (True, False, 0)
        assert found["parameters"] > 0
        assert found["memory"]["context"] == 96
    assert cli.main(["inspect", str(file)]) == 0
    assert "understood; there are no weights here" in capsys.readouterr().out


def test_a_gguf_file(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(GgufSource, "load", None)
    found = told(capsys, file)
    assert (found["architecture"], found["supported"]) == ("llama (GGUF)", True)
    stored = {row["kind"]: row["stored_bytes"] for row in found["tensors"]}
    # Q8_0 keeps 32 numbers in 34 bytes.
    assert stored["attention"] == {"q8_0": (2 * 32 * 32 + 2 * 16 * 32) // 32 * 34}
    assert stored["norms"] == {"f32": 3 * 32 * 4}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["FalconForCausalLM"], "model_type": "falcon"}, "unknown architecture FalconForCausalLM"),
        ({"hidden_act": "mish"}, "unknown activation mish"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping changes what is computed"),
        ({"quantization_config": {"quant_method": "hqq"}}, "a quantized checkpoint cannot be read"),
    ],
)
def test_what_does_not_run_is_described_with_the_reason(changes: dict[str, Any], reason: str, tmp_path: Path, capsys: Capture) -> None:
    tensors = write_folder(tmp_path)
    write_config(tmp_path, **changes)
    found = told(capsys, tmp_path)
    assert found["supported"] is False
    assert reason in found["reason"]
    assert found["sizes"]["hidden_size"] == CONFIG["hidden_size"]
    assert (found["memory"], found["step"], found["features"]) == (None, None, {})
    (row,) = found["tensors"]
    assert (row["tensors"], row["parameters"]) == (len(tensors), sum(t.numel() for t in tensors.values()))
    assert cli.main(["inspect", str(tmp_path)]) == 0
    assert f"does not run: {found['reason']}" in capsys.readouterr().out


def test_weights_that_do_not_fit_the_configuration(tmp_path: Path, capsys: Capture) -> None:
    tensors = write_folder(tmp_path)
    save(tmp_path, {**tensors, "model.layers.0.extra.weight": torch.zeros(3)})
    found = told(capsys, tmp_path)
    assert found["supported"] is False
    assert "unexpected tensor model.layers.0.extra.weight" in found["reason"]
    assert found["step"]["floor_us"] > 0
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "pickled weights are never opened" in told(capsys, tmp_path)["reason"]


def test_what_is_no_model_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        api.survey(tmp_path / "gone")
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json"):
        api.survey(tmp_path)
    write_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated safetensors file"):
        api.survey(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="malformed JSON"):
        api.survey(tmp_path)
    write_config(tmp_path)
    for args, text in (
        (["--context", "65"], "--context: bad context, expected 1 to 64, the positions of the model, got 65"),
        (["--arch", "sm_1"], "target: unknown architecture, got sm_1"),
    ):
        assert cli.main(["inspect", str(tmp_path / "config.json"), *args]) == 2
        assert text in capsys.readouterr().err


def test_kinds_follow_canonical_names() -> None:
    names = {
        "embed": "embedding",
        "embed_positions": "embedding",
        "layers.3.attn.q_proj.bias": "attention",
        "layers.3.attn.q_norm.2": "norms",
        "layers.0.ffn_norm": "norms",
        "layers.0.ffn.gate_up_proj": "feed-forward",
        "layers.0.ffn.router": "router",
        "layers.0.ffn.experts.7.up_proj": "experts",
        "final_norm.bias": "norms",
        "lm_head": "output head",
    }
    assert {name: kind_of(name) for name in names} == names

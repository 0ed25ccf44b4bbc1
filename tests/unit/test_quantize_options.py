"""Options of `quantize-weights` and `--quantize` that say nothing, one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamella import api
from lamella.errors import DtypeError, PassError
from lamella.passes.quantize_weights import QuantizeWeights
from tests.models.model_files import write_config


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "int7"}, "unknown kind 'int7'"),
        ({"kind": "int8", "head": "fp9"}, "unknown head 'fp9'"),
        ({"kind": "int8", "embed": "same"}, "unknown embed 'same'"),
        ({"kind": "int4", "group": 24}, "bad value for option 'group'"),
        ({"kind": "int4", "group": 8}, "bad value for option 'group'"),
        ({"kind": "int4", "affine": "maybe"}, "bad value for option 'affine'"),
        ({"kind": "fp8", "group": 64}, "fp8 takes no option"),
        ({"kind": "fp8", "affine": "on"}, "fp8 takes no option"),
    ],
)
def test_bad_options(options: dict, expected: str) -> None:
    with pytest.raises(PassError, match=expected):
        QuantizeWeights(**options).check()


def test_a_head_of_another_kind_takes_no_group(tmp_path: Path) -> None:
    """Groups and least values are those of int4; a head of floats has whole rows without."""
    config = write_config(tmp_path, tie_word_embeddings=False)
    options = {"quantize-weights": {"kind": "int4", "group": 16, "head": "fp8"}}
    program = api.compile(config, random_weights=0, pass_options=options, buckets=[1], max_context=32, until="plan")
    assert program.manifest is not None
    weights = program.manifest.weights
    assert (weights["lm_head.scaled.packed"].dtype, weights["lm_head.scaled.packed"].shape) == ("f8", (50, 32))
    assert weights["lm_head.scaled.scales"].shape == (50, 1)
    assert "lm_head.mins" not in weights
    assert weights["layers.0.ffn.up_proj.mins"].shape == (48, 2)


def test_old_devices_have_no_floats_of_eight_bits(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    api.compile(config, random_weights=0, quantize="fp8", arch="sm_80", buckets=[1], max_context=32, until="plan")
    with pytest.raises(DtypeError, match="expected sm_89 or newer, got sm_80"):
        api.compile(config, random_weights=0, quantize="fp8", arch="sm_80", buckets=[1], max_context=32)


@pytest.mark.parametrize(
    ("quantize", "activations", "expected"),
    [
        ("int8", "int4", "unsupported activations, expected none, int8, fp8, got int4"),
        ("none", "int8", "activations of int8 need weights of int8, expected quantize int8, got none"),
        ("int4", "int8", "activations of int8 need weights of int8, expected quantize int8, got int4"),
        ("int8", "fp8", "activations of fp8 need weights of fp8, expected quantize fp8, got int8"),
    ],
)
def test_activations_need_weights_of_their_kind(quantize: str, activations: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(DtypeError, match=expected):
        api.compile(write_config(tmp_path), random_weights=0, quantize=quantize, activations=activations, buckets=[1], max_context=32)


def test_activations_need_one_scale_a_row(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    options = {"quantize-weights": {"group": 16}}
    with pytest.raises(PassError, match="no linear can multiply activations of int8, expected weights of int8 with one scale a row"):
        api.compile(config, random_weights=0, quantize="int8", activations="int8", pass_options=options, buckets=[1], max_context=32)


def test_activations_by_name(tmp_path: Path) -> None:
    """Linears that are skipped keep their x; the option of the pass counts beside that of the API."""
    options = {"quantize-activations": {"skip": "*.down lm_head"}}
    program = api.compile(
        write_config(tmp_path), random_weights=0, quantize="int8", activations="int8", pass_options=options, buckets=[1], max_context=32
    )
    records = {e["what"]: e["reason"] for e in program.ledger if e.get("kind") == "activation" and e["verdict"] == "not_quantized"}
    assert "transformer.linear at layers.0.ffn.down" in records, records
    assert all(reason.startswith("skip names") for reason in records.values())

"""Configurations of every family, spoiled at random, are read or refused in one line: nothing else is raised, and nothing grows with a size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamella.errors import LamellaError
from lamella.frontends.decoder import source_names, weight_shapes
from lamella.frontends.huggingface import read_config
from tests.models.tiny_families import CASES

VALUES = st.sampled_from(
    [
        None, True, False, 0, -1, 1, 2, 3, 7, 1.5, -2.5, 1e30, float("nan"), float("inf"), 10**12, 2**70, "", "x", "silu", "1e999", [], [1], [None],
        [[]], ["full_attention"] * 2, ["sliding_attention"] * 3, {}, {"a": {}}, {"rope_type": "yarn"}, {"rope_type": "longrope"}, {"factor": 2},
    ]
)  # fmt: skip
FIELDS = [
    "alibi", "sliding_window", "layer_types", "rope_scaling", "rope_parameters", "partial_rotary_factor", "head_dim", "no_rope_layers",
    "max_window_layers", "rope_theta", "original_max_position_embeddings", "rotary_pct", "torch_dtype", "dtype", "eos_token_id",
    "rope_local_base_freq", "sliding_window_pattern", "hidden_activation", "quantization_config", "architectures", "model_type",
]  # fmt: skip
ROTATION = [
    "rope_type", "type", "factor", "short_factor", "long_factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale",
    "mscale_all_dim", "low_freq_factor", "full_attention", "sliding_attention", "partial_rotary_factor", "original_max_position_embeddings",
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> list[dict[str, Any]]:
    """The configurations of all cases, as transformers writes them."""
    folder = tmp_path_factory.mktemp("configurations")
    found: list[dict[str, Any]] = []
    for case in CASES.values():
        case.model().config.save_pretrained(folder)
        found.append({**json.loads((folder / "config.json").read_text()), "architectures": [case.architecture]})
    return found


@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_spoiled_configuration_is_read_or_refused(sound: list[dict[str, Any]], tmp_path_factory, data: st.DataObject) -> None:
    config = json.loads(json.dumps(data.draw(st.sampled_from(sound))))
    for _ in range(data.draw(st.integers(1, 4))):
        place, names = config, FIELDS
        name = data.draw(st.sampled_from([*config, *FIELDS]))
        if isinstance(config.get(name), dict) and data.draw(st.booleans()):
            place, names = config[name], ROTATION
            name = data.draw(st.sampled_from([*place, *names]))
        if data.draw(st.integers(0, 4)):
            place[name] = json.loads(json.dumps(data.draw(VALUES)))
        else:
            place.pop(name, None)
    path = Path(tmp_path_factory.getbasetemp()) / "config.json"
    path.write_text(json.dumps(config))
    try:
        read, _ = read_config(path)
    except LamellaError as error:
        assert "\n" not in str(error)
        return
    if read.layers * read.heads < 10_000:
        assert source_names(read).keys() == weight_shapes(read).keys()

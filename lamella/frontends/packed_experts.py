"""The packings of a configuration enter; which weights of experts stay packed as one weight a layer, and why others become floats, leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamella.checkpoints.packed import Packing
from lamella.frontends.config import ModelConfig

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""The weights of an expert, in the order of use."""


def expert_names(config: ModelConfig, prefix: str, projection: str) -> list[str]:
    """The tensors that hold one projection of all experts of the layer `layers.N.ffn`: one, or one an expert."""
    assert config.experts is not None
    numbers = [""] if config.experts_stacked else [f"{number}." for number in range(config.experts.count)]
    return [f"{prefix}.experts.{number}{projection}" for number in numbers]


def apart(packings: Sequence[Packing | None]) -> str:
    """Why weights of these packings cannot be one packed weight; empty where they can, or where all are floats."""
    found = list(dict.fromkeys(packings))
    if len(found) > 1:
        kinds = " and ".join(sorted({"floats" if p is None else _kind(p) for p in found}))
        return f"experts are stored as {kinds}" if " and " in kinds else "columns of experts lie in orders of their own"
    if found[0] is not None and found[0].order:
        return "columns of experts lie in an order of their own"
    return ""


def _kind(packing: Packing) -> str:
    mins = f", least values {packing.mins}" if packing.mins else ""
    return f"{packing.kind} in groups of {packing.group} (scales {packing.scales}{mins})"


def refusals(config: ModelConfig) -> dict[str, str]:
    """`layers.0.ffn.experts.down_proj` -> why the experts of a layer, packed in the checkpoint, are multiplied as floats."""
    if config.experts is None or not config.packed:
        return {}
    found: dict[str, str] = {}
    for layer in range(config.layers):
        prefix = f"layers.{layer}.ffn"
        for projection in () if config.layer(layer).dense else PROJECTIONS:
            reason = apart([config.packed.get(name) for name in expert_names(config, prefix, projection)])
            found |= {f"{prefix}.experts.{projection}": reason} if reason else {}
    return found


def kept(config: ModelConfig) -> Mapping[str, Packing]:
    """The weights that are multiplied, or looked up, as they are packed."""
    refused = refusals(config)
    if not refused:
        return config.packed
    floats = {name for stem in refused for name in expert_names(config, stem.partition(".experts.")[0], stem.rpartition(".")[2])}
    return {name: packing for name, packing in config.packed.items() if name not in floats}

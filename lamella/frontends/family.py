"""A family of models, as the files of `families/` describe one: how its configuration reads, and what its checkpoints call the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lamella import registry
from lamella.errors import UnknownArchitectureError, nearest
from lamella.frontends.config import ModelConfig
from lamella.frontends.fields import Fields

LLAMA_TENSORS: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "layers": "model.layers",
    "attn_norm": "input_layernorm",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.qkv_proj": "self_attn.qkv_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.o_proj": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.gate_up_proj": "mlp.gate_up_proj",
    "ffn.down_proj": "mlp.down_proj",
    "ffn.router": "mlp.gate",
    "ffn.experts.gate_proj": "mlp.experts.*.gate_proj",
    "ffn.experts.up_proj": "mlp.experts.*.up_proj",
    "ffn.experts.down_proj": "mlp.experts.*.down_proj",
    "ffn.shared_gate": "mlp.shared_expert_gate",
    "ffn.shared.gate_proj": "mlp.shared_expert.gate_proj",
    "ffn.shared.up_proj": "mlp.shared_expert.up_proj",
    "ffn.shared.down_proj": "mlp.shared_expert.down_proj",
    "final_norm": "model.norm",
    "lm_head": "lm_head",
}
"""Canonical names, without layer, `.weight` and `.bias`, and those of most checkpoints; `layers` is the prefix of the numbered ones, a star
the number of an expert."""


@dataclass(frozen=True)
class Family:
    """One family. `read` makes the configuration of a config.json, element type aside; it raises ConfigError."""

    name: str
    """transformers' `model_type`, and the key in the registry."""
    architecture: str
    """The first of `architectures`: `LlamaForCausalLM`."""
    read: Callable[[Fields], ModelConfig]
    tensors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where the names differ from LLAMA_TENSORS."""
    prefix: str = ""
    """Start of stored names that some checkpoints leave out."""
    buffers: tuple[str, ...] = ()
    """Ends of names of tensors that are no parameters: masks and tables that older files hold."""
    also: tuple[str, ...] = ()
    """Other architectures whose checkpoints hold this one's tensors, and some that it does not need, which end as `buffers` say."""
    compared: str = ""
    """For docs/families.md: the peculiarities that are compared with transformers."""

    def stored(self, canonical: str) -> str:
        """The checkpoint's name of a tensor: `layers.3.attn.q_proj.bias` → `model.layers.3.self_attn.q_proj.bias`."""
        names = {**LLAMA_TENSORS, **self.tensors}
        stem, kind = (canonical.removesuffix(".bias"), "bias") if canonical.endswith(".bias") else (canonical, "weight")
        if not stem.startswith("layers."):
            return f"{names[stem]}.{kind}"
        _, layer, part = stem.split(".", 2)
        if part.startswith("ffn.experts."):
            number, _, projection = part.removeprefix("ffn.experts.").rpartition(".")
            # Of all experts together (GGUF) there is no number.
            each = f"{number}." if number else ""
            return f"{names['layers']}.{layer}.{names[f'ffn.experts.{projection}'].replace('*.', each)}.{kind}"
        head = part.rpartition(".")[2]
        # The norms of single heads are numbered: attn.q_norm.5.
        inner = f"{names[part.removesuffix(f'.{head}')]}.{head}" if head.isdigit() else names[part]
        return f"{names['layers']}.{layer}.{inner}.{kind}"


def family(name: str) -> Family:
    """The family of that name. Raises UnknownArchitectureError."""
    if name not in registry.FAMILIES:
        raise UnknownArchitectureError(f"unknown model type {name}", remedy=nearest(name, registry.FAMILIES))
    found = registry.FAMILIES[name]()
    assert isinstance(found, Family)
    return found


def architectures() -> dict[str, Family]:
    """Every family by its architectures, in the order of the registry."""
    return {name: known for known in map(family, registry.FAMILIES) for name in (known.architecture, *known.also)}


def family_of(fields: Fields) -> Family:
    """
    The family of a config.json, from `architectures` and `model_type`, which must agree when both are there.
    Raises ConfigError, UnknownArchitectureError.
    """
    given: Any = fields.get("architectures") or []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in cast("list[Any]", given)):
        raise fields.error(
            "field architectures is not a list of names", 'such as ["LlamaForCausalLM"]', str(fields.values["architectures"])
        )
    stated = fields.text("model_type") if fields.has("model_type") else None
    if not given:
        if stated is None:
            remedy = f"known model types: {', '.join(sorted(registry.FAMILIES))}"
            raise fields.error("neither architectures nor model_type says what model this is", remedy=remedy)
        if stated not in registry.FAMILIES:
            remedy = nearest(stated, registry.FAMILIES)
            raise UnknownArchitectureError(f"unknown model type {stated}", where=fields.where, remedy=remedy)
        return family(stated)
    architecture = cast("list[str]", given)[0]
    known = architectures()
    if architecture not in known:
        hint = nearest(architecture, known)
        # All architectures would not be one clear line.
        remedy = hint if hint.startswith("nearest") else f"known model types: {', '.join(sorted(registry.FAMILIES))}"
        raise UnknownArchitectureError(f"unknown architecture {architecture}", where=fields.where, remedy=remedy)
    found = known[architecture]
    if stated is not None and stated != found.name:
        raise fields.error(f"architectures and model_type contradict each other: {architecture}", f"model_type {found.name}", stated)
    return found

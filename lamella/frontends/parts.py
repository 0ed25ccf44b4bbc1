"""The fields that configurations of many families share enter; a `ModelConfig` with Llama's building blocks leaves, for a family to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lamella.errors import nearest
from lamella.frontends.config import Experts, LayerKind, ModelConfig, Scaling
from lamella.frontends.fields import Fields

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
"""transformers' activation names, and the elementwise op of each."""

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""RoPE scaling kinds that `semantics.rope` computes."""

MOST_LAYERS, MOST_HEADS, MOST_EXPERTS = 10_000, 100_000, 4096
MOST_EXPERTS_IN_ALL = 200_000
"""Far more than any model has; whatever is made layer by layer, or head by head, stays small."""

LAYER_TYPES = ("full_attention", "sliding_attention")


def decoder(
    fields: Fields,
    family: str,
    *,
    names: Mapping[str, str] | None = None,
    eps: str = "rms_norm_eps",
    eps_default: float = 1e-6,
    activation_default: str = "silu",
    kv_heads: int | None = None,
    head_dim: int | None = None,
    max_positions: int = 2048,
    theta: float = 10000.0,
    rotary: float | None = None,
    rotates: bool = True,
    tied: bool = False,
) -> ModelConfig:
    """
    The sizes, norm, activation and rotation of a decoder, with transformers' defaults of the family: `kv_heads` (None: as many as heads),
    `head_dim` (None: hidden / heads), `max_positions`, `theta`, `tied`, and `rotary`, the share of a head that rotates (None: a family
    that only rotates whole heads); where nothing `rotates` there is none. `names` says what the family calls a field otherwise. The sizes have no default: they must be there.
    Raises ConfigError.
    """

    def name(usual: str) -> str:
        return usual if names is None else names.get(usual, usual)

    hidden, heads = fields.count(name("hidden_size")), fields.count(name("num_attention_heads"), most=MOST_HEADS)
    shared = fields.count(name("num_key_value_heads"), kv_heads or heads, most=MOST_HEADS)
    own = fields.has(name("head_dim")) or head_dim is not None
    if not own and hidden % heads:
        what = f"{name('hidden_size')} is not a multiple of {name('num_attention_heads')}"
        raise fields.error(what, f"a multiple of {heads}, or a head_dim", hidden)
    size = fields.count(name("head_dim"), head_dim or max(1, hidden // heads))
    if heads % shared:
        raise fields.error("num_attention_heads is not a multiple of num_key_value_heads", f"a multiple of {shared}", heads)
    positions = fields.count(name("max_position_embeddings"), max_positions)
    turn = rope(fields, size, positions, theta=theta, rotary=rotary, names=names) if rotates else (theta, dict[str, float](), 0)
    bos = fields.ids("bos_token_id")
    return ModelConfig(
        family=family,
        layers=fields.count(name("num_hidden_layers"), most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=shared,
        head_dim=size,
        ffn=fields.count(name("intermediate_size"), 4 * hidden if name("intermediate_size") != "intermediate_size" else None),
        vocabulary=fields.count("vocab_size"),
        norm_eps=fields.number(eps, eps_default),
        rope_theta=turn[0],
        rope_scaling=turn[1],
        rotary_dim=turn[2],
        tied=fields.flag("tie_word_embeddings", tied),
        activation=activation(fields, name("hidden_act"), activation_default),
        max_positions=positions,
        eos=fields.ids("eos_token_id"),
        bos=bos[0] if bos else None,
    )


def mixture(
    fields: Fields, layers: int, width: int, *, default: int, choices: int, normalized: bool, wide_weights: bool = False
) -> Experts:
    """The experts of a layer, each of a `width`; `default` and `choices` are transformers' numbers of them and of those chosen. Raises ConfigError."""
    # Two names of one field; transformers 5 writes the second for every family.
    older, newer = fields.has("num_experts"), fields.has("num_local_experts")
    if older and newer and fields.get("num_experts") != fields.get("num_local_experts"):
        raise fields.error(
            "num_experts and num_local_experts contradict each other", str(fields.get("num_experts")), fields.get("num_local_experts")
        )
    experts = fields.count("num_local_experts" if newer else "num_experts", default, most=MOST_EXPERTS)
    if experts * layers > MOST_EXPERTS_IN_ALL:
        raise fields.error("the layers have too many experts in all", f"at most {MOST_EXPERTS_IN_ALL}", experts * layers)
    chosen = fields.count("num_experts_per_tok", choices)
    if chosen > experts:
        raise fields.error("num_experts_per_tok is more than there are experts", f"at most {experts}", chosen)
    return Experts(experts, chosen, width, normalized, wide_weights)


def activation(fields: Fields, name: str, default: str) -> str:
    """The elementwise kind of an activation. Raises ConfigError for one without an op."""
    given = fields.text(name, default)
    if given not in ACTIVATIONS:
        raise fields.error(f"unknown activation {given} in {name}", remedy=nearest(given, ACTIVATIONS))
    return ACTIVATIONS[given]


def rope(
    fields: Fields, head_dim: int, positions: int, *, theta: float, rotary: float | None, names: Mapping[str, str] | None = None
) -> tuple[float, Scaling, int]:
    """
    RoPE's base, scaling and turning dimensions, from `rope_parameters` (transformers 5) or from `rope_theta`, `rope_scaling` and
    `partial_rotary_factor` (before). Files that hold several spellings must say the same in all of them. Raises ConfigError, also where
    part of a head turns and the family's heads turn whole.
    """
    given = _joined(fields)
    usual = names or {}
    share = usual.get("partial_rotary_factor", "partial_rotary_factor")
    shares = [(given, "partial_rotary_factor"), (fields, share), (fields, "partial_rotary_factor")]
    holder, name, factor = stated(shares, rotary if rotary is not None else 1.0)
    if rotary is None and factor != 1:
        raise holder.error(f"this architecture rotates whole heads: {name}", "1", factor)
    turning = int(head_dim * factor)
    if head_dim % 2 and factor == 1:
        raise fields.error("head_dim is odd, RoPE turns pairs", "an even number", head_dim)
    if turning % 2 or not 0 < turning <= head_dim:
        raise holder.error(f"{name} turns {turning} of {head_dim} dimensions of a head", f"an even number from 2 to {head_dim}", factor)
    bases = [(given, "rope_theta"), (fields, usual.get("rope_theta", "rope_theta")), (fields, "rope_theta")]
    return *rotation(fields, given, positions, turning, stated(bases, theta)[2]), turning


def stated(places: Sequence[tuple[Fields, str]], default: float) -> tuple[Fields, str, float]:
    """A number that has several spellings: where it stands first, by which name, and what it is. Raises ConfigError where two differ."""
    found = [(holder, name, holder.number(name)) for holder, name in places if holder.has(name)]
    for _, name, value in found[1:]:
        first, earlier, expected = found[0]
        if value != expected:
            raise first.error(f"{earlier} here contradicts {name} elsewhere in the file", f"{value:g}", f"{expected:g}")
    return found[0] if found else (*places[-1], default)


def _joined(fields: Fields) -> Fields:
    """`rope_parameters` and `rope_scaling`; what both say must agree."""
    new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
    latest, before = ({"rope_type" if name == "type" else name: value for name, value in given.values.items()} for given in (new, old))
    for name in latest.keys() & before.keys():
        if latest[name] != before[name]:
            what = f"rope_parameters and rope_scaling are both given and contradict each other in {name}"
            raise fields.error(what, str(latest[name]), before[name])
    return Fields((new if new.values else old).where, {**before, **latest})


def rotation(fields: Fields, given: Fields, positions: int, turning: int, theta: float) -> tuple[float, Scaling]:
    """Base and scaling of one rotation, described by the object `given`; `theta` is its base where that does not say."""
    theta = given.number("rope_theta", theta)
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in SCALINGS:
        raise given.error(f"unknown RoPE scaling {kind}", remedy=nearest(kind, SCALINGS))
    # Dynamic NTK leaves the base alone up to max_position_embeddings, and no context is longer than that.
    if kind in ("default", "dynamic"):
        return theta, {}
    scaling: dict[str, int | float | str | Sequence[float]] = {"rope_type": kind}
    outer = fields if fields.has("original_max_position_embeddings") else given
    original = outer.count("original_max_position_embeddings", positions)
    if original < 2:
        raise outer.error("field original_max_position_embeddings is no length to stretch", "2 or more", original)
    if kind != "linear":
        scaling["original_max_position_embeddings"] = original
    if kind != "longrope":
        scaling["factor"] = given.number("factor")
    if kind == "llama3":
        for name in ("low_freq_factor", "high_freq_factor"):
            scaling[name] = given.number(name)
        if given.number("low_freq_factor") >= given.number("high_freq_factor"):
            raise given.error("low_freq_factor is not below high_freq_factor")
    if kind == "yarn" and theta <= 1:
        raise given.error("field rope_theta is out of range for YaRN", "a number above 1", theta)
    if kind == "yarn":
        scaling |= {"beta_fast": given.number("beta_fast", 32.0), "beta_slow": given.number("beta_slow", 1.0)}
        scaling["truncate"] = given.flag("truncate", True)
        scaling["attention_factor"] = given.number("attention_factor", _yarn_factor(given))
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            scaling[name] = given.numbers(name, turning // 2)
        stretch = given.number("factor", positions / original)
        usual = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
        scaling["attention_factor"] = given.number("attention_factor", usual)
    return theta, scaling


def _yarn_factor(given: Fields) -> float:
    """What cosines and sines are multiplied by where the configuration does not say (arXiv 2309.00071, with DeepSeek's two mscales)."""
    factor = given.number("factor")

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return mscale(given.number("mscale")) / mscale(given.number("mscale_all_dim"))
    return mscale(1.0)


def window(fields: Fields, default: int | None = None, *, name: str = "sliding_window") -> int:
    """Positions a query of a windowed layer sees; 0 where the field is null, or absent and there is no default."""
    if name in fields.values and not fields.has(name):
        return 0
    return fields.count(name, default) if fields.has(name) or default else 0


def windows(fields: Fields, layers: int, size: int, otherwise: Sequence[bool]) -> tuple[LayerKind, ...]:
    """A kind a layer: windowed where `layer_types` says so, or `otherwise` where there are none. Raises ConfigError."""
    given: Any = fields.choices("layer_types", layers, LAYER_TYPES)
    slides = otherwise if given is None else [kind == "sliding_attention" for kind in given]
    if any(slides) and not size:
        raise fields.error("a layer slides and sliding_window is null", "a positive integer")
    return tuple(LayerKind(window=size if slid else 0) for slid in slides)

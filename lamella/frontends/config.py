"""A decoder as plain data: its sizes and the building blocks it is made of. Families fill it, `decoder` builds from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lamella.checkpoints.packed import Packing

Scaling: TypeAlias = "Mapping[str, int | float | str | Sequence[float]]"
"""`{}`, or a checkpoint's RoPE scaling with its kind under `rope_type`."""


@dataclass(frozen=True)
class LayerKind:
    """What one layer's attention does differently from the model's; the defaults change nothing."""

    window: int = 0
    """Positions a query sees, its own included; 0 for all of them."""
    rotates: bool = True
    """Whether queries and keys are rotated (a layer of SmolLM3 that is not has no positions at all)."""
    rope_theta: float | None = None
    rope_scaling: Scaling | None = None
    """With `rope_theta`: another rotation than the model's."""
    score_scale: float | None = None
    dense: bool = False
    """In a mixture of experts: whether the layer's feed-forward layer is one of width `ffn` for all tokens."""


@dataclass(frozen=True)
class Experts:
    """The feed-forward layers of a mixture of experts, of which a router chooses some for each token."""

    count: int
    chosen: int
    """Experts a token goes through."""
    width: int
    """Width of each."""
    normalized: bool = True
    """Whether the weights of the chosen experts are made to add up to 1."""
    wide_weights: bool = False
    """Whether those weights stay float32, whatever the compute type is."""
    shared: int = 0
    """Width of one more expert that all tokens go through, times the sigmoid of a number of its own; 0: there is none."""


@dataclass(frozen=True)
class ModelConfig:
    """One decoder model. Sizes count elements; the names are those of docs/glossary.md, not of any checkpoint format.

    The defaults of everything after the sizes are Llama's, so that a family says only where it differs.
    """

    family: str
    """The family's name in the registry: `llama`."""
    layers: int
    hidden: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of the feed-forward layer."""
    vocabulary: int
    norm_eps: float
    rope_theta: float = 10000.0
    rope_scaling: Scaling = field(default_factory=dict[str, "int | float | str | Sequence[float]"])
    rotary_dim: int = 0
    """Leading dimensions of a head that rotate; 0 stands for all of them."""
    rope_style: str = "half"
    """`half`: dimension d turns with d ± rotary/2 (Hugging Face). `paired`: with d ^ 1 (GGUF of the llama family, Cohere)."""
    positions: str = "rope"
    """`rope`; `learned`: a table that is added to the embeddings; or `alibi`: a slope of each head, times the distance."""
    position_offset: int = 0
    """Rows of the table of learned positions before that of the first token (RoBERTa)."""
    alibi: float = 8.0
    """Where positions are `alibi`: the exponent of the last head's slope."""
    causal: bool = True
    """Whether a token sees those up to itself; otherwise the model is an encoder, whose tokens see all of their text, and gives one vector a token."""
    layer_kinds: tuple[LayerKind, ...] = ()
    """One a layer; none where all layers are alike."""

    norm: str = "rms"
    """`rms`, or `layer`: with mean, and with `norm_bias` a shift."""
    norm_bias: bool = False
    norm_offset: float | None = None
    """Added to every norm's weight (Gemma: 1)."""
    pre_norm: bool = True
    """Whether attention and feed-forward layer read x normalized."""
    post_norm: bool = False
    """Whether what they return is normalized before it is added to x."""
    sum_norm: bool = False
    """Whether x is normalized after it was added to it (BERT): then nothing is left to normalize at the end."""
    embed_norm: bool = False
    """Whether embeddings are normalized."""
    parallel: bool = False
    """Whether both read the same x; otherwise the feed-forward layer reads x with attention added."""
    shared_norm: bool = False
    """Where they are parallel: whether they read one norm of it, `attn_norm`."""

    attention_bias: bool = False
    """Whether the q, k and v projections have biases."""
    output_bias: bool | None = None
    """Whether attention's output projection has one; None: as the others."""
    fused_qkv: str = ""
    """How the checkpoint fuses q, k and v into `attn.qkv_proj`: not at all, by `rows` (all of q, of k, of v), or by `heads` (q, k, v of each)."""
    qk_norm: str = ""
    """Norm of q and k before rotation: none, `head` (one weight for all heads), `heads` (one for each), or `row` (over all heads)."""
    qk_norm_tensors: str = "one"
    """How the checkpoint stores the weights of `heads`: `one` matrix, or `many` vectors."""
    score_scale: float | None = None
    """Factor of q·k; None stands for head_dim^-½."""
    score_cap: float = 0.0
    """c of c·tanh(score / c); 0: none."""

    gated: bool = True
    """Whether the feed-forward layer is down(activation(gate) · up), not down(activation(up))."""
    fused_gate: bool = False
    """Whether the checkpoint fuses gate and up into `ffn.gate_up_proj`."""
    mlp_bias: bool = False
    activation: str = "silu"
    """The elementwise kind applied to the gate."""
    experts: Experts | None = None
    """A mixture of experts in every layer that is not `dense`."""
    experts_stacked: bool = False
    """Whether the checkpoint stores the weights of all experts of a layer as one, their rows in order."""
    transposed: bool = False
    """Whether the checkpoint stores the projections of its layers as [inputs, outputs]."""

    embed_scale: float = 1.0
    embed_scale_rounded: bool = False
    """Whether `embed_scale` is rounded to the compute type first (Gemma)."""
    residual_scale: float = 1.0
    """Factor of what attention and feed-forward layer return."""
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    """c of c·tanh(logit / c); 0: none."""
    token_types: int = 0
    """Rows of the table of token types that is added to the embeddings; 0: there is none."""
    tied: bool = False
    """Whether the embedding table is the output projection too."""

    max_positions: int = 2048
    eos: tuple[int, ...] = ()
    bos: int | None = None
    dtype: str = "f32"
    """Element type of the checkpoint's weights, as the checkpoint says."""
    packed: Mapping[str, Packing] = field(default_factory=dict[str, Packing])
    """Weights of linears and experts, and embeddings of tokens, that are packed in the checkpoint and stay so where kernels can decode them, by name."""
    kv_cache: str = ""
    """Element type of the cache, `f8`; empty: that of activations. It is chosen, not read."""

    @property
    def rotary(self) -> int:
        """Leading dimensions of a head that rotate."""
        return self.rotary_dim or self.head_dim

    @property
    def lengths_matter(self) -> bool:
        """Whether some layer rotates by how long a text is."""
        scalings = [self.rope_scaling, *(kind.rope_scaling or {} for kind in self.layer_kinds)]
        return self.positions == "rope" and any(scaling.get("rope_type") == "longrope" for scaling in scalings)

    def layer(self, index: int) -> LayerKind:
        """What is particular about one layer."""
        return self.layer_kinds[index] if self.layer_kinds else LayerKind()

    def matrix(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """[outputs, inputs] of the linear weight `name`, which the checkpoint stores in this shape."""
        rows, columns = shape
        return (columns, rows) if self.transposed and name.startswith("layers.") else (rows, columns)

    @property
    def norm_suffixes(self) -> tuple[str, ...]:
        """What a norm's parameters are called after its name."""
        return ("", ".bias") if self.norm == "layer" and self.norm_bias else ("",)

"""A model's shape and conventions as plain data: the front ends fill it, the model builders read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelConfig:
    """One decoder model. Sizes count elements; the names are those of docs/glossary.md, not of any checkpoint format."""

    family: str
    """The model builder's name: `llama`."""
    layers: int
    hidden: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of the feed-forward layer."""
    vocabulary: int
    rms_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, int | float | str] = field(default_factory=dict[str, "int | float | str"])
    """`{}`, or the checkpoint's scaling dictionary with its kind under `rope_type`."""
    rotary_dim: int = 0
    """Leading dimensions of a head that rotate; 0 stands for all of them."""
    rope_style: str = "half"
    """`half`: dimension d turns with d ± rotary/2 (Hugging Face). `paired`: with d ^ 1 (GGUF of the llama family)."""
    tied: bool = False
    """Whether the embedding table is the output projection too."""
    attention_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"
    """The elementwise kind applied to the gate."""
    max_positions: int = 2048
    eos: tuple[int, ...] = ()
    bos: int | None = None
    dtype: str = "f32"
    """Element type of the checkpoint's weights, as the checkpoint says."""

    @property
    def rotary(self) -> int:
        """Leading dimensions of a head that rotate."""
        return self.rotary_dim or self.head_dim

"""A path enters; what can be told of the model from its headers leaves: sizes, tensors by kind, and why it cannot be run, if it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, cast

from lamella.checkpoints import GgufSource, PackedSource, SafetensorsSource, has_safetensors
from lamella.checkpoints.gguf import GgufTensor
from lamella.checkpoints.safetensors import TYPE_BYTES, stored_tensors
from lamella.checkpoints.source import StoredTensor
from lamella.errors import CheckpointError, LamellaError, ModelNotFoundError, clipped, printable
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import weight_shapes
from lamella.frontends.family import family
from lamella.frontends.fields import read_json
from lamella.frontends.model import LoadedModel, open_model
from lamella.frontends.packed_experts import kept

KINDS = ("embedding", "attention", "feed-forward", "router", "experts", "norms", "output head")
"""What the tensors of a model are for, in the order of use."""
UNKNOWN = "not told apart"
"""The kind of tensors whose names mean nothing here."""
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "n_layer", "n_embd", "n_head", "num_experts", "num_local_experts"),
)
"""Fields that are shown of a configuration that no family reads."""


@dataclass(frozen=True)
class TensorKind:
    """All tensors of one kind. `stored` is their bytes in the files, by element type; empty where there are no files."""

    kind: str
    tensors: int
    parameters: int
    stored: Mapping[str, int] = field(default_factory=dict[str, int])
    packed: tuple[int, int] = (0, 0)
    """Parameters that stay packed in memory, and their bytes there."""

    def held(self, width: int) -> int:
        """Bytes in memory, where a number that is not packed takes `width`."""
        return (self.parameters - self.packed[0]) * width + self.packed[1]


@dataclass(frozen=True)
class Survey:
    """What headers say. `model` is None where no family reads the configuration; `refusal` says why the model cannot be run as it is.

    `model.source` holds made-up weights where there are none that can be read; nothing of it is loaded.
    """

    path: Path
    architecture: str
    sizes: Mapping[str, int]
    kinds: tuple[TensorKind, ...]
    model: LoadedModel | None = None
    refusal: LamellaError | None = None
    weights: bool = True
    """Whether there are weights beside the configuration."""


def survey(path: str | Path) -> Survey:
    """
    Reads configuration and tensor headers, and no tensor. A model that Lamella cannot run is described as far as it can be, with the
    reason. Raises ModelNotFoundError where there is no model, ConfigError for a configuration and CheckpointError for a file that
    cannot be parsed.
    """
    path = Path(path).expanduser()
    bare = path.suffix == ".json" and path.is_file()
    if not bare and not (path / "config.json").is_file():
        # A GGUF file is configuration and weights in one: what is wrong with it is wrong with all of it.
        opened = open_model(path)
        return _of_model(path, f"{opened.config.family} (GGUF)", opened, None)
    config_file = path if bare else path / "config.json"
    fields = read_json(config_file)
    named: Any = fields.values.get("architectures")
    names = cast("list[Any]", named) if isinstance(named, list) else []
    architecture = clipped(printable(str(names[0] if names else fields.values.get("model_type", "unknown"))))
    try:
        described = open_model(config_file, random_weights=0)
    except LamellaError as refusal:
        sizes = {name: fields.values[name] for name in SIZES if type(fields.values.get(name)) is int}
        stored = {} if bare else _stored(path)
        kinds = (_kind(UNKNOWN, list(stored.values())),) if stored else ()
        return Survey(path, architecture, sizes, kinds, refusal=refusal, weights=bool(stored))
    architecture = family(described.config.family).architecture
    if bare:
        return _of_model(path, architecture, described, None, weights=False)
    try:
        opened = open_model(path)
    except ModelNotFoundError:
        return _of_model(path, architecture, described, None, weights=False)
    except CheckpointError as refusal:
        # Pickles are no safetensors and no sign of damage; a header that does not parse is.
        if has_safetensors(path):
            raise
        return _of_model(path, architecture, described, refusal)
    except LamellaError as refusal:
        return _of_model(path, architecture, described, refusal)
    return _of_model(path, architecture, opened, None)


def kind_of(name: str) -> str:
    """What a tensor is for, by its canonical name: `layers.3.attn.q_proj` → `attention`."""
    part = name.split(".", 2)[-1] if name.startswith("layers.") else name
    if "norm" in part:
        return "norms"
    if part.startswith("embed"):
        return "embedding"
    if part == "lm_head":
        return "output head"
    if part.startswith("attn."):
        return "attention"
    return "router" if ".router" in part else "experts" if ".experts." in part else "feed-forward"


def _of_model(path: Path, architecture: str, opened: LoadedModel, refusal: LamellaError | None, *, weights: bool = True) -> Survey:
    """A survey of a model whose configuration is understood; tensors are those that the configuration implies."""
    source = opened.source
    files = source.source if isinstance(source, PackedSource) else source
    stored: Mapping[str, StoredTensor] = files.tensors if isinstance(files, SafetensorsSource | GgufSource) else {}
    parts: dict[str, list[StoredTensor]] = {}
    shapes = weight_shapes(opened.config)
    for name, tensor in stored.items():
        # What a quantized weight is stored as is called after it.
        parts.setdefault(name if name in shapes else name.rpartition(".")[0], []).append(tensor)
    kinds: list[TensorKind] = []
    stay = kept(opened.config)
    for kind in KINDS:
        group = {name: shape for name, shape in shapes.items() if kind_of(name) == kind}
        found = _kind(kind, [tensor for name in group for tensor in parts.get(name, ())])
        packings = [(packing, opened.config.matrix(name, group[name])) for name, packing in stay.items() if name in group]
        packed = (sum(prod(shape) for _, shape in packings), sum(packing.size(*shape) for packing, shape in packings))
        if group:
            kinds.append(TensorKind(kind, len(group), sum(map(prod, group.values())), found.stored, packed))
    return Survey(path, architecture, sizes_of(opened.config), tuple(kinds), opened, refusal, weights)


def sizes_of(config: ModelConfig) -> dict[str, int]:
    """The sizes of a configuration by the names of docs/glossary.md."""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocabulary", "max_positions")
    return {name: getattr(config, name) for name in names}


def _stored(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder by its stored name; none where there are no safetensors."""
    return stored_tensors(folder)[0] if has_safetensors(folder) else {}


def _kind(kind: str, tensors: list[StoredTensor]) -> TensorKind:
    stored: Counter[str] = Counter()
    for tensor in tensors:
        stored[tensor.dtype] += stored_bytes(tensor)
    return TensorKind(kind, len(tensors), sum(prod(t.shape) for t in tensors), dict(stored))


def stored_bytes(tensor: StoredTensor) -> int:
    """Bytes of a tensor in its file; types of less than a byte an element count as one."""
    return tensor.size if isinstance(tensor, GgufTensor) else prod(tensor.shape) * TYPE_BYTES.get(tensor.dtype.upper(), 1)

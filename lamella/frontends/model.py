"""A path enters: a Hugging Face folder, a GGUF file or a bare config.json; configuration, weights and tokenizer leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lamella.checkpoints import (
    GgufSource,
    PackedSource,
    RandomSource,
    SafetensorsSource,
    TensorSource,
    has_safetensors,
    is_gguf,
    keepable,
    read_gguf,
)
from lamella.checkpoints.gguf_blocks import BLOCKS
from lamella.checkpoints.own import OwnFormat
from lamella.checkpoints.quantized import open_quantized
from lamella.errors import CheckpointError, DtypeError, ModelNotFoundError, PromptError
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import source_names, weight_shapes
from lamella.frontends.family import family
from lamella.frontends.fields import read_json
from lamella.frontends.gguf import as_matrices, file_names, gguf_config, gguf_generation, gguf_harmless
from lamella.frontends.huggingface import DTYPES, GenerationDefaults, read_config, read_generation
from lamella.frontends.quantization import quantization
from lamella.tokenizer import Tokenizer, has_tokenizer

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
KINDS = "a folder with config.json and safetensors, a .gguf file, or a config.json"


@dataclass(frozen=True)
class LoadedModel:
    """All that was on disk, read and checked; no tensor is loaded and no tokenizer started yet."""

    path: Path
    config: ModelConfig
    source: TensorSource
    tokenizer: Tokenizer | None
    generation: GenerationDefaults
    quantization: str = ""
    """How the checkpoint was quantized, where it was: `GPTQ, 4 bits, groups of 128`."""

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises PromptError when the model has none."""
        if self.tokenizer is None:
            where, expected = str(self.path), "tokenizer.json beside config.json"
            raise PromptError("this model has no tokenizer", where=where, expected=expected, remedy="give token ids: --prompt-ids 1,2,3")
        return self.tokenizer


def open_model(path: str | Path, *, random_weights: int | None = None) -> LoadedModel:
    """
    Opens a model. With `random_weights`, a seed, the weights are made up, and only the configuration (and tokenizer) is read.
    Raises ModelNotFoundError, ConfigError, UnknownArchitectureError, CheckpointError, TensorError, DtypeError.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelNotFoundError("no such file or folder", where=str(path), expected=KINDS)
    if path.is_dir():
        return _open_folder(path, random_weights)
    if path.suffix == ".gguf" or is_gguf(path):
        return _open_gguf(path, random_weights)
    if path.suffix == ".json":
        if random_weights is None:
            remedy = f"pass the folder {path.parent}" if has_safetensors(path.parent) else "add --random-weights SEED"
            raise ModelNotFoundError("a configuration alone has no weights", where=str(path), expected=KINDS, remedy=remedy)
        return _open_random(path, random_weights)
    if path.suffix in PICKLES:
        raise _refused_pickle(path)
    remedy = "pass the folder that holds it" if path.suffix == ".safetensors" else None
    raise ModelNotFoundError("not a model", where=str(path), expected=KINDS, remedy=remedy)


def keep_packed(model: LoadedModel) -> LoadedModel:
    """The model with the weights of its linears and its embeddings packed as its checkpoint has them, where kernels can decode that.

    Blocks of other types become floats. A folder that was quantized elsewhere is packed already.
    Raises DtypeError where nothing can stay packed.
    """
    if model.config.packed:
        return model
    shapes = weight_shapes(model.config)
    names = [name for name, shape in shapes.items() if len(shape) == 2 and is_matrix(name, rows=True)]
    kept = keepable(model.source, names)
    if not kept or not isinstance(model.source, GgufSource):
        expected = f"a GGUF file with blocks of type {', '.join(BLOCKS)}"
        raise DtypeError(
            "no packed weights to keep", where=str(model.path), expected=expected, remedy="quantize float weights: int8 or int4"
        )
    packed = {name: weight.packing for name, weight in kept.items()}
    return replace(model, config=replace(model.config, packed=packed), source=PackedSource(model.source, kept))


def is_matrix(name: str, *, rows: bool) -> bool:
    """Whether a weight of two axes is multiplied, or (with `rows`) is the table of embeddings of tokens, rows of which kernels unpack."""
    return (rows and name == "embed") or not name.startswith("embed")


def _open_folder(folder: Path, random_weights: int | None) -> LoadedModel:
    config_file = folder / "config.json"
    ggufs = sorted(folder.glob("*.gguf"))
    if not config_file.is_file():
        remedy = f"pass the file: {ggufs[0]}" if ggufs else None
        raise ModelNotFoundError("the folder holds no config.json", where=str(folder), expected=KINDS, remedy=remedy)
    if random_weights is not None:
        return _open_random(config_file, random_weights)
    config, has_dtype = read_config(config_file)
    if not has_safetensors(folder):
        pickles = sorted(f for f in folder.iterdir() if f.suffix in PICKLES)
        if pickles:
            raise _refused_pickle(pickles[0])
        remedy = f"pass the file: {ggufs[0]}" if ggufs else "for weights made up from a seed add --random-weights SEED"
        raise ModelNotFoundError("the folder holds no weights", where=str(folder), expected="model.safetensors or its index", remedy=remedy)
    made = family(config.family)
    # Old exporters wrote the tied output projection a second time.
    buffers = (*made.buffers, *((made.stored("lm_head"),) if config.tied else ()))
    form = quantization(read_json(config_file))
    names, shapes = source_names(config), weight_shapes(config)
    source: TensorSource
    if form is None:
        source = SafetensorsSource.open(folder, names, shapes, buffers=buffers, prefix=made.prefix)
    else:
        rows = isinstance(form, OwnFormat)
        matrices = {name: config.matrix(name, shape) for name, shape in shapes.items() if len(shape) == 2 and is_matrix(name, rows=rows)}
        source = open_quantized(folder, names, shapes, matrices, form, buffers=buffers, prefix=made.prefix)
        config = replace(config, packed={name: weight.packing for name, weight in source.weights.items()})
    if not has_dtype:
        config = replace(config, dtype=source.dtype("embed"))
    label = "" if form is None else form.label
    return LoadedModel(folder, config, source, _tokenizer(folder), read_generation(folder, config), label)


def _open_gguf(file: Path, random_weights: int | None) -> LoadedModel:
    header = as_matrices(read_gguf(file))
    config = gguf_config(header)
    shapes = weight_shapes(config)
    source: TensorSource
    if random_weights is None:
        source = GgufSource.open(header, file_names(header, config), shapes, gguf_harmless)
    else:
        source = RandomSource(shapes, random_weights, config.dtype)
    tokenizer = Tokenizer(file.parent, file.name) if "tokenizer.ggml.model" in header.metadata else None
    return LoadedModel(file, config, source, tokenizer, gguf_generation(config))


def _open_random(config_file: Path, seed: int) -> LoadedModel:
    config, _ = read_config(config_file)
    source = RandomSource(weight_shapes(config), seed, config.dtype)
    folder = config_file.parent
    return LoadedModel(config_file, config, source, _tokenizer(folder), read_generation(folder, config))


def _tokenizer(folder: Path) -> Tokenizer | None:
    return Tokenizer(folder) if has_tokenizer(folder) else None


def _refused_pickle(file: Path) -> CheckpointError:
    # Unpickling runs whatever code the file holds.
    remedy = "convert it: load it with transformers where you trust it and call save_pretrained(folder, safe_serialization=True)"
    return CheckpointError("pickled weights are never opened", where=str(file), expected="model.safetensors", remedy=remedy)


__all__ = ["DTYPES", "LoadedModel", "keep_packed", "open_model"]

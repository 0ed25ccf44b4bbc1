"""Front ends: files on disk enter, a model's configuration, weights, tokenizer and transformer IR leave."""

from lamella.frontends.config import ModelConfig
from lamella.frontends.huggingface import GenerationDefaults
from lamella.frontends.model import LoadedModel, open_model

__all__ = ["GenerationDefaults", "LoadedModel", "ModelConfig", "open_model"]

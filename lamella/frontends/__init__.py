"""Front ends: files on disk enter, a model's configuration, weights, tokenizer and transformer IR leave."""

from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import source_names, weight_shapes
from lamella.frontends.huggingface import GenerationDefaults
from lamella.frontends.model import LoadedModel, keep_packed, open_model
from lamella.frontends.own_config import written
from lamella.frontends.survey import Survey, survey

__all__ = [
    "GenerationDefaults",
    "LoadedModel",
    "ModelConfig",
    "Survey",
    "keep_packed",
    "open_model",
    "source_names",
    "survey",
    "weight_shapes",
    "written",
]

"""Decoders over paged keys and values: ``load_model`` is the way in."""

from quire.model.adaptable import Adaptable, adaptable
from quire.model.base import Model
from quire.model.config import ModelConfig, read_config, sampling_defaults
from quire.model.decoder import DecoderModel
from quire.model.loader import load_model, resolve_model
from quire.model.streaming import Streaming

__all__ = [
    "Adaptable",
    "DecoderModel",
    "Model",
    "ModelConfig",
    "Streaming",
    "adaptable",
    "load_model",
    "read_config",
    "resolve_model",
    "sampling_defaults",
]

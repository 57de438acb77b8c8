"""Decoders over paged keys and values: ``load_model`` is the way in."""

from quire.model.base import Model
from quire.model.config import ModelConfig, read_config, sampling_defaults
from quire.model.loader import load_model, resolve_model
from quire.model.streaming import Streaming

__all__ = [
    "Model",
    "ModelConfig",
    "Streaming",
    "load_model",
    "read_config",
    "resolve_model",
    "sampling_defaults",
]

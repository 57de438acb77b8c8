"""Decoders over paged keys and values, by ``load_model``; and encoders, by ``load_encoder``."""

from quire.model.adaptable import Adaptable, adaptable
from quire.model.base import Model
from quire.model.config import ModelConfig, read_config, sampling_defaults
from quire.model.decoder import DecoderModel
from quire.model.dense import Dense, read_dense
from quire.model.encoder import EncoderModel, TextBatch
from quire.model.loader import is_encoder, load_encoder, load_model, resolve_model
from quire.model.streaming import Streaming

__all__ = [
    "Adaptable",
    "DecoderModel",
    "Dense",
    "EncoderModel",
    "Model",
    "ModelConfig",
    "Streaming",
    "TextBatch",
    "adaptable",
    "is_encoder",
    "load_encoder",
    "load_model",
    "read_config",
    "read_dense",
    "resolve_model",
    "sampling_defaults",
]

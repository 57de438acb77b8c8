"""Decoders over paged keys and values: ``load_model`` is the way in."""

from quire.model.base import Model, Streaming
from quire.model.config import sampling_defaults
from quire.model.loader import load_model, resolve_model

__all__ = ["Model", "Streaming", "load_model", "resolve_model", "sampling_defaults"]

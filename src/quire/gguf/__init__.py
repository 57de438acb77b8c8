"""GGUF files: what is in them, read without trust, and what that would be in a config.json."""

from quire.gguf.config import config_of
from quire.gguf.header import GGUFFile, TensorInfo, is_gguf, open_gguf
from quire.gguf.types import TensorType

__all__ = ["GGUFFile", "TensorInfo", "TensorType", "config_of", "is_gguf", "open_gguf"]

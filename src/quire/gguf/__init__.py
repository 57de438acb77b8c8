"""GGUF files: what is in them, read without trust, and what that would be in a config.json."""

from quire.gguf.config import config_of, kept_bytes
from quire.gguf.header import GGUFFile, TensorInfo, is_gguf
from quire.gguf.parts import open_gguf, parts_of
from quire.gguf.types import BLOCKS, ROUNDED_BYTES, TensorType

__all__ = [
    "BLOCKS",
    "ROUNDED_BYTES",
    "GGUFFile",
    "TensorInfo",
    "TensorType",
    "config_of",
    "is_gguf",
    "kept_bytes",
    "open_gguf",
    "parts_of",
]

"""GGUF files: what is in them, read without trust, and what that would be in a config.json."""

from quire.models.gguf.config import config_of, kept_sizes
from quire.models.gguf.ends import CONTROL, end_tokens
from quire.models.gguf.header import GGUFFile, TensorInfo, is_gguf, is_list
from quire.models.gguf.parts import open_gguf, parts_of
from quire.models.gguf.types import BLOCKS, ROUNDED_BYTES, TensorType
from quire.models.gguf.words import UNNAMED, WORDS, Words

__all__ = [
    "BLOCKS",
    "CONTROL",
    "ROUNDED_BYTES",
    "UNNAMED",
    "WORDS",
    "GGUFFile",
    "TensorInfo",
    "TensorType",
    "Words",
    "config_of",
    "end_tokens",
    "is_gguf",
    "is_list",
    "kept_sizes",
    "open_gguf",
    "parts_of",
]

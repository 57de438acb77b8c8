"""Where an engine is put together from its parts."""

from quire.engine.assembly.engine import DEMO_NAME, build_engine
from quire.engine.assembly.tokenizer import tokenizer_directory

__all__ = ["DEMO_NAME", "build_engine", "tokenizer_directory"]

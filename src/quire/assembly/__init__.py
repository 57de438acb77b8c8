"""Where an engine is put together from its parts."""

from quire.assembly.draft import DEMO_DRAFT
from quire.assembly.engine import DEMO_NAME, build_engine
from quire.assembly.loading import DEMO_MODEL, tokenizer_directory

__all__ = ["DEMO_DRAFT", "DEMO_MODEL", "DEMO_NAME", "build_engine", "tokenizer_directory"]

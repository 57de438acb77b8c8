"""Every setting, in vLLM's names: frozen values, of which the CLI's flags are made."""

from quire.engine.config.engine import NO_ADAPTERS_ON_GPU, NO_DRAFT_MODEL_ON_GPU, EngineConfig
from quire.engine.config.parallel import NO_RANKS_ON_GPU

__all__ = [
    "NO_ADAPTERS_ON_GPU",
    "NO_DRAFT_MODEL_ON_GPU",
    "NO_RANKS_ON_GPU",
    "EngineConfig",
]

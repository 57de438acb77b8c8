"""The settings of an engine."""

from quire.engine.config.engine import (
    NO_ADAPTERS_ON_GPU,
    NO_DRAFT_MODEL_ON_GPU,
    NO_FOUR_BITS_ON_GPU,
    NO_RANKS_ON_GPU,
    EngineConfig,
)

__all__ = [
    "NO_ADAPTERS_ON_GPU",
    "NO_DRAFT_MODEL_ON_GPU",
    "NO_FOUR_BITS_ON_GPU",
    "NO_RANKS_ON_GPU",
    "EngineConfig",
]

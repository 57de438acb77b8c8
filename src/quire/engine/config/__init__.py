"""The settings of an engine."""

from quire.engine.config.engine import EngineConfig, check_on_gpu

__all__ = ["EngineConfig", "check_on_gpu"]

"""What an engine's settings and a server's say together."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import ConfigError
from quire.engine.config.engine import EngineConfig
from quire.http.config.server import ServerConfig


def check_names(config: ServerConfig, engine_config: EngineConfig) -> None:
    """That nothing is called two things, and adapters can be loaded where they may be."""
    if config.allow_runtime_lora_updating and not engine_config.enable_lora:
        raise ConfigError("allow_runtime_lora_updating needs enable_lora")
    names: Sequence[str | None] = config.served_model_name or [engine_config.model]
    for module in engine_config.adapters:
        if module.name in names:
            raise ConfigError(f"lora_modules: {module.name} is the name of the model itself")

"""How prompts become embeddings, where the settings say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.config.settings import check_count
from quire.errors import ConfigError

_POOLING = ("LAST", "MEAN", "CLS")


def check_pooler(given: Mapping[str, Any]) -> None:
    """ConfigError unless ``pooler_config`` is one."""
    for name, value in given.items():
        if name == "pooling_type":
            if value not in _POOLING:
                allowed = ", ".join(_POOLING)
                raise ConfigError(
                    f"pooler_config: pooling_type must be one of {allowed}; got {value!r}"
                )
        elif name == "normalize":
            if not isinstance(value, bool):
                raise ConfigError("pooler_config: normalize must be true or false")
        elif name == "dimensions":
            check_count("pooler_config: dimensions", value)
        else:
            raise ConfigError(
                f"pooler_config: unknown option {name}; known: pooling_type, normalize, dimensions"
            )

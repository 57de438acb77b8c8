"""What settings may ask of a model: its vectors, its window, where its defaults are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError
from quire.core.settings import check_count

_POOLING = ("LAST", "MEAN", "CLS", "MAX")


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


def checked_generation_config(given: str) -> str:
    """auto, none or a directory."""
    if given == "vllm":
        return "none"
    if given not in ("auto", "none") and not Path(given).is_dir():
        raise ConfigError(
            f"generation_config must be auto, none, vllm or a directory; got {given!r}"
        )
    return given


def check_window(window: int | None, sinks: int, block_size: int) -> None:
    """ConfigError unless sequences can go on in such a window."""
    if isinstance(sinks, bool) or not isinstance(sinks, int) or sinks < 0:
        raise ConfigError(f"attention_sinks must be an integer of at least 0, got {sinks!r}")
    if window is None:
        if sinks:
            raise ConfigError("attention_sinks needs a window")
        return
    if window < block_size:
        raise ConfigError(f"window must be at least block_size, {block_size}; got {window}")

"""Whose defaults of sampling parameters count."""

from __future__ import annotations

from pathlib import Path

from quire.errors import ConfigError


def known_source(given: str) -> str:
    """``generation_config`` by its own name; ConfigError unless it is one."""
    source = "none" if given == "vllm" else given
    if source not in ("auto", "none") and not Path(source).is_dir():
        raise ConfigError(
            f"generation_config must be auto, none, vllm or a directory; got {given!r}"
        )
    return source

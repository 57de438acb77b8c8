"""A model's own defaults for what a request leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, ModelError, QuireError, RequestError
from quire.core.protocol import SamplingParams
from quire.engine.config import EngineConfig
from quire.models.config import sampling_defaults
from quire.models.shape import SAMPLING_DEFAULTS


def default_sampling(config: EngineConfig, directory: Path) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    if config.generation_config != "none":
        source = directory if config.generation_config == "auto" else Path(config.generation_config)
        defaults = sampling_defaults(source)
        _check_defaults(defaults, ModelError(f"{source}/generation_config.json"))
    overrides = config.override_generation_config or {}
    for name in overrides:
        if name not in SAMPLING_DEFAULTS:
            known = ", ".join(SAMPLING_DEFAULTS)
            raise ConfigError(f"override_generation_config may hold {known}; not {name}")
    _check_defaults(overrides, ConfigError("override_generation_config"))
    return {**defaults, **overrides}


def _check_defaults(defaults: Mapping[str, Any], refusal: QuireError) -> None:
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise type(refusal)(f"{refusal}: {error}") from error

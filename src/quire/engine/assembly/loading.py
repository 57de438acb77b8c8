"""The model of an engine, its pool's shape and its defaults for sampling: alike on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from quire.core.errors import ConfigError, ModelError, QuireError, RequestError
from quire.engine.assembly.centring import describe_rounding
from quire.engine.config import EngineConfig
from quire.execution.free_memory import is_memory
from quire.execution.kv.layers import (
    bytes_per_token,
    check_heads,
    is_spread,
    rows_of,
    scale_bytes,
)
from quire.kernels.layer_memory import StateShape
from quire.kernels.ranks import Ranks
from quire.models.base import Model
from quire.models.config import sampling_defaults
from quire.models.demo import DEMO_MODEL
from quire.models.loader import load_model, resolve_model
from quire.models.shape import SAMPLING_DEFAULTS, CacheShape
from quire.models.streaming import Streaming
from quire.text.params import SamplingParams


def locate(config: EngineConfig) -> Path:
    """The directory of the model that is served."""
    return resolve_model(config.model or DEMO_MODEL, config.revision, config.download_dir)


def load(
    config: EngineConfig,
    directory: Path,
    device: torch.device,
    admit: Callable[[int], None],
    instruction_set: str,
    ranks: Ranks | None = None,
) -> Model:
    """The model that is served, or this rank's part of it."""
    return load_model(
        directory,
        config.dtype,
        # With a window, the length of its texts is no matter of the model's.
        config.max_model_len if config.window is None else None,
        streaming=streaming(config),
        quantization=config.quantization,
        device=device,
        admit=admit,
        instruction_set=instruction_set,
        hf_overrides=config.hf_overrides,
        ranks=ranks,
        experts_path=experts_path(config),
    )


def experts_path(config: EngineConfig) -> Path | None:
    """Where experts are kept in a file. ConfigError: no file can be there, or it is memory."""
    if config.experts_path is None:
        return None
    path = Path(config.experts_path).expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"experts_path: {path} is not a directory")
    if is_memory(path):
        raise ConfigError(f"experts_path: {path} is in main memory (tmpfs): choose one on a disk")
    return path


def streaming(config: EngineConfig) -> Streaming | None:
    """The window that the settings ask for, if they do."""
    if config.window is None:
        return None
    return Streaming(config.window, config.attention_sinks)


def kv_dtype(config: EngineConfig, model: Model) -> torch.dtype:
    """The pool's type. ConfigError: it cannot keep heads of the model's sizes."""
    if config.kv_cache_dtype == "auto":
        return model.dtype
    name = {"fp8": "float8_e4m3fn"}.get(config.kv_cache_dtype, config.kv_cache_dtype)
    dtype: torch.dtype = getattr(torch, name)
    check_heads(model.kv_shapes, dtype)
    return dtype


def forms_of(kernels: str, model: Model, kv_dtype: torch.dtype) -> list[str]:
    """What computes, of which type, and of which the pool is: by it, blocks have their bits."""
    kept = dtype_name(kv_dtype)
    if is_spread(kv_dtype):
        kept = f"{kept}, {describe_rounding(model, kv_dtype)}"
    return [kernels, dtype_name(model.dtype), kept]


def dtype_name(dtype: torch.dtype) -> str:
    """A type's name in settings."""
    return str(dtype).removeprefix("torch.")


def cache_shape(model: Model, kv_dtype: torch.dtype) -> CacheShape:
    """What the pool holds of a token: on each rank, of the heads that it has."""
    kept = [shape if isinstance(shape, StateShape) else None for shape in model.kv_shapes]
    has_states = any(kept)
    return CacheShape(
        windows=model.windows,
        token_bytes=tuple(bytes_per_token([shape], kv_dtype) for shape in model.kv_shapes),
        scale_bytes=tuple(scale_bytes(shape, kv_dtype) for shape in model.kv_shapes),
        max_positions=model.max_positions,
        depends_on_prompt_length=model.kv_depends_on_prompt_length,
        state_bytes=tuple(one.nbytes if one else 0 for one in kept) if has_states else (),
        draft_bytes=tuple(one.draft_bytes if one else 0 for one in kept) if has_states else (),
        rows=tuple(rows_of(shape, kv_dtype) for shape in model.kv_shapes),
    )


OVERRIDES = (*SAMPLING_DEFAULTS, "presence_penalty", "frequency_penalty")
"""What a server's settings may say in place of a model's files."""


def default_sampling(config: EngineConfig, directory: Path) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    if config.generation_config != "none":
        source = directory if config.generation_config == "auto" else Path(config.generation_config)
        defaults = sampling_defaults(source)
        _check_defaults(defaults, ModelError(f"{source}/generation_config.json"))
    overrides = config.override_generation_config or {}
    for name in overrides:
        if name not in OVERRIDES:
            known = ", ".join(OVERRIDES)
            raise ConfigError(f"override_generation_config may hold {known}; not {name}")
    _check_defaults(overrides, ConfigError("override_generation_config"))
    return {**defaults, **overrides}


def _check_defaults(defaults: Mapping[str, Any], refusal: QuireError) -> None:
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise type(refusal)(f"{refusal}: {error}") from error

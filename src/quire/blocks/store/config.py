"""Settings of the block store."""

from __future__ import annotations

from typing import Protocol

from quire.core.errors import ConfigError

STORE_SIZE = 16.0  # GiB


class _StoreSettings(Protocol):
    """The fields of an EngineConfig that matter here."""

    @property
    def kv_store(self) -> str | None: ...

    @property
    def kv_store_size(self) -> float: ...

    @property
    def kv_offloading_size(self) -> float | None: ...

    @property
    def device(self) -> str: ...

    @property
    def enable_prefix_caching(self) -> bool | None: ...


def check_store(config: _StoreSettings) -> None:
    """ConfigError if a store would do nothing, or is not possible."""
    if config.kv_store is None and config.kv_store_size != STORE_SIZE:
        raise ConfigError("kv_store_size does nothing without kv_store")
    if config.kv_store is not None and not config.kv_store:
        raise ConfigError("kv_store must be a directory, got ''")
    for name, value in (
        ("kv_store", config.kv_store),
        ("kv_offloading_size", config.kv_offloading_size),
    ):
        if value is not None:
            _check_blocks(name, config)


def _check_blocks(name: str, config: _StoreSettings) -> None:
    """ConfigError if no block could be kept outside the pool."""
    if config.device == "cuda":
        raise ConfigError(no_store_on_gpu(name))
    if config.enable_prefix_caching is False:
        raise ConfigError(f"{name} needs enable_prefix_caching: blocks are found by their content")


def no_store_on_gpu(name: str) -> str:
    return f"{name}: blocks are stored on CPUs only: choose device cpu"

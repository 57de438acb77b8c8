"""Settings of the block store."""

from __future__ import annotations

from quire.config.settings import check_number
from quire.errors import ConfigError

STORE_SIZE = 16.0  # GiB
NO_STORE_ON_GPU = "kv_store: blocks are stored on CPUs only: choose device cpu"


def check_store(
    path: str | None, size: float, device: str, allocator: str, caching: bool | None
) -> None:
    """ConfigError where a store would do nothing, or cannot be had."""
    check_number("kv_store_size", size, 2.0**-10, 2**30, "GiB")
    if path is None:
        if size != STORE_SIZE:
            raise ConfigError("kv_store_size does nothing without kv_store")
        return
    if not path:
        raise ConfigError("kv_store must be a directory, got ''")
    if device == "cuda":
        raise ConfigError(NO_STORE_ON_GPU)
    if allocator != "paged":
        raise ConfigError('kv_store needs kv_allocator "paged"')
    if caching is False:
        raise ConfigError("kv_store needs enable_prefix_caching: blocks are found by their content")

"""How much memory the KV pool may take."""

from __future__ import annotations

from pathlib import Path

import psutil

from quire.errors import ConfigError

FREE_MEMORY_SHARE = 0.5
"""The default pool takes at most this share of the memory that is free once weights are loaded."""


def free_memory() -> int:
    """Bytes that this process can still take: of the machine, or of its cgroup if that is less."""
    free = int(psutil.virtual_memory().available)
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def pool_blocks(
    bytes_per_block: int,
    blocks_of_full_load: int,
    requested_bytes: int | None,
    free: int,
    share: float = FREE_MEMORY_SHARE,
) -> int:
    """Blocks of the KV pool.

    requested_bytes: what the user asked for; by default ``share`` of ``free``, or what the most
        sequences at their longest would fill, if that is less.
    """
    if requested_bytes is None:
        return min(int(free * share) // bytes_per_block, blocks_of_full_load)
    if requested_bytes > free:
        raise ConfigError(
            f"kv_cache_memory_bytes is {requested_bytes:,}, but only {free:,} bytes are free"
        )
    if requested_bytes < bytes_per_block:
        raise ConfigError(
            f"kv_cache_memory_bytes must hold at least one block, {bytes_per_block:,} bytes; "
            f"got {requested_bytes:,}"
        )
    return requested_bytes // bytes_per_block

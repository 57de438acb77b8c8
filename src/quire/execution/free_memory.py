"""How much memory the KV pool may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from quire.cgroups import PROCESS, SYSTEM, directories
from quire.errors import ConfigError

_TORCH_HAS_NONE = "can't allocate memory"
_NO_LIMIT = 2**62
_IN_MEMORY = ("tmpfs", "ramfs")


def free_memory(system: Path = SYSTEM, process: Path = PROCESS) -> int:
    """Bytes that this process can still take: of the machine, or of its cgroups if that is less."""
    free = int(psutil.virtual_memory().available)
    return max(0, min([free, *map(_left, directories("memory", system, process))]))


def is_memory(directory: Path) -> bool:
    """Whether files there take main memory, as far as the system tells."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = directory.resolve()
    own = next((str(one) for one in (resolved, *resolved.parents) if str(one) in mounts), "")
    return mounts.get(own) in _IN_MEMORY


@contextmanager
def memory_or_refusal() -> Iterator[None]:
    """ConfigError where memory that was thought to be free cannot be had."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and _TORCH_HAS_NONE not in str(error):
            raise
        raise ConfigError(
            f"there is not enough memory for the model and its KV pool ({free_memory():,} bytes "
            f"are free): choose a smaller model or a smaller kv_cache_memory_bytes"
        ) from error


def _left(directory: Path) -> int:
    """Of one cgroup, version 2 or 1; more than there is where it sets no limit.

    What its processes have read of files counts as free: the system drops it when memory is needed.
    """
    second = (directory / "memory.max").exists()
    names = ("max", "current") if second else ("limit_in_bytes", "usage_in_bytes")
    try:
        limit, used = ((directory / f"memory.{name}").read_text().strip() for name in names)
        if limit == "max":
            return _NO_LIMIT
        return int(limit) - max(0, int(used) - _of_files(directory, "" if second else "total_"))
    except (OSError, ValueError):
        return _NO_LIMIT


def _of_files(directory: Path, prefix: str) -> int:
    """Bytes of pages that hold what files do; 0 where the system does not tell."""
    names = (f"{prefix}active_file", f"{prefix}inactive_file")
    try:
        lines = map(str.split, (directory / "memory.stat").read_text().splitlines())
        return sum(int(count) for name, count in lines if name in names)
    except (OSError, ValueError):
        return 0

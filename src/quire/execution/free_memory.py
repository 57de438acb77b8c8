"""How much memory this process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from quire.core.errors import DOCTOR, ConfigError
from quire.execution.memory_limits import MemoryLimit, memory_limits
from quire.execution.promises import promises
from quire.kernels.cgroups import PROCESS, SYSTEM

_TORCH_HAS_NONE = "can't allocate memory"
_IN_MEMORY = ("tmpfs", "ramfs")


def free_memory(
    system: Path = SYSTEM, process: Path = PROCESS, promised: Path | None = None
) -> int:
    """Free bytes of the machine, or what one of its limits leaves if that is less.

    Memory promised to other engines is not free. promised: the directory of their promises.
    """
    machine = psutil.virtual_memory()
    limits = [
        MemoryLimit("this machine", machine.total, machine.available),
        *memory_limits(system, process),
    ]
    known = [(one.left, one.groups) for one in promises(promised)]

    def left(limit: MemoryLimit) -> int:
        if limit.alone:
            return limit.left
        return limit.left - sum(
            num_bytes
            for num_bytes, groups in known
            if limit.group is None or str(limit.group) in groups
        )

    return max(0, min(map(left, limits)))


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
            f"are free): choose a smaller model or a smaller kv_cache_memory_bytes; {DOCTOR}"
        ) from error

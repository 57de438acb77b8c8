"""How much memory there is for a pool."""

from __future__ import annotations

from typing import NamedTuple

FREE_MEMORY_SHARE = 0.5
"""Of main memory that is free once weights are loaded, the default pool takes at most this share;
the rest is for files, for other processes, and for what computing needs."""


class MemoryBudget(NamedTuple):
    """Memory for the KV pool."""

    free: int  # bytes
    share: float  # of them that the pool takes if nobody says otherwise
    beside: int = 0  # bytes that are left for computing and for requests, whatever is asked for

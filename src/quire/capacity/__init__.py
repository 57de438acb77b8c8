"""What an engine has room for, and what holds for it; a simulated one too. Never torch."""

from quire.capacity.description import AdapterShare, Capacity, DraftShare, describe_kv_groups
from quire.capacity.kv_groups import KVGroup, sights_of
from quire.capacity.limits import EngineLimits
from quire.capacity.pool import FREE_MEMORY_SHARE, MemoryBudget, fill, size_of

__all__ = [
    "FREE_MEMORY_SHARE",
    "AdapterShare",
    "Capacity",
    "DraftShare",
    "EngineLimits",
    "KVGroup",
    "MemoryBudget",
    "describe_kv_groups",
    "fill",
    "sights_of",
    "size_of",
]

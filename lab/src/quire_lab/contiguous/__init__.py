"""Contiguous reservation, the memory of the systems that PagedAttention is compared with."""

from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from quire_lab.contiguous.limits import (
    KV_ALLOCATORS,
    PAGED,
    RegionLimits,
    limits_of_values,
    limits_under,
    name_of,
)

__all__ = [
    "KV_ALLOCATORS",
    "PAGED",
    "ContiguousAllocator",
    "RegionLimits",
    "Reservation",
    "limits_of_values",
    "limits_under",
    "name_of",
]

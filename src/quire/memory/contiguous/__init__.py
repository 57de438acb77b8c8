"""Contiguous reservation, the memory of the systems that PagedAttention is compared with."""

from quire.memory.contiguous.allocator import ContiguousAllocator, Reservation

__all__ = ["ContiguousAllocator", "Reservation"]

"""The KV cache's blocks: who holds which, on what terms. Standard library only."""

from quire.memory.allocator import BlockTable, Demand, Fit, KVAllocator, Usage, When
from quire.memory.audit import audit
from quire.memory.blocks import (
    BEYOND,
    BlockHash,
    BlockMove,
    Content,
    MoveKind,
    hash_blocks,
    root_hash,
    rooted,
)
from quire.memory.contiguous.allocator import ContiguousAllocator, Reservation
from quire.memory.layered import LayeredAllocator
from quire.memory.no_blocks import NoBlocks
from quire.memory.paged import PagedAllocator
from quire.memory.pool import BlockPool, ContentWatcher
from quire.memory.source import BlockSource
from quire.memory.views import PoolView, pool_views
from quire.memory.window import Window

__all__ = [
    "BEYOND",
    "BlockHash",
    "BlockMove",
    "BlockPool",
    "BlockSource",
    "BlockTable",
    "Content",
    "ContentWatcher",
    "ContiguousAllocator",
    "Demand",
    "Fit",
    "KVAllocator",
    "LayeredAllocator",
    "MoveKind",
    "NoBlocks",
    "PagedAllocator",
    "PoolView",
    "Reservation",
    "Usage",
    "When",
    "Window",
    "audit",
    "hash_blocks",
    "pool_views",
    "root_hash",
    "rooted",
]

"""The KV cache's blocks: who holds which, on what terms. Standard library only."""

from quire.core.memory.allocator import KVAllocator
from quire.core.memory.audit import audit
from quire.core.memory.blocks import (
    BEYOND,
    BlockHash,
    BlockMove,
    Content,
    MoveKind,
    hash_blocks,
    root_hash,
    rooted,
)
from quire.core.memory.layered import LayeredAllocator
from quire.core.memory.no_blocks import NoBlocks
from quire.core.memory.paged import PagedAllocator
from quire.core.memory.pool import BlockPool, ContentWatcher
from quire.core.memory.source import BlockSource
from quire.core.memory.values import BlockTable, Demand, Fit, Usage, When
from quire.core.memory.views import PoolView
from quire.core.memory.window import Window

__all__ = [
    "BEYOND",
    "BlockHash",
    "BlockMove",
    "BlockPool",
    "BlockSource",
    "BlockTable",
    "Content",
    "ContentWatcher",
    "Demand",
    "Fit",
    "KVAllocator",
    "LayeredAllocator",
    "MoveKind",
    "NoBlocks",
    "PagedAllocator",
    "PoolView",
    "Usage",
    "When",
    "Window",
    "audit",
    "hash_blocks",
    "root_hash",
    "rooted",
]

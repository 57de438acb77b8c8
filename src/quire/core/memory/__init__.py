"""The KV cache's blocks: who holds which, on what terms. Standard library only."""

from quire.core.memory.allocator import Contents, KVAllocator
from quire.core.memory.blocks import (
    OUTSIDE,
    BlockHash,
    BlockMove,
    Content,
    MoveKind,
    hash_blocks,
    name_of_state,
    root_hash,
    rooted,
)
from quire.core.memory.kept import KV, KeptState, Window, kept_by
from quire.core.memory.layered import LayeredAllocator
from quire.core.memory.paged import PagedAllocator
from quire.core.memory.pages import PageShare, SharedPages, SharedPool, blocks_in_each
from quire.core.memory.pool import ContentWatcher
from quire.core.memory.snapshots import SnapshotPlaces
from quire.core.memory.source import BlockSource
from quire.core.memory.states import StateAllocator
from quire.core.memory.values import BlockTable, Demand, Fit, Usage, When
from quire.core.memory.views import PoolView

__all__ = [
    "KV",
    "OUTSIDE",
    "BlockHash",
    "BlockMove",
    "BlockSource",
    "BlockTable",
    "Content",
    "ContentWatcher",
    "Contents",
    "Demand",
    "Fit",
    "KVAllocator",
    "KeptState",
    "LayeredAllocator",
    "MoveKind",
    "PageShare",
    "PagedAllocator",
    "PoolView",
    "SharedPages",
    "SharedPool",
    "SnapshotPlaces",
    "StateAllocator",
    "Usage",
    "When",
    "Window",
    "blocks_in_each",
    "hash_blocks",
    "kept_by",
    "name_of_state",
    "root_hash",
    "rooted",
]

"""Blocks outside the pool as records: in memory, and in files that outlive the process. Loads no
torch.
"""

from quire.blocks.store.directory import StoreCounts
from quire.blocks.store.disk import DiskStore, check_writable
from quire.blocks.store.record import RecordForm, digest
from quire.blocks.store.shelf import RecordShelf
from quire.blocks.store.states import BlocksAndStates, Records, StateStores, Store, places_of
from quire.blocks.store.tiers import Tiers

__all__ = [
    "BlocksAndStates",
    "DiskStore",
    "RecordForm",
    "RecordShelf",
    "Records",
    "StateStores",
    "Store",
    "StoreCounts",
    "Tiers",
    "check_writable",
    "digest",
    "places_of",
]

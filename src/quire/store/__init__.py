"""Blocks beyond the pool: as records, in memory and in files that outlive it. Never torch."""

from quire.store.directory import StoreCounts
from quire.store.disk import DiskStore, check_writable
from quire.store.record import RecordForm, digest
from quire.store.shelf import RecordShelf
from quire.store.tiers import Tiers

__all__ = [
    "DiskStore",
    "RecordForm",
    "RecordShelf",
    "StoreCounts",
    "Tiers",
    "check_writable",
    "digest",
]

"""Blocks beyond the pool: as records, in files that outlive the process. Never torch."""

from quire.store.directory import StoreCounts
from quire.store.disk import DiskStore, check_writable
from quire.store.record import RecordForm, digest
from quire.store.shelf import RecordShelf

__all__ = ["DiskStore", "RecordForm", "RecordShelf", "StoreCounts", "check_writable", "digest"]

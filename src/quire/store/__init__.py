"""Blocks beyond the pool: as records, in files that outlive the process. Never torch."""

from quire.store.record import RecordForm
from quire.store.shelf import RecordShelf

__all__ = ["RecordForm", "RecordShelf"]

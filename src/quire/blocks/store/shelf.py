"""Records in memory: those that have left the pool, or that another engine has sent."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quire.blocks.store.record import Buffer, RecordForm
from quire.blocks.store.timing import seconds_to_read, zeros
from quire.core.memory import BlockHash, Content


class RecordShelf:
    """At most ``size`` bytes of records, the least recently used given up first.

    See ``BlockSource``. Others than the engine's thread may ``put`` records. A text that is longer
    than the shelf keeps its beginning there: each block that does not fit gives itself up.
    """

    def __init__(self, form: RecordForm, size: int) -> None:
        self._form = form
        self.size = size
        self.most = size // form.num_bytes  # records
        self._records: OrderedDict[BlockHash, bytes | None] = OrderedDict()  # None: no more than
        self._places: set[BlockHash] = set()  # the place of one that is about to be written
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return (len(self._records) - len(self._places)) * self._form.num_bytes

    def put(self, name: BlockHash, record: bytes) -> None:
        """Keep a record that claims to be the block of this name: ``read`` will find out."""
        with self._lock:
            if name in self._places:
                self._places.remove(name)
                self._records[name] = record
            else:
                self._records[name] = record
                self._records.move_to_end(name)
            while len(self._records) - len(self._places) > self.most:
                self._give_up(next(name for name, kept in self._records.items() if kept))

    def find(self, name: BlockHash) -> bytes | None:
        """The record that claims to be this block."""
        with self._lock:
            return self._records.get(name)

    def has(self, name: BlockHash) -> bool:
        """See ``BlockSource.has``."""
        return self._records.get(name) is not None

    def used(self, names: Iterable[BlockHash]) -> None:
        """See ``BlockSource.used``."""
        with self._lock:
            for name in self._places:
                del self._records[name]
            self._places.clear()
            self._order(names)

    def clear(self) -> None:
        """See ``BlockSource.clear``."""
        with self._lock:
            self._records.clear()
            self._places.clear()

    def forget(self, name: BlockHash) -> None:
        """What there is of that block is of no use: another rank lacks its part of it."""
        with self._lock:
            self._records.pop(name, None)
            self._places.discard(name)

    def room(self) -> int:
        """See ``BlockSource.room``: what is old makes room."""
        return self.most

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        """See ``BlockSource.read``. What is not what it claims to be is given up."""
        with self._lock:
            record = self._records.get(content.name)
            if record is None:
                raise OSError("the record is gone")
            self._records.move_to_end(content.name)
        try:
            self._form.read(content, kv_group, buffers, lambda into, at: copy(record, into, at))
        except OSError:
            self.forget(content.name)
            raise

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        """See ``BlockSource.write``."""
        self.put(content.name, b"".join([self._form.head(content, parts), *parts]))

    def _order(self, names: Iterable[BlockHash]) -> None:
        """The last one is needed longest; those that are not here get a place. The lock is held."""
        for name in names:
            if name in self._records:
                self._records.move_to_end(name)
            else:
                self._records[name] = None
                self._places.add(name)

    def _give_up(self, name: BlockHash) -> None:
        """To make room. The lock is held."""
        del self._records[name]

    def seconds_to_fetch(self) -> float:
        """What a block costs that lies here: measured, on one of zeros."""
        apart = RecordShelf(self._form, self._form.num_bytes)
        content, parts = zeros(self._form)
        apart.write(content, parts)
        return seconds_to_read(self._form, content, apart.read)


def copy(record: bytes, buffers: Sequence[Buffer], offset: int) -> int:
    """Fill buffers from a record in memory; how many bytes there were."""
    view, start = memoryview(record), offset
    for buffer in buffers:
        own = memoryview(buffer).cast("B")
        piece = view[offset : offset + own.nbytes]
        own[: piece.nbytes] = piece
        offset += piece.nbytes
    return offset - start

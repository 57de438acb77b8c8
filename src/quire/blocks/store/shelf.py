"""Records in memory: of blocks that were evicted from the pool, or sent by another engine."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quire.blocks.store.record import Buffer, RecordForm, seconds_to_read, zeros
from quire.core.memory import BlockHash, Content

Record = bytes | bytearray


class RecordShelf:
    """At most ``size`` bytes of records; the least recently used are evicted first.

    See ``BlockSource``. Any thread may ``put`` records. Of a text that does not fit, the beginning
    is kept: each block that does not fit evicts itself.
    """

    def __init__(self, form: RecordForm, size: int) -> None:
        self._form = form
        self.size = size
        self.most = size // form.num_bytes  # records
        self._records: OrderedDict[BlockHash, Record | None] = OrderedDict()  # None: reserved
        self._places: set[BlockHash] = set()  # reserved for records about to be written
        self._lock = threading.Lock()

    @property
    def record_bytes(self) -> int:
        return self._form.num_bytes

    @property
    def keeps_blocks(self) -> bool:
        """Whether there is anything in them: not, where layers keep states alone."""
        return bool(self._form.part_bytes)

    @property
    def num_bytes(self) -> int:
        return (len(self._records) - len(self._places)) * self._form.num_bytes

    def put(self, name: BlockHash, record: Record) -> None:
        """Keep a record that claims to be this block; ``read`` checks it."""
        with self._lock:
            if name in self._places:
                self._places.remove(name)
                self._records[name] = record
            else:
                self._records[name] = record
                self._records.move_to_end(name)
            while len(self._records) - len(self._places) > self.most:
                self._give_up(next(name for name, kept in self._records.items() if kept))

    def find(self, name: BlockHash) -> Record | None:
        """The record that claims to be this block."""
        with self._lock:
            return self._records.get(name)

    def has(self, name: BlockHash) -> bool:
        return self._records.get(name) is not None

    def used(self, names: Iterable[BlockHash]) -> None:
        with self._lock:
            for name in self._places:
                del self._records[name]
            self._places.clear()
            self._order(names)

    def clear(self) -> None:
        with self._lock:
            self._records.clear()
            self._places.clear()

    def forget(self, name: BlockHash) -> None:
        """Drop a block that is useless, since another rank lacks its part."""
        with self._lock:
            self._records.pop(name, None)
            self._places.discard(name)

    def room(self) -> int:
        """See ``BlockSource.room``. Old records make room."""
        return self.most

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        """See ``BlockSource.read``. A record that is not what it claims to be is dropped."""
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
        self.put(content.name, b"".join([self._form.head(content, parts), *parts]))

    def _order(self, names: Iterable[BlockHash]) -> None:
        """Mark as used, the last name as the most recent; unknown ones are reserved. The lock is
        held.
        """
        for name in names:
            if name in self._records:
                self._records.move_to_end(name)
            else:
                self._records[name] = None
                self._places.add(name)

    def _give_up(self, name: BlockHash) -> None:
        """Evict records to make room. The lock is held."""
        del self._records[name]

    def seconds_to_fetch(self) -> float:
        """Time to fetch a block from here, measured with one of zeros."""
        apart = RecordShelf(self._form, self._form.num_bytes)
        content, parts = zeros(self._form)
        apart.write(content, parts)
        return seconds_to_read(self._form, content, apart.read)


def copy(record: Record, buffers: Sequence[Buffer], offset: int) -> int:
    """Fill buffers from a record in memory; the number of bytes."""
    view, start = memoryview(record), offset
    for buffer in buffers:
        own = memoryview(buffer).cast("B")
        piece = view[offset : offset + own.nbytes]
        own[: piece.nbytes] = piece
        offset += piece.nbytes
    return offset - start

"""Blocks fetched from a prefill engine, until they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from quire.blocks.store import RecordForm, RecordShelf
from quire.blocks.store.shelf import Record
from quire.core.memory import BlockHash, Content


class FetchedBlocks(RecordShelf):
    """Records to read. Blocks computed here are kept in the pool alone.

    num_unused: records that were evicted before they were read.
    """

    def __init__(self, form: RecordForm, size: int) -> None:
        super().__init__(form, size)
        self.num_unused = 0
        self._unread: set[BlockHash] = set()

    @contextmanager
    def expecting(self, names: Sequence[BlockHash]) -> Iterator[None]:
        """Note that these blocks of a text are ``put`` meanwhile: its end makes room first."""
        with self._lock:
            self._order(reversed(names))
        try:
            yield
        finally:
            with self._lock:
                for name in self._places.intersection(names):
                    self._places.remove(name)
                    del self._records[name]

    def used(self, names: Iterable[BlockHash]) -> None:
        """See ``BlockSource.used``. None of them is about to be written."""
        with self._lock:
            for name in names:
                if name in self._records:
                    self._records.move_to_end(name)

    def put(self, name: BlockHash, record: Record) -> None:
        self._unread.add(name)
        super().put(name, record)

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        super().read(content, kv_group, buffers)
        self._unread.discard(content.name)

    def clear(self) -> None:
        super().clear()
        self._unread.clear()

    def forget(self, name: BlockHash) -> None:
        super().forget(name)
        self._count_unread(name)

    def room(self) -> int:
        """Never: nothing is written here."""
        return 0

    def _give_up(self, name: BlockHash) -> None:
        super()._give_up(name)
        self._count_unread(name)

    def _count_unread(self, name: BlockHash) -> None:
        if name in self._unread:
            self._unread.remove(name)
            self.num_unused += 1

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        """Not called, as there is no room."""

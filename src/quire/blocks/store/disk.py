"""The store of an engine: a directory of records, written behind."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from quire.blocks.store.directory import FULL, RecordDirectory, StoreCounts, has_records
from quire.blocks.store.record import RecordForm, seconds_to_read, zeros
from quire.blocks.store.writer import WriteBehind
from quire.core.errors import ConfigError
from quire.core.memory import BlockHash, Content
from quire.core.scheduling import Capability

_STAGED_BYTES = 128 << 20  # of blocks that wait to be written
_FEWEST = 4  # of them
_PROBE_BYTES = 1 << 20
_LAST_SECONDS = 10.0  # seconds to write the rest when the process ends


class DiskStore(Capability):
    """See ``BlockSource``. Must be closed."""

    def __init__(self, path: Path, size: int, form: RecordForm) -> None:
        """ConfigError if ``size`` bytes do not hold a record."""
        if size < form.num_bytes * _FEWEST:
            raise ConfigError(
                f"kv_store_size: {size:,} bytes hold less than {_FEWEST} blocks of "
                f"{form.num_bytes:,} bytes"
            )
        self.path, self.size = path, size
        self._form = form
        self._directory = RecordDirectory(path, size, form)
        most = max(_FEWEST, _STAGED_BYTES // form.num_bytes)
        directory = self._directory
        most_used = max(_FEWEST, size // form.num_bytes)
        self._writer = WriteBehind(
            directory.count, directory.write, directory.note_use, most, directory.most, most_used
        )
        weakref.finalize(self, self._writer.close, _LAST_SECONDS)  # at the latest at exit

    @property
    def counts(self) -> StoreCounts:
        return self._directory.counts

    @property
    def num_bytes(self) -> int:
        """Bytes on disk, of all engines that share it."""
        return self._directory.num_bytes

    @property
    def quiet(self) -> bool:
        """Whether it has stopped writing, because the disk failed."""
        return self._writer.failure is not None

    def has(self, name: BlockHash) -> bool:
        return self._writer.find(name) is not None or self._directory.has(name)

    def used(self, names: Iterable[BlockHash]) -> None:
        """See ``BlockSource.used``. The writing thread notes it with the files."""
        self._writer.used(names)

    def clear(self) -> None:
        """See ``BlockSource.clear``. Blocks that wait to be written are still written."""

    def forget(self, name: BlockHash) -> None:
        """Drop a block that is useless, since another rank lacks its part."""
        self._writer.drop(name)
        self._directory.drop(name)

    def room(self) -> int:
        return self._writer.room()

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        waiting = self._writer.find(content.name)
        if waiting is None:
            self._directory.read(content, kv_group, buffers)
            return
        known, parts = waiting
        if known != content:
            raise OSError("the record is of another block")
        _fill(buffers, parts[kv_group])

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        self._writer.put(content, parts)

    def seconds_to_fetch(self) -> float:
        """Time to fetch a block from the system's page cache, measured with one of zeros."""
        directory = self._directory
        content, parts = zeros(self._form)
        try:
            directory.write([(content, parts)])
            seconds = seconds_to_read(self._form, content, directory.read)
            directory.remove(content.name)
        except OSError as error:
            raise ConfigError(f"kv_store: {self.path} cannot hold blocks: {error}") from error
        directory.counts = StoreCounts()
        return seconds

    def flush(self, seconds: float = _LAST_SECONDS) -> None:
        """Wait until all given blocks are written, for a bounded time."""
        self._writer.flush(seconds)

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Write what is left, for a bounded time."""
        self._writer.close(seconds)


def check_writable(path: Path) -> None:
    """ConfigError if records cannot be kept there; a missing directory is made.

    A disk full of records is fine: the least recently used will make room.
    """
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(prefix="quire-probe-", dir=path) as file:
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        if error.errno in FULL and has_records(path):
            return
        raise ConfigError(f"kv_store: {path} cannot hold blocks: {error.strerror}") from error


def _fill(buffers: Sequence[memoryview], part: bytes) -> None:
    view, start = memoryview(part), 0
    for buffer in buffers:
        buffer[:] = view[start : start + buffer.nbytes]
        start += buffer.nbytes

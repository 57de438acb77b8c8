"""Records in files that several engines write, read and evict without hurting each other."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

from quire.blocks.store.index import SEGMENT, RecordPlace, SegmentIndex
from quire.blocks.store.ledger import Ledger
from quire.blocks.store.record import RecordForm
from quire.blocks.store.segment import header, header_bytes, names_in, reader_of
from quire.core.memory import BlockHash, Content

_PAGE = 4096  # bytes; files take whole ones
_SPARE = 20  # this part of the bound is evicted at once, since a scan takes a while
_UNFINISHED = ".new"
_MODEL = re.compile("[0-9a-f]{32}")
_FILE = re.compile(rf"{SEGMENT.pattern}(?:{re.escape(_UNFINISHED)})?")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_DAMAGED = (None, errno.EIO)  # of an OSError; others may pass
FULL = (errno.ENOSPC, errno.EDQUOT)  # of an OSError: the disk is full
_MOST_RECORDS, _MOST_BYTES = 16, 8 << 20  # of a segment

_NONE: Mapping[BlockHash, int] = {}

Record = tuple[Content, Sequence[bytes]]
"""A block and its parts, one for each KV group."""


@dataclass
class StoreCounts:
    """Counters of a process's use of its store."""

    read_blocks: int = 0
    read_bytes: int = 0
    bad_blocks: int = 0  # that were gone, or damaged
    written_blocks: int = 0
    written_bytes: int = 0
    evicted_blocks: int = 0

    @classmethod
    def total(cls, counts: Iterable[StoreCounts]) -> StoreCounts:
        return cls(*map(sum, zip(*map(astuple, counts), strict=True)))


class _Entry(NamedTuple):
    used: int  # of the last write or read, in nanoseconds
    size: int
    path: str


class RecordDirectory:
    """Files of some records each, in a directory for each fingerprint.

    Making a file costs more than filling it, so records that come together share one. A file is
    renamed to its name when it is complete, and never changed; so it exists or does not, whenever a
    process ends. Checksums find what a power loss has damaged. A reader keeps a file that is
    evicted until it closes it. All files together, of all models, take at most ``size`` bytes. The
    least recently used are evicted, by their times of modification, which are set when they are
    read and when their blocks are used in a pool. A text is evicted from its end. Other files in
    the directory are left alone.
    """

    def __init__(self, path: Path, size: int, form: RecordForm) -> None:
        self._path = path
        self._own = path / form.fingerprint.hex()
        self._size = size
        self._form = form
        self._ledger = Ledger(path / "ledger")
        self._index = SegmentIndex(self._own)
        most = min(_MOST_BYTES, size // _SPARE) // form.num_bytes
        self.most = max(1, min(_MOST_RECORDS, most))  # most records in one call of ``write``
        self.counts = StoreCounts()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, of all processes; sometimes an older count."""
        return self._ledger.total

    def has(self, name: BlockHash) -> bool:
        return self._find(name) is not None

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        """See ``BlockSource.read``. A damaged file is removed."""
        place = self._index.last_known(content.name) or self._find(content.name)
        try:
            if place is None:
                raise FileNotFoundError(errno.ENOENT, "the record is gone")
            self._read(place, content, kv_group, buffers)
        except OSError as error:
            self.counts.bad_blocks += 1
            if error.errno in _DAMAGED or isinstance(error, FileNotFoundError):
                self._lose(place)
            raise
        self.counts.read_blocks += 1
        self.counts.read_bytes += self._form.part_bytes[kv_group]

    def write(self, records: Sequence[Record], used: Mapping[BlockHash, int] = _NONE) -> None:
        """Keep up to ``most`` records, in place of the least recently used.

        used: when blocks were used, in nanoseconds; the default is now. The lock is held meanwhile:
            a process that waits for it could not write either. OSError if the disk fails. A disk
            that is full before the bound is reached acts as a smaller bound.
        """
        with self._ledger.locked():
            fresh = [record for record in records if not self.has(record[0].name)]
            if not fresh:  # another engine's, since
                return
            taken = self._taken(len(fresh))
            total = self._ledger.total
            if total + taken > self._size:
                total = self._evict(self._size)
            when = max(used.get(content.name) or time.time_ns() for content, _ in fresh)
            try:
                self._add(fresh, total, taken, when)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._add(fresh, self._evict(total), taken, when)
        self.counts.written_blocks += len(fresh)
        self.counts.written_bytes += len(fresh) * self._form.num_bytes

    def note_use(self, used: Mapping[BlockHash, int]) -> None:
        """Set files' times of use to those of their blocks, in nanoseconds."""
        files: dict[str, int] = {}
        for name, when in used.items():
            if (place := self._index.last_known(name)) is not None:
                files[place.file] = max(when, files.get(place.file, 0))
        for file, when in files.items():
            with suppress(OSError):  # it is gone, or belongs to another user
                os.utime(f"{self._own}/{file}", ns=(when, when))

    def drop(self, name: BlockHash) -> None:
        """Remove a record's file without the lock; the next count corrects the bytes."""
        self._lose(self._index.last_known(name) or self._find(name))

    def remove(self, name: BlockHash) -> None:
        """Remove the file of a record."""
        with self._ledger.locked(), suppress(FileNotFoundError):
            if (place := self._find(name)) is not None:
                Path(self._own, place.file).unlink()
                self._ledger.total -= self._taken(place.records)
                self._ledger.state += 1

    def count(self) -> None:
        """Correct the ledger, and evict down to the bound, which may have changed."""
        with self._ledger.locked():
            total = sum(entry.size for entry in self._entries())
            self._ledger.total = total if total <= self._size else self._evict(self._size)
            self._ledger.state += 1

    def _lose(self, place: RecordPlace | None) -> None:
        if place is not None:
            self._index.forget(place.file)
            with suppress(OSError):
                Path(self._own, place.file).unlink()

    def _find(self, name: BlockHash) -> RecordPlace | None:
        return self._index.find(name, self._ledger.state)

    def _read(
        self, place: RecordPlace, content: Content, kv_group: int, buffers: Sequence[memoryview]
    ) -> None:
        file = os.open(f"{self._own}/{place.file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = header_bytes(place.records) + place.number * self._form.num_bytes
            self._form.read(content, kv_group, buffers, reader_of(file, start))
            now = time.time_ns()  # from a finer clock than the file system's
            with suppress(OSError):  # it may belong to another user
                os.utime(file, ns=(now, now))
        finally:
            os.close(file)

    def _add(self, records: Sequence[Record], total: int, taken: int, used: int) -> None:
        """Write records to a new file, when all files take ``total`` bytes."""
        self._ledger.total = total + taken
        try:
            self._create(records, used)
        except OSError:
            self._ledger.total = total
            raise

    def _create(self, records: Sequence[Record], used: int) -> None:
        names = [content.name for content, _ in records]
        segment = f"{os.urandom(16).hex()}.blocks"
        path = f"{self._own}/{segment}"
        unfinished = path + _UNFINISHED
        try:
            file = os.open(unfinished, _NEW, 0o600)
        except FileNotFoundError:  # its directory is missing
            self._own.mkdir(0o700, parents=True, exist_ok=True)
            file = os.open(unfinished, _NEW, 0o600)
        try:
            _write_all(file, [header(names)])
            for content, parts in records:  # writing megabytes at once takes several times as long
                _write_all(file, [self._form.head(content, parts), *parts])
            os.utime(file, ns=(used, used))
            os.rename(unfinished, path)  # noqa: PTH104  # a Path costs more than that
        except OSError:
            with suppress(OSError):
                Path(unfinished).unlink()
            raise
        finally:
            os.close(file)
        before = self._ledger.state
        self._ledger.state = before + 1
        self._index.add(segment, names, before, before + 1)

    def _evict(self, bound: int) -> int:
        """Remove least recently used files until less than ``bound`` is left; the bytes left."""
        entries = sorted(self._entries())
        total = sum(entry.size for entry in entries)
        most = bound - max(self._taken(self.most), bound // _SPARE)
        for entry in entries:
            if total <= most:
                break
            with suppress(OSError):
                self.counts.evicted_blocks += len(names_in(entry.path))
            with suppress(FileNotFoundError):
                Path(entry.path).unlink()
            total -= entry.size
        self._ledger.state += 1
        return total

    def _entries(self) -> Iterator[_Entry]:
        """All files, of all models. Unfinished ones are removed, since the lock is held.

        Each system call lets other threads run.
        """
        for model in _listed(self._path, _MODEL):
            for file in _listed(model.path, _FILE):
                with suppress(FileNotFoundError):
                    if file.name.endswith(_UNFINISHED):
                        Path(file.path).unlink()
                        continue
                    status = file.stat(follow_symlinks=False)
                    yield _Entry(status.st_mtime_ns, _pages(status.st_size), file.path)

    def _taken(self, count: int) -> int:
        """Bytes on disk of a file with this many records."""
        return _pages(header_bytes(count) + count * self._form.num_bytes)


def has_records(path: Path) -> bool:
    """Whether this directory has records of any engine."""
    models = _listed(path, _MODEL)
    return any(True for model in models for _ in _listed(model.path, SEGMENT))


def _write_all(file: int, pieces: Sequence[bytes]) -> None:
    if os.writev(file, pieces) != sum(map(len, pieces)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _listed(path: str | Path, names: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from (entry for entry in entries if names.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return

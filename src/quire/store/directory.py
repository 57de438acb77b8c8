"""Records as files, which several engines write, read and give up without hurting each other."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quire.memory import BlockHash, Content
from quire.store.ledger import Ledger
from quire.store.record import Buffer, Reader, RecordForm

_PAGE = 4096  # files take whole ones
_SPARE = 20  # of so many parts of the bound, one is made room for at once: looking costs a while
_UNFINISHED = ".new"
_MODEL, _PART = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{2}")
_FILE = re.compile(rf"[0-9a-f]{{32}}\.block(?:{re.escape(_UNFINISHED)})?")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_DAMAGED = (None, errno.EIO)  # of an OSError; others may pass


@dataclass
class StoreCounts:
    """What a process has done with its store, in counters."""

    read_blocks: int = 0
    read_bytes: int = 0
    bad_blocks: int = 0  # that were not there any more, or not what they should be
    written_blocks: int = 0
    written_bytes: int = 0
    evicted_blocks: int = 0


class _Entry(NamedTuple):
    used: int  # when it was written or read last, in nanoseconds
    size: int
    path: str


class RecordDirectory:
    """A file for each record, below a directory for each fingerprint.

    A file gets its name when it is whole, by renaming, and is never changed; so it is there or it
    is not, whenever a process ends. What a machine that lost power has left of it, its sums tell.
    Whoever reads a file that is being given up keeps it until it is closed. All files together,
    of whatever model, take at most ``size`` bytes; those that have not been used for longest go
    first, by their times of modification, which are set when they are read. The index is the file
    system's own: there is none to be built, lost or out of date. What else lies in the directory
    is left alone.
    """

    def __init__(self, path: Path, size: int, form: RecordForm) -> None:
        self._path = path
        self._own = path / form.fingerprint.hex()
        self._size = size
        self._form = form
        self._record_size = _taken(form.num_bytes)
        self._ledger = Ledger(path / "ledger")
        self.counts = StoreCounts()

    @property
    def num_bytes(self) -> int:
        """Of all records, everybody's; at times of some more."""
        return self._ledger.total

    def has(self, name: BlockHash) -> bool:
        return os.access(self._file(name), os.F_OK)

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        """See ``BlockSource.read``. A file that is not what its name says is removed."""
        path = self._file(content.name)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._form.read(content, kv_group, buffers, _reader(file))
                with suppress(OSError):  # it may be another user's
                    _note_use(file)
            finally:
                os.close(file)
        except OSError as error:
            self.counts.bad_blocks += 1
            if error.errno in _DAMAGED:
                self.drop(content.name)
            raise
        self.counts.read_blocks += 1
        self.counts.read_bytes += self._form.part_bytes[kv_group]

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        """Keep a record, in place of what has not been used for longest. OSError if the disk fails.

        The lock is held meanwhile: who is waiting for it has nothing better to do.
        """
        path = self._file(content.name)
        with self._ledger.locked():
            if os.access(path, os.F_OK):  # another engine's, since
                return
            total = self._ledger.total + self._record_size
            if total > self._size:
                total = self._evict() + self._record_size
            self._ledger.total = total
            try:
                self._create(path, [self._form.head(content, parts), *parts])
            except OSError:
                self._ledger.total = total - self._record_size
                raise
        self.counts.written_blocks += 1
        self.counts.written_bytes += self._form.num_bytes

    def drop(self, name: BlockHash) -> None:
        """Without waiting for the lock; its bytes are given back with the next count."""
        with suppress(OSError):
            Path(self._file(name)).unlink()

    def remove(self, name: BlockHash) -> None:
        with self._ledger.locked(), suppress(FileNotFoundError):
            Path(self._file(name)).unlink()
            self._ledger.total -= self._record_size

    def count(self) -> None:
        """Put the ledger right, and keep to the bound: it may have been another."""
        with self._ledger.locked():
            total = sum(entry.size for entry in self._entries())
            self._ledger.total = total if total <= self._size else self._evict()

    def _create(self, path: str, pieces: Sequence[bytes]) -> None:
        unfinished = path + _UNFINISHED
        try:
            file = os.open(unfinished, _NEW, 0o600)
        except FileNotFoundError:  # its directory is missing
            Path(path).parent.mkdir(0o700, parents=True, exist_ok=True)
            file = os.open(unfinished, _NEW, 0o600)
        try:
            if os.writev(file, pieces) != self._form.num_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _note_use(file)
            os.rename(unfinished, path)  # noqa: PTH104  # a Path costs more than that
        except OSError:
            with suppress(OSError):
                Path(unfinished).unlink()
            raise
        finally:
            os.close(file)

    def _evict(self) -> int:
        """Remove what has not been used for longest; how many bytes are left."""
        entries = sorted(self._entries())
        total = sum(entry.size for entry in entries)
        most = self._size - max(self._record_size, self._size // _SPARE)
        for entry in entries:
            if total <= most:
                break
            with suppress(FileNotFoundError):
                Path(entry.path).unlink()
                self.counts.evicted_blocks += 1
            total -= entry.size
        return total

    def _entries(self) -> Iterator[_Entry]:
        """All records, of whatever model. What a process has not finished goes: we have the lock.

        Each call to the system lets other threads run.
        """
        for model in _listed(self._path, _MODEL):
            for part in _listed(model.path, _PART):
                for file in _listed(part.path, _FILE):
                    with suppress(FileNotFoundError):
                        if file.name.endswith(_UNFINISHED):
                            Path(file.path).unlink()
                            continue
                        status = file.stat(follow_symlinks=False)
                        yield _Entry(status.st_mtime_ns, _taken(status.st_size), file.path)

    def _file(self, name: BlockHash) -> str:
        text = name.hex()
        return f"{self._own}/{text[:2]}/{text}.block"


def _note_use(file: int) -> None:
    """By a finer clock than the file system's own."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _taken(size: int) -> int:
    """Bytes on disk."""
    return -(-size // _PAGE) * _PAGE


def _listed(path: str | Path, names: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from (entry for entry in entries if names.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return


def _reader(file: int) -> Reader:
    def read(buffers: Sequence[Buffer], offset: int) -> int:
        return os.preadv(file, buffers, offset)

    return read

"""What processes that share a directory agree on: its bytes, and whether it has changed."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BYTES = 8


class Ledger:
    """Two numbers in a file, which is also the lock of whoever changes the directory.

    The system lets go of the lock when a process ends, however it ends. What a record takes is
    entered before the record is there; so whoever is killed in between leaves a number that is too
    large, and never one that is too small. It is put right whenever the records are counted.

    total: bytes of all files. state: goes up with each change, so that others look again; that of
    somebody who is killed before he has told is seen with the next one.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._threads = threading.Lock()
        self._finalizer = weakref.finalize(self, os.close, self._file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the directory meanwhile, in this process or another."""
        with self._threads:  # who share the file are one to the system
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def total(self) -> int:
        return self._number(0)

    @total.setter
    def total(self, value: int) -> None:
        self._enter(0, value)

    @property
    def state(self) -> int:
        return self._number(_BYTES)

    @state.setter
    def state(self, value: int) -> None:
        self._enter(_BYTES, value)

    def _number(self, at: int) -> int:
        return int.from_bytes(os.pread(self._file, _BYTES, at), "little")

    def _enter(self, at: int, value: int) -> None:
        os.pwrite(self._file, value.to_bytes(_BYTES, "little"), at)

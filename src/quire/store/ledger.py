"""How many bytes a directory's records take, as all processes that share it agree."""

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
    """One number in a file, which is also the lock of whoever changes the directory.

    The system lets go of the lock when a process ends, however it ends. What a record takes is
    entered before the record is there; so whoever is killed in between leaves a number that is too
    large, and never one that is too small. It is put right whenever the records are counted.
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
        return int.from_bytes(os.pread(self._file, _BYTES, 0), "little")

    @total.setter
    def total(self, value: int) -> None:
        os.pwrite(self._file, value.to_bytes(_BYTES, "little"), 0)

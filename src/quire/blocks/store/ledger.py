"""The facts that processes sharing a directory agree on: its bytes, and whether it has changed."""

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
    """Two numbers in a file, which is also the lock for changes of the directory.

    The system releases the lock when a process ends, for whatever reason. A record's bytes are
    entered before it is written; so a killed process leaves a number that is too large, never one
    that is too small. Each count of the records corrects it.

    total: bytes of all files. state: grows with each change, so that other processes read again.
        The change of a process that was killed before it counted is seen with the next one.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._threads = threading.Lock()
        self._finalizer = weakref.finalize(self, os.close, self._file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing the directory."""
        with self._threads:  # to the system, all threads that share the file are one
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

"""Bytes of a file as it was when it was opened: in memory of their own, or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np


class FileBytes:
    """The bytes of one file, which is opened anew for each reading: any thread may read.

    A header is valid for the file as it was, so a file that is replaced, cut or written to while it
    is loaded is not read any further.
    """

    def __init__(self, path: Path) -> None:
        """OSError: it cannot be looked at."""
        self.path = path
        self._state = _state(path.stat())

    def read(self, begin: int, count: int) -> np.ndarray:
        """[count] uint8. OSError: the file is another one by now."""
        with self.path.open("rb") as file:
            data = np.fromfile(file, np.uint8, count, offset=begin)
            self._check(file)
        return data

    def mapped(self, begin: int, count: int) -> np.ndarray:
        """The same as a mapping, so that only what is copied of it at once is read."""
        with self.path.open("rb") as file:
            self._check(file)
            return np.memmap(file, np.uint8, "c", begin, (count,))

    def _check(self, file: BinaryIO) -> None:
        if _state(os.fstat(file.fileno())) != self._state:
            raise OSError("the file has changed while it was loaded; load it again")


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns

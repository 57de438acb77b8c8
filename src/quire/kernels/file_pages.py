"""Memory backed by a file: the system drops unused pages, and reads them again."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from quire.core.errors import ModelError

_LARGEST = 1 << 30  # bytes of a file that holds more than one tensor
_PAGE = mmap.PAGESIZE


class FilePages:
    """Pieces of memory in nameless files of a directory, which are gone when the process ends.

    Their disk space is taken when they are made, so it cannot be missing later.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = 0

    def piece(self, nbytes: int) -> Tensor:
        """At least this many zero bytes; pieces grow, since each takes an open file.

        ModelError: the directory cannot hold them.
        """
        size = -(-max(nbytes, self._next) // _PAGE) * _PAGE
        self._next = min(2 * size, _LARGEST)
        try:
            with tempfile.TemporaryFile(prefix="quire-experts-", dir=self._directory) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise ModelError(
                f"experts_path: {self._directory} cannot hold {size:,} more bytes: {error.strerror}"
            ) from error
        return torch.frombuffer(mapped, dtype=torch.uint8)

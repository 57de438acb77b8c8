"""Memory in pages of a kind: large ones, or a file's, which the system drops and reads again."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quire.core.errors import ModelError

_LARGEST = 1 << 30  # bytes of a file that holds more than one tensor

_CHUNK = 64 << 20  # bytes
_PAGE = 2 << 20
_LINE = 64  # of the processor's cache
_TOUCHED = 512  # bytes, for one that is touched; at every page torch would leave it to one thread


class HugePages:
    """Takes tensors from large pieces of memory, one after the other.

    Of larger pages there are fewer for the system to map and for the processor to look up.

    NumPy requests huge pages for arrays of 4 MiB and more, in memory that the system maps on first
    use: what is never written costs nothing. A piece lives as long as any tensor in it.
    """

    def __init__(self, piece: Callable[[int], Tensor] | None = None) -> None:
        """piece: makes a piece of at least this many zero bytes, in other memory."""
        self._piece = piece or self.of
        self._left = torch.empty(0, dtype=torch.uint8)

    @staticmethod
    def of(nbytes: int) -> Tensor:
        """Zero bytes, at least this many, in a piece of their own."""
        memory = torch.from_numpy(np.zeros(nbytes + _PAGE, dtype=np.uint8))
        return memory[-memory.data_ptr() % _PAGE :]

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Tensor:
        """A tensor of zeros, contiguous and aligned to cache lines."""
        nbytes = math.prod(shape) * dtype.itemsize
        size = -(-nbytes // _LINE) * _LINE
        if size > len(self._left):
            self._left = self._piece(max(size, _CHUNK))
        place, self._left = self._left[:nbytes], self._left[size:]
        return place.view(dtype).view(shape)

    def held(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor in this memory."""
        return self.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def touch(tensor: Tensor) -> None:
    """Have the system map a contiguous tensor's memory now, without changing its content.

    All threads that compute do it together, so the memory is on the NUMA nodes that they run on.
    """
    held = tensor.view(-1).view(torch.uint8)
    held[::_TOUCHED].bitwise_or_(0)
    held[-1:].bitwise_or_(0)


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
        size = -(-max(nbytes, self._next) // mmap.PAGESIZE) * mmap.PAGESIZE
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

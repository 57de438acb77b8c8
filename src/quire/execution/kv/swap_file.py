"""Host blocks in a file: where a CPU engine swaps to, since RAM to RAM would gain nothing.

A disk may lie: a write that never took place, a block of another place or of an earlier time, a
bit that has turned. So each block's checksum is kept in memory from when it is written, and what is
read must have it.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import xxhash

from quire.core.errors import ConfigError
from quire.kernels.layer_memory import LayerMemory


class BlockBytes:
    """The memory of a KV group's blocks, in which nothing is looked for twice."""

    def __init__(self, layers: Sequence[LayerMemory]) -> None:
        tensors = [part.view(torch.uint8) for layer in layers for part in layer.parts]
        self._sizes = [part[0].numel() for part in tensors]
        self._steps = [part.stride(0) for part in tensors]  # bytes from one block's number on
        self._parts = [
            part.as_strided(((len(part) - 1) * step + size,), (1,)).numpy().data
            for part, step, size in zip(tensors, self._steps, self._sizes, strict=True)
        ]
        self.block_bytes = sum(self._sizes)

    def of(self, block: int) -> list[memoryview]:
        """The memory of one block, to be read or filled."""
        return [
            part[block * step : block * step + size]
            for part, step, size in zip(self._parts, self._steps, self._sizes, strict=True)
        ]

    def blank(self, block: int) -> None:
        """Fill a block with zeros, since its content has not come.

        Sequences that relied on it are still computed in this step, and must not meet NaN.
        """
        for tile in self.of(block):
            tile[:] = bytes(tile.nbytes)


Transfer = Callable[[int, list[memoryview], int], int]
"""os.preadv or os.pwritev: (file, buffers, offset) -> bytes moved."""

_MOST_BUFFERS = 512  # of one vectored read or write; systems allow at least 1024


class SwapFile:
    """Blocks of a KV group's layers, one after another in an unnamed file of fixed size.

    All of its space is taken when it is made, so it cannot be missing later; and the file has no
    name, so nobody can remove or cut it, and it is gone with the process.
    """

    def __init__(self, directory: str | None, num_blocks: int, blocks: BlockBytes) -> None:
        """ConfigError where the directory cannot hold the file."""
        self._blocks = blocks
        self.num_blocks = num_blocks
        self.block_bytes = blocks.block_bytes
        size = num_blocks * self.block_bytes
        try:
            place = Path(directory or tempfile.gettempdir())
        except OSError as error:
            raise ConfigError(f"swap_path must be given: {error.strerror}") from error
        try:
            self._file, name = tempfile.mkstemp(prefix="quire-swap-", dir=place)
            weakref.finalize(self, os.close, self._file)
            Path(name).unlink()
            if size:  # other ranks hold nothing of a KV group that is a draft model's
                os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            raise ConfigError(
                f"swap_path: {place} cannot hold swap space of {size:,} bytes: {error.strerror}"
            ) from error
        self._checksums = [0] * num_blocks  # of what was to be written last

    def write(self, block: int, device_block: int) -> None:
        """Copy a device block out. OSError if the disk fails."""
        out = self._blocks.of(device_block)
        self._checksums[block] = _checksum(out)
        self._transfer(os.pwritev, block, out)

    def read(self, block: int, device_block: int) -> None:
        """Copy a host block back. OSError if the disk fails, or gives what was not written.

        The device block holds zeros then.
        """
        into = self._blocks.of(device_block)
        try:
            self._transfer(os.preadv, block, into)
            if _checksum(into) != self._checksums[block]:
                raise OSError(f"host block {block} is not what was written to the swap file")
        except OSError:
            self._blocks.blank(device_block)
            raise

    def _transfer(self, call: Transfer, block: int, buffers: list[memoryview]) -> None:
        offset = block * self.block_bytes
        for start in range(0, len(buffers), _MOST_BUFFERS):
            part = buffers[start : start + _MOST_BUFFERS]
            wanted = sum(buffer.nbytes for buffer in part)
            done = call(self._file, part, offset)
            if done != wanted:
                raise OSError(f"the swap file moved {done} of {wanted} bytes")
            offset += wanted


def _checksum(buffers: list[memoryview]) -> int:
    """XXH3, which costs a fraction of copying what it sums up."""
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest()

"""A block as it is stored and sent: one record, which says what it holds and proves it.

Version 1, integers little-endian::

    8 bytes      b"QUIREKV1"
    16 bytes     fingerprint: of all that decides a block's bits beside its text
    16 bytes     the block's name: of its salt, its adapter, and all tokens up to its end
    uint32       tokens of the block, and as many uint32 token ids
    uint32       parts, one for each KV group; of each its size, a uint64, and its 16-byte XXH3
    16 bytes     XXH3 of all before
    the parts    one after the other: keys and values (and their scales) of layer after layer

A reader knows what the head must be, but for the checksums, and accepts no other. One wrong bit, a
missing end, or a record of something else is an OSError.
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash

from quire.core.memory import Content

_REPEATS = 5

MAGIC = b"QUIREKV1"
DIGEST_BYTES = 16
_MOST_BUFFERS = 512  # of one vectored read; systems allow at least 1024

Buffer = bytearray | memoryview
Read = Callable[[Content, int, Sequence[memoryview]], None]
Reader = Callable[[Sequence[Buffer], int], int]
"""(buffers, offset) -> bytes of a record that have been put there."""


@dataclass(frozen=True)
class RecordForm:
    """The form of an engine's records.

    part_bytes: bytes of a block in each KV group.
    """

    fingerprint: bytes
    block_size: int
    part_bytes: tuple[int, ...]

    @property
    def head_bytes(self) -> int:
        own = len(MAGIC) + 3 * DIGEST_BYTES + 4 * (2 + self.block_size)
        return own + (8 + DIGEST_BYTES) * len(self.part_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of a record."""
        return self.head_bytes + sum(self.part_bytes)

    def head(self, content: Content, parts: Sequence[bytes]) -> bytes:
        """The bytes before the parts."""
        return self._head(content, [digest([part]) for part in parts])

    def read(
        self, content: Content, kv_group: int, buffers: Sequence[memoryview], reader: Reader
    ) -> None:
        """Fill ``buffers`` with one part of a record, and check its sum."""
        head = bytearray(self.head_bytes)
        if kv_group == 0:
            _read(reader, [head, *buffers], 0)
        else:
            _read(reader, [head], 0)
            _read(reader, buffers, self.head_bytes + sum(self.part_bytes[:kv_group]))
        sums = self._sums(head)
        if bytes(head) != self._head(content, sums):
            raise OSError("the record is of another block, or damaged")
        if digest(buffers) != sums[kv_group]:
            raise OSError("the record's block is damaged")

    def _head(self, content: Content, sums: Sequence[bytes]) -> bytes:
        tokens = array("I", content.token_ids)
        head = MAGIC + self.fingerprint + content.name
        head += struct.pack("<I", len(tokens)) + tokens.tobytes()
        head += struct.pack("<I", len(sums))
        for size, own in zip(self.part_bytes, sums, strict=True):
            head += struct.pack("<Q", size) + own
        return head + digest([head])

    def _sums(self, head: Buffer) -> list[bytes]:
        """The parts' checksums in a head."""
        end, each = self.head_bytes - DIGEST_BYTES, 8 + DIGEST_BYTES
        start = end - each * len(self.part_bytes)
        return [bytes(head[at + 8 : at + each]) for at in range(start, end, each)]


def digest(buffers: Sequence[Buffer | bytes]) -> bytes:
    """XXH3, which takes a fraction of the time of a copy."""
    total = xxhash.xxh3_128()
    for buffer in buffers:
        total.update(buffer)
    return total.digest()


def _read(reader: Reader, buffers: Sequence[Buffer], offset: int) -> None:
    for start in range(0, len(buffers), _MOST_BUFFERS):
        part = buffers[start : start + _MOST_BUFFERS]
        wanted = sum(memoryview(buffer).nbytes for buffer in part)
        if reader(part, offset) != wanted:
            raise OSError("the record ends too early")
        offset += wanted


def zeros(form: RecordForm) -> tuple[Content, list[bytes]]:
    """The record of a block that no text has, and its parts."""
    content = Content(os.urandom(DIGEST_BYTES), (0,) * form.block_size)
    return content, [bytes(size) for size in form.part_bytes]


def seconds_to_read(form: RecordForm, content: Content, read: Read) -> float:
    """The shortest time of several to read all parts of a block."""
    into, times = [memoryview(bytearray(size)) for size in form.part_bytes], []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for kv_group, buffer in enumerate(into):
            read(content, kv_group, [buffer])
        times.append(time.perf_counter() - start)
    return min(times)

"""A file of records that were written together, with their names at its beginning.

Integers little-endian::

    8 bytes      b"QUIRESG1"
    uint32       records, at most 4096
    16 bytes     of each the block's name
    16 bytes     XXH3 of all before
    the records  one after the other, see ``record``; all of one size
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from quire.blocks.store.record import DIGEST_BYTES, Buffer, Reader, digest
from quire.core.memory import BlockHash

MAGIC = b"QUIRESG1"
_COUNT = struct.Struct("<I")
_NAMES = len(MAGIC) + _COUNT.size  # where names begin
_MOST = 4096


def header(names: Sequence[BlockHash]) -> bytes:
    """The bytes before the records."""
    head = MAGIC + _COUNT.pack(len(names)) + b"".join(names)
    return head + digest([head])


def header_bytes(count: int) -> int:
    """Bytes of a header for this many records."""
    return _NAMES + (count + 1) * DIGEST_BYTES


def names_in(path: str) -> list[BlockHash]:
    """Names of a segment's records, in their order. OSError: it is gone, or not a segment."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start = os.pread(file, _NAMES, 0)
        if len(start) < _NAMES or start[: len(MAGIC)] != MAGIC:
            raise OSError("this is no segment")
        (count,) = _COUNT.unpack_from(start, len(MAGIC))
        head = os.pread(file, header_bytes(min(count, _MOST)), 0)
    finally:
        os.close(file)
    if digest([head[:-DIGEST_BYTES]]) != head[-DIGEST_BYTES:]:
        raise OSError("the segment's beginning is damaged")
    ends = range(_NAMES + DIGEST_BYTES, len(head), DIGEST_BYTES)
    return [BlockHash(head[end - DIGEST_BYTES : end]) for end in ends]


def reader_of(file: int, start: int) -> Reader:
    """A reader of the record at an offset."""

    def read(buffers: Sequence[Buffer], offset: int) -> int:
        return os.preadv(file, buffers, start + offset)

    return read

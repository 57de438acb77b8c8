"""Blocks as bytes: a snapshot of them all, or those that have changed since the frame before."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from enum import IntEnum

from quire.engine.dashboard.block_map import BlockMap

FORMAT = 1
_HEADER = struct.Struct("<2sBBIIId")


class FrameKind(IntEnum):
    SNAPSHOT = 0
    DELTA = 1


def snapshot(blocks: BlockMap, number: int, step: int, now: float) -> bytes:
    """Header, then a column after the other: owners, shared, found, states.

    Everything is little-endian. The header's 24 bytes: "QB", the format (1 byte), the kind (1),
    the frame's number (4), the step (4), the number of blocks that follow (4), and the time in
    seconds since 1970 (8, a float).
    """
    columns = [_bytes(column) for column in (blocks.owners, blocks.shared, blocks.found)]
    header = _header(FrameKind.SNAPSHOT, number, step, len(blocks), now)
    return b"".join([header, *columns, blocks.states])


def delta(blocks: BlockMap, changed: Iterable[int], number: int, step: int, now: float) -> bytes:
    """The same of some blocks, whose numbers are the first column."""
    which = sorted(changed)
    columns = [
        array("I", which),
        array("I", [blocks.owners[block] for block in which]),
        array("H", [blocks.shared[block] for block in which]),
        array("H", [blocks.found[block] for block in which]),
    ]
    states = bytes([blocks.states[block] for block in which])
    header = _header(FrameKind.DELTA, number, step, len(which), now)
    return b"".join([header, *map(_bytes, columns), states])


def _header(kind: FrameKind, number: int, step: int, count: int, now: float) -> bytes:
    most = 2**32 - 1
    return _HEADER.pack(b"QB", FORMAT, kind, number & most, step & most, count, now)


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()

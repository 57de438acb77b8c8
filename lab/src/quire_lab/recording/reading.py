"""Recordings that others have made, read without trust."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from quire.core.errors import ConfigError
from quire.models.files import check_plain
from quire_lab.recording.form import FORMAT, MOST_BYTES, MOST_LINE, MOST_PACKED, MOST_SECONDS

_CHUNK = 1 << 16
_FRAME = struct.Struct("<2sBBIIId")
_SNAPSHOT, _DELTA = 0, 1
_BYTES = {_SNAPSHOT: 9, _DELTA: 13}  # for a block
_KINDS: dict[str, type] = {
    "state": dict, "blocks": str, "decisions": list, "story": dict, "end": str,
}  # fmt: skip


class RecordedLine(NamedTuple):
    """A line after the first. ``value``: of blocks, the frame."""

    seconds: float
    kind: str
    value: Any


class RecordingSummary(NamedTuple):
    """cut: it has no end, so there may have been more."""

    header: dict[str, Any]
    seconds: float
    counts: Counter[str]
    num_blocks: int
    cut: bool


def check(path: Path) -> RecordingSummary:
    """Read it all. ConfigError, with the number of the line, if it is no whole recording."""
    header, rest = lines(path)
    counts: Counter[str] = Counter()
    num_blocks, seconds = 0, 0.0
    for line in rest:
        counts[line.kind] += 1
        seconds = line.seconds
        if line.kind == "blocks" and line.value[3] == _SNAPSHOT:
            num_blocks = _FRAME.unpack_from(line.value)[5]
    return RecordingSummary(header, seconds, counts, num_blocks, not counts.pop("end", 0))


def lines(path: Path) -> tuple[dict[str, Any], Iterator[RecordedLine]]:
    """The header, and the lines after it, of which the last one may be missing.

    Raises:
        ConfigError: there is no such file, or it is none or a damaged recording.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    check_plain(path, MOST_PACKED)
    numbered = enumerate(_texts(path), 1)
    number, text = next(numbered, (1, b""))
    header = _object(path, number, text)
    if header.get("quire") != "recording" or header.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a recording of format {FORMAT}")
    return header, _lines(path, numbered)


def _lines(path: Path, numbered: Iterator[tuple[int, bytes]]) -> Iterator[RecordedLine]:
    seconds, num_blocks = 0.0, -1
    for number, text in numbered:
        value = _object(path, number, text)
        at = value.pop("t", None)
        timed = isinstance(at, (int, float)) and seconds <= at <= MOST_SECONDS
        if not timed or isinstance(at, bool):
            raise _wrong(path, number, "its time must be one, and not before that of another")
        seconds = at
        kind, content = next(iter(value.items()), ("", None))
        if len(value) != 1 or not isinstance(content, _KINDS.get(kind, type(None))):
            raise _wrong(path, number, f"it must hold one of {', '.join(_KINDS)}")
        if isinstance(content, str) and kind == "blocks":
            content, num_blocks = _frame(path, number, content, num_blocks)
        yield RecordedLine(seconds, kind, content)
        if kind == "end":
            return


def _texts(path: Path) -> Iterator[bytes]:
    """Lines, as far as they are whole."""
    total, begun = 0, bytearray()
    with path.open("rb") as file:
        for piece in _unpacked(path, file):
            total += len(piece)
            if total > MOST_BYTES or len(begun) > MOST_LINE:
                limit = f"{MOST_BYTES:,} bytes, or a line with more than {MOST_LINE:,}"
                raise ConfigError(f"{path} has more than {limit}")
            whole, newline, rest = piece.rpartition(b"\n")
            if newline:
                yield from (bytes(begun) + whole).split(b"\n")
                begun.clear()
            begun += rest


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Never more than a piece of what is unpacked is in memory."""
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        while not unpack.eof and (packed := file.read(_CHUNK)):
            while packed:
                yield unpack.decompress(packed, _CHUNK)
                packed = unpack.unconsumed_tail
    except zlib.error as error:
        raise ConfigError(f"{path} is not a gzip file, or is damaged: {error}") from None


def _object(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _wrong(path, number, "it is not JSON") from None
    if not isinstance(value, dict):
        raise _wrong(path, number, "it is not a JSON object")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _frame(path: Path, number: int, text: str, num_blocks: int) -> tuple[bytes, int]:
    """The frame, and how many blocks there are since the latest snapshot."""
    try:
        frame = base64.b64decode(text, validate=True)
        magic, form, kind, _, _, count, time = _FRAME.unpack_from(frame)
    except (ValueError, struct.error):
        raise _wrong(path, number, "it holds no frame of blocks") from None
    known = magic == b"QB" and form == 1 and kind in _BYTES and math.isfinite(time)
    if not known or len(frame) != _FRAME.size + count * _BYTES[kind]:
        raise _wrong(path, number, "it holds no frame of blocks")
    if kind == _SNAPSHOT:
        return frame, count
    blocks = struct.unpack_from(f"<{count}I", frame, _FRAME.size)
    if max(blocks, default=-1) >= num_blocks:
        raise _wrong(path, number, "its blocks go with no snapshot before it")
    return frame, num_blocks


def _wrong(path: Path, number: int, what: str) -> ConfigError:
    return ConfigError(f"{path}, line {number}: {what}")

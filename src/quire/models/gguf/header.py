"""A GGUF file's metadata and the offsets of its tensors, checked before they are used.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple, TypeGuard

from quire.core.errors import ModelError
from quire.models.files import check_plain
from quire.models.gguf.types import OTHERS, TYPES, TensorType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_HEADER = 256 << 20  # bytes before the tensors; vocabularies have some tens of millions
_MOST_ELEMENTS = 1 << 22  # of an array; the largest vocabularies have a quarter of a million tokens
_MOST_FIELDS = 1 << 16
_MOST_TENSORS = 1 << 17
_MOST_NAME = 1 << 10  # bytes
_MOST_DIMENSIONS = 4

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


class TensorInfo(NamedTuple):
    """A tensor of a file."""

    shape: tuple[int, ...]  # the last dimension is that of neighbours in memory
    type: TensorType
    start: int  # in the file
    num_bytes: int
    path: Path

    def each(self) -> list[TensorInfo]:
        """Along the first dimension: what lies one after the other."""
        count, *shape = self.shape
        size = self.num_bytes // count
        return [
            self._replace(shape=tuple(shape), start=self.start + index * size, num_bytes=size)
            for index in range(count)
        ]


class GGUFFile(NamedTuple):
    """The content of a file before its tensors."""

    path: Path
    metadata: Mapping[str, Any]  # numbers, texts, and lists or arrays of them
    tensors: Mapping[str, TensorInfo]

    def floats(self, name: str) -> list[float]:
        """A small tensor of F32. ModelError: it is of another type."""
        info = self.tensors[name]
        if info.type.name != "F32":
            raise ModelError(f"{self.path}: {name} is of {info.type.name} where F32 is expected")
        with info.path.open("rb") as file:
            file.seek(info.start)
            return array("f", file.read(info.num_bytes)).tolist()


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a field of the metadata holds several values."""
    return isinstance(value, (list, array))


def is_gguf(path: Path) -> bool:
    """Whether a name is that of such a file."""
    return path.suffix == ".gguf"


def read_header(path: Path) -> GGUFFile:
    """Read and check all that stands before the tensors of one file.

    Raises:
        ModelError: the file is damaged, or holds what is not supported; names the field or tensor.
    """
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    check_plain(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Cursor(path, data))
    except (OSError, ValueError) as error:  # of no bytes, among others
        raise ModelError(f"{path} is not a whole GGUF file: {error}") from error


class _Cursor:
    """A position in a file's header, which reads no further than the header's end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.size = path, len(data)
        self._data, self._at = data, 0
        self._end = min(self.size, _MOST_HEADER)
        self.what = "the beginning"  # that is being read, for errors

    @property
    def at(self) -> int:
        return self._at

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self.path}: {self.what} {reason}")

    def take(self, count: int) -> bytes:
        if count > self._end - self._at:
            limit = "the file" if self._end == self.size else f"{_MOST_HEADER >> 20} MiB of header"
            raise self.error(f"goes on beyond the end of {limit}")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError:
            raise self.error("is not UTF-8") from None

    def name(self) -> str:
        size = self.number("Q")
        if size > _MOST_NAME:
            raise self.error(f"is followed by a name of {size:,} bytes; at most {_MOST_NAME:,}")
        return self.take(size).decode(errors="replace")

    def count(self, most: int, things: str) -> int:
        count = int(self.number("Q"))
        if count > most:
            raise self.error(f"has {count:,} {things}; at most {most:,}")
        return count


def _read(cursor: _Cursor) -> GGUFFile:
    if cursor.take(4) != _MAGIC:
        raise cursor.error("is not that of a GGUF file")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise cursor.error(f"says version {version}; supported: 2, 3, in little-endian order")
    num_tensors = cursor.count(_MOST_TENSORS, "tensors")
    num_fields = cursor.count(_MOST_FIELDS, "fields")
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        name = cursor.name()
        cursor.what = short(name)
        if name in metadata:
            raise cursor.error("is there twice")
        metadata[name] = _value(cursor, cursor.number("I"))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise ModelError(
            f"{cursor.path}: general.alignment must be a power of two up to 65536, but is "
            f"{short(alignment)}"
        )
    tensors: dict[str, TensorInfo] = {}
    for _ in range(num_tensors):
        name = cursor.name()
        cursor.what = f"tensor {short(name)}"
        if name in tensors:
            raise cursor.error("is there twice")
        tensors[name] = _tensor(cursor, alignment)
    start = -(-cursor.at // alignment) * alignment
    placed = {name: info._replace(start=start + info.start) for name, info in tensors.items()}
    _check_places(cursor, placed)
    return GGUFFile(cursor.path, metadata, placed)


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind in _NUMBERS:
        return cursor.number(_NUMBERS[kind])
    if kind == _STRING:
        return cursor.text()
    if kind != _ARRAY:
        raise cursor.error(f"is of type {kind}, which is unknown")
    kind = cursor.number("I")
    count = cursor.count(_MOST_ELEMENTS, "elements")
    if kind == _STRING:
        return [cursor.text() for _ in range(count)]
    if kind not in _NUMBERS:
        raise cursor.error(f"is an array of type {kind}, which is not supported")
    form = _NUMBERS[kind].replace("?", "B")
    return array(form, cursor.take(count * struct.calcsize("<" + form)))


def _tensor(cursor: _Cursor, alignment: int) -> TensorInfo:
    """A tensor, whose ``start`` is counted from the beginning of the tensors."""
    dimensions = cursor.number("I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise cursor.error(f"has {dimensions:,} dimensions; 1 to {_MOST_DIMENSIONS} are supported")
    shape = tuple(int(cursor.number("Q")) for _ in range(dimensions))[::-1]
    if min(shape) < 1 or math.prod(shape) > cursor.size * 32:
        raise cursor.error(f"has shape {shape}, which the file has no room for")
    number, start = cursor.number("I"), int(cursor.number("Q"))
    if number not in TYPES:
        name = OTHERS.get(number, f"type {number}")
        supported = ", ".join(known.name for known in TYPES.values())
        raise cursor.error(f"is of {name}; supported: {supported}")
    kind = TYPES[number]
    if shape[-1] % kind.weights:
        raise cursor.error(f"has rows of {shape[-1]:,} numbers, no whole blocks of {kind.name}")
    if start % alignment:
        raise cursor.error(f"begins at {start:,}, no multiple of {alignment}")
    num_bytes = math.prod(shape) // kind.weights * kind.num_bytes
    return TensorInfo(shape, kind, start, num_bytes, cursor.path)


def _check_places(cursor: _Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    """ModelError unless all tensors are within the file, and none overlap."""
    end, before = 0, ""
    for name, info in sorted(tensors.items(), key=lambda item: item[1].start):
        cursor.what = f"tensor {short(name)}"
        if info.start < end:
            raise cursor.error(f"overlaps with {short(before)}")
        end, before = info.start + info.num_bytes, name
        if end > cursor.size:
            raise cursor.error(
                f"ends at byte {end:,}, but the file has only {cursor.size:,}: is it whole?"
            )

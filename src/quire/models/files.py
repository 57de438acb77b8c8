"""Reads files that others have written, without trust: regular files of bounded size."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from quire.core.errors import ModelError

MOST_BYTES = 16 << 20
"""Of a file that is read whole; configs and chat templates have some thousands."""

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # to open a pipe does not wait for a writer
_MOST_HEADER = 100_000_000  # bytes, as safetensors itself has it
_MOST_ELEMENTS, _MOST_DIMENSIONS = 2**48, 16
_BITS = {
    "F64": 64, "F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I64": 64, "I32": 32,
    "I16": 16, "I8": 8, "U8": 8, "BOOL": 8, "C64": 64, "U64": 64, "U32": 32, "U16": 16,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Of the types that safetensors has."""


def open_plain(path: Path) -> BinaryIO:
    """A plain file, open to be read. OSError if it is none."""
    file = os.fdopen(os.open(path, _READ), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return file


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a plain file. OSError or ValueError if it is none, or is too large."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return content.decode()


def read_object(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object that a plain file holds.

    Raises:
        ModelError: there is no such file, or it holds something else.
    """
    values = read_json(path, most_bytes)
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return values


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The same of any JSON value."""
    try:
        return json.loads(read_text(path, most_bytes))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except RecursionError:
        raise ModelError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read: {reason}") from error


def check_plain(path: Path, most_bytes: int | None = None) -> None:
    """ModelError if there is something at ``path``, or behind its links, that is no plain file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path} is no plain file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise ModelError(f"{path} has {status.st_size:,} bytes, more than {most_bytes:,}")


class StoredTensor(NamedTuple):
    """A tensor's offset in a safetensors file, its type and its shape."""

    type: str  # as safetensors calls it
    shape: tuple[int, ...]
    begin: int  # in bytes from the file's beginning
    end: int

    def get_shape(self) -> Sequence[int]:
        return self.shape

    def get_dtype(self) -> str:
        return self.type


def read_header(path: Path, file: BinaryIO, most: int = _MOST_HEADER) -> Mapping[str, StoredTensor]:
    """The tensors of an open safetensors file, which fill it without holes.

    most: bytes of its header.

    Raises:
        ModelError: it is not a safetensors file, or not whole.
    """
    not_whole = f"{path} is not a whole safetensors file: "
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, most):
        raise ModelError(f"{not_whole}its header has {length:,} bytes")
    try:
        fields = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise ModelError(f"{not_whole}its header is no JSON") from None
    if not isinstance(fields, dict):
        raise ModelError(f"{not_whole}its header is no object")
    start = 8 + length
    tensors = {
        name: _stored(not_whole, name, one, start, size)
        for name, one in fields.items()
        if name != "__metadata__"
    }
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda one: (one[1].begin, one[1].end)):
        if tensor.begin != end:
            raise ModelError(
                f"{not_whole}{name:.200} does not begin where the tensor before it ends"
            )
        end = tensor.end
    if end != size:
        raise ModelError(f"{not_whole}it has {size:,} bytes, but its tensors end at {end:,}")
    return tensors


def _stored(not_whole: str, name: str, given: Any, start: int, size: int) -> StoredTensor:
    """ModelError: what the header says of a tensor cannot be."""
    values = given if isinstance(given, dict) else {}
    kind, shape = values.get("dtype"), _counts(values.get("shape"))
    place = _counts(values.get("data_offsets"))
    if shape is None or place is None or len(place) != 2:
        raise ModelError(f"{not_whole}the header's entry of {name:.200} is none")
    bits = _BITS.get(kind) if isinstance(kind, str) else None
    if bits is None:
        raise ModelError(f"{not_whole}{name:.200} holds {kind!r:.20}, which is unknown")
    begin, end = place
    if not begin <= end <= size - start or 8 * (end - begin) != math.prod(shape) * bits:
        raise ModelError(f"{not_whole}{name:.200} of shape {shape} does not fill its bytes")
    return StoredTensor(str(kind), shape, start + begin, start + end)


def _counts(values: object) -> tuple[int, ...] | None:
    """A short list of numbers that can be counts; None: it is none."""
    if not isinstance(values, list) or len(values) > _MOST_DIMENSIONS:
        return None
    if not all(type(one) is int and 0 <= one < _MOST_ELEMENTS for one in values):
        return None
    return tuple(values)

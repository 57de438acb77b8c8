"""A small safetensors file, read without trust and without a mapping that could be cut under us."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from quire.errors import ModelError

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MOST_HEADER = 16 << 20
_MOST_ELEMENTS, _MOST_DIMENSIONS = 2**40, 8
_PIECE = 1 << 20
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # to open a pipe does not wait for a writer


class StoredTensor(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in bytes from the file's beginning
    end: int


class TensorFile:
    """What a file says that it holds; and, once it is sealed, what it held then.

    Sealing reads all of it: to be done once it is known that it should have so many bytes.
    """

    def __init__(self, path: Path) -> None:
        """Read its header. ModelError: it is no whole safetensors file of floats."""
        self.path = path
        self.digest = b""
        try:
            with _opened(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                self.tensors = _header(path, file, self.size)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error

    def seal(self) -> None:
        """From now on it is read as it is now. ModelError: it is another one already."""
        try:
            with _opened(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != self.size or _header(self.path, file, size) != self.tensors:
                    raise ModelError(f"{self.path} has changed while it was loaded; load it again")
                file.seek(0)
                self.digest = _digest(file)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}") from error

    def read(self) -> dict[str, Tensor]:
        """Its tensors. ModelError: it is not there any more, or holds something else by now."""
        try:
            with _opened(self.path) as file:
                content = bytearray(file.read(self.size + 1))
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read again: {error.strerror}") from error
        if hashlib.sha256(content).digest() != self.digest:
            raise ModelError(f"{self.path} has changed since it was loaded; load it again")
        return {
            name: torch.frombuffer(content[begin:end], dtype=dtype).view(shape)
            for name, (dtype, shape, begin, end) in self.tensors.items()
        }


def _opened(path: Path) -> BinaryIO:
    file = os.fdopen(os.open(path, _READ), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "it is no plain file", str(path))
    return file


def _digest(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.digest()


def _header(path: Path, file: BinaryIO, size: int) -> Mapping[str, StoredTensor]:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _MOST_HEADER):
        raise ModelError(f"{path} is not a whole safetensors file: its header has {length:,} bytes")
    try:
        fields = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not a safetensors file: its header is no JSON") from None
    if not isinstance(fields, dict):
        raise ModelError(f"{path} is not a safetensors file: its header is no object")
    start = 8 + length
    tensors = {
        name: _stored(path, name, one, start, size)
        for name, one in fields.items()
        if name != "__metadata__"
    }
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda one: one[1].begin):
        if tensor.begin != end:
            raise ModelError(f"{path}: {name} does not begin where the tensor before it ends")
        end = tensor.end
    if end != size:
        raise ModelError(f"{path} has {size:,} bytes, but its tensors end at {end:,}")
    return tensors


def _stored(path: Path, name: str, given: Any, start: int, size: int) -> StoredTensor:
    """ModelError: what the header says of a tensor cannot be."""
    values = given if isinstance(given, dict) else {}
    kind = values.get("dtype")
    shape, place = _counts(values.get("shape")), _counts(values.get("data_offsets"))
    if shape is None or place is None or len(place) != 2:
        raise ModelError(f"{path}: the header's entry of {name:.200} is none")
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise ModelError(f"{path}: {name:.200} holds {kind!r:.20}; supported: {', '.join(_DTYPES)}")
    begin, end = place
    if end > size or end - begin != math.prod(shape) * dtype.itemsize:
        raise ModelError(f"{path}: {name:.200} of shape {shape} does not fill its bytes")
    return StoredTensor(dtype, shape, start + begin, start + end)


def _counts(values: object) -> tuple[int, ...] | None:
    """A short list of numbers that can be counts; None: it is none."""
    if not isinstance(values, list) or len(values) > _MOST_DIMENSIONS:
        return None
    if not all(type(one) is int and 0 <= one < _MOST_ELEMENTS for one in values):
        return None
    return tuple(values)

"""A safetensors file, read without trust and without a mapping that could be cut under us.

The file may be truncated or written over while its model is served: what was read stays what it
was. So each tensor is read into memory of its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.models.file_bytes import FileBytes
from quire.models.files import check_plain
from quire.models.parts import WHOLE, TensorPart

_MOST_HEADER = 100_000_000  # bytes, as safetensors itself has it
_MOST_ELEMENTS, _MOST_DIMENSIONS = 2**48, 16

_READ = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Those that are not read.
_OTHER_BITS = {
    "C64": 64, "U64": 64, "U32": 32, "U16": 16, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_BITS = {**{name: 8 * dtype.itemsize for name, dtype in _READ.items()}, **_OTHER_BITS}


class StoredTensor(NamedTuple):
    """A tensor's offset in its file, its type and its shape."""

    type: str  # as safetensors calls it
    shape: tuple[int, ...]
    begin: int  # in bytes from the file's beginning
    end: int

    @property
    def dtype(self) -> torch.dtype:
        """OSError: it is of a type that is not read."""
        if self.type not in _READ:
            raise OSError(f"it is of type {self.type}; read are {', '.join(_READ)}")
        return _READ[self.type]

    def get_shape(self) -> Sequence[int]:
        return self.shape

    def get_dtype(self) -> str:
        return self.type


class SafetensorsFile:
    """An open checkpoint, as a ``GGUFTensors`` is one."""

    def __init__(self, path: Path) -> None:
        """Read its header. ModelError: it is no whole safetensors file."""
        check_plain(path)
        try:
            self._bytes = FileBytes(path)
            with path.open("rb") as file:
                self._stored = read_header(path, file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        self.bytes_read = 0

    def keys(self) -> list[str]:
        return list(self._stored)

    def get_slice(self, name: str) -> StoredTensor:
        return self._stored[name]

    def get_tensor(self, name: str, part: TensorPart = WHOLE) -> Tensor:
        """OSError: the file has changed, or the tensor is of a type that is not read."""
        stored = self._stored[name]
        dtype, size = stored.dtype, stored.end - stored.begin
        if part.is_whole or size == 0 or stored.begin % dtype.itemsize:
            data = self._bytes.read(stored.begin, size)
        else:  # no page but those of the part are read
            data = self._bytes.mapped(stored.begin, size)
        chosen = part.of(torch.from_numpy(data).view(dtype).view(stored.shape))
        tensor = chosen.contiguous() if part.is_whole else chosen.clone()
        self.bytes_read += tensor.nbytes
        return tensor


def read_header(
    path: Path, file: BinaryIO, size: int, most: int = _MOST_HEADER
) -> Mapping[str, StoredTensor]:
    """The tensors of an open file of this size, which fill it without holes.

    most: bytes of its header.

    Raises:
        ModelError: it is not a safetensors file, or not whole.
    """
    not_whole = f"{path} is not a whole safetensors file: "
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

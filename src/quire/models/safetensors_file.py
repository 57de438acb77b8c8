"""A safetensors file, read without trust and without a mapping that could be cut under us.

The file may be truncated or written over while its model is served: what was read stays what it
was. So each tensor is read into memory of its own.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.models.file_bytes import FileBytes
from quire.models.files import StoredTensor, open_plain, read_header
from quire.models.parts import WHOLE, TensorPart

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


def dtype_of(stored: StoredTensor) -> torch.dtype:
    """The type of a tensor's numbers. OSError: it is one that is not read."""
    if stored.type not in _READ:
        raise OSError(f"it is of type {stored.type}; read are {', '.join(_READ)}")
    return _READ[stored.type]


class SafetensorsFile:
    """An open checkpoint, as a ``GGUFTensors`` is one."""

    def __init__(self, path: Path) -> None:
        """Read its header. ModelError: it is no whole safetensors file."""
        try:
            self._bytes = FileBytes(path)
            with open_plain(path) as file:
                self._stored = read_header(path, file)
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
        dtype, size = dtype_of(stored), stored.end - stored.begin
        if part.is_whole or size == 0 or stored.begin % dtype.itemsize:
            data = self._bytes.read(stored.begin, size)
        else:  # no page but those of the part are read
            data = self._bytes.mapped(stored.begin, size)
        chosen = part.of(torch.from_numpy(data).view(dtype).view(stored.shape))
        tensor = chosen.contiguous() if part.is_whole else chosen.clone()
        self.bytes_read += tensor.nbytes
        return tensor

"""A small safetensors file, read without trust and without a mapping that could be cut under us."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.models.files import StoredTensor, open_plain, read_header
from quire.models.safetensors_file import dtype_of

_FLOATS = ("F32", "BF16", "F16")
_MOST_HEADER = 16 << 20
_PIECE = 1 << 20


class TensorFile:
    """What a file says that it holds; and, once it is sealed, what it held then.

    Sealing reads all of it: to be done once it is known how many bytes it should have.
    """

    def __init__(self, path: Path) -> None:
        """Read its header. ModelError: it is no whole safetensors file of floats."""
        self.path = path
        self.digest = b""
        try:
            with open_plain(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                self.tensors = _header(path, file)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error

    def seal(self) -> None:
        """Read the file from now on as it is now. ModelError: it has changed already."""
        try:
            with open_plain(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != self.size or _header(self.path, file) != self.tensors:
                    raise ModelError(f"{self.path} has changed while it was loaded; load it again")
                file.seek(0)
                self.digest = _digest(file)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}") from error

    def read(self) -> dict[str, Tensor]:
        """Its tensors. ModelError: it is not there any more, or holds something else by now."""
        try:
            with open_plain(self.path) as file:
                content = bytearray(file.read(self.size + 1))
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read again: {error.strerror}") from error
        if hashlib.sha256(content).digest() != self.digest:
            raise ModelError(f"{self.path} has changed since it was loaded; load it again")
        return {
            name: torch.frombuffer(content[one.begin : one.end], dtype=dtype_of(one)).view(
                one.shape
            )
            for name, one in self.tensors.items()
        }


def _digest(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.digest()


def _header(path: Path, file: BinaryIO) -> Mapping[str, StoredTensor]:
    tensors = read_header(path, file, _MOST_HEADER)
    for name, tensor in tensors.items():
        if tensor.type not in _FLOATS:
            names = ", ".join(_FLOATS)
            raise ModelError(f"{path}: {name:.200} holds {tensor.type}; supported: {names}")
    return tensors

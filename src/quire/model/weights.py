"""Tensors of a checkpoint in safetensors files, by name.

Files are memory-mapped. A tensor whose dtype is already the wanted one stays a view of its file:
the operating system pages it in and can drop it again. Others are converted one at a time.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePath
from reprlib import repr as short
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.errors import ModelError
from quire.files import check_plain, one_line, read_object

INDEX = "model.safetensors.index.json"

# Tables that old checkpoints carry and that are computed from the config: angles, and causal masks.
_COMPUTED = (
    "rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
)

_CPU = torch.device("cpu")

# What weights may be kept in, by safetensors' names.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_CODE_BYTES = {"I32": 4}  # of what is no weight but eight, say, rounded ones

_MOST_MAPPED = 64 << 20  # bytes, where tensors are copied
_MOST_INDEX = 64 << 20  # bytes; that of a model of 10^12 parameters has ten millions


class Weights:
    """The checkpoint in a directory: each tensor is read once, with the shape it must have."""

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype | None,
        copies: bool = False,
        device: torch.device = _CPU,
    ) -> None:
        """Open the files of ``directory``; ``dtype`` None keeps the dtype of the first tensor.

        copies: what is taken is no view, so that the files can be closed.
        device: where tensors are taken to.

        Raises:
            ModelError: there are no safetensors files, or one is missing or damaged.
        """
        self._files: dict[str, Path] = {}  # by tensor name
        self._open: dict[Path, Any] = {}
        for path in checkpoint_files(directory):
            self._open[path] = _open(path)
            self._files.update(dict.fromkeys(self._open[path].keys(), path))
        self.directory = directory
        self.dtype = dtype or self._first_dtype()
        self.device = device
        self.bytes_taken = 0
        self._bytes_mapped = 0
        self._copies = copies
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor called ``name``, for the model to keep.

        Raises:
            ModelError: there is none, it has another shape or no floats, or it cannot be read.
        """
        tensor = self.read(name, *shape)
        self.bytes_taken += tensor.nbytes
        return tensor.clone() if self._copies else tensor

    def take_floats(self, name: str, *shape: int) -> Tensor:
        """As ``take``, of the model's dtype but widened to float32."""
        tensor = self.read(name, *shape).float()
        self.bytes_taken += tensor.nbytes
        return tensor

    def leave(self, beginnings: tuple[str, ...]) -> None:
        """Say that tensors whose names begin so are rightly not taken."""
        self._taken.update(name for name in self._files if name.startswith(beginnings))

    def read(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """As ``take``, but to make something else of; ``dtype`` None is the model's."""
        return self._floats(name, self._read(name, *shape), dtype)

    def read_codes(self, name: str, *shape: int) -> Tensor:
        """As ``read``, of int32."""
        tensor = self._read(name, *shape)
        if tensor.dtype != torch.int32:
            path = self._files[name]
            raise ModelError(f"{path}: {name} holds {tensor.dtype} where int32 is expected")
        return tensor

    def read_part(self, name: str, index: int, *shape: int) -> Tensor:
        """As ``read``, of one tensor along the first dimension of that of ``shape``."""
        return self._floats(name, self._read(name, *shape, part=index), None)

    def _floats(self, name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        if not tensor.is_floating_point():
            path = self._files[name]
            raise ModelError(f"{path}: {name} holds {tensor.dtype} where floats are expected")
        return tensor.to(self.device, dtype or self.dtype)

    def _read(self, name: str, *shape: int, part: int | None = None) -> Tensor:
        if name not in self._files:
            raise ModelError(f"{self.directory}: the checkpoint has no tensor {name}")
        path = self._files[name]
        try:
            stored = self._open[path].get_slice(name)
            found = tuple(stored.get_shape())
            if found != shape:
                raise ModelError(
                    f"{path}: {name} has shape {found}, but the config asks for {shape}"
                )
            tensor: Tensor = self._open[path].get_tensor(name) if part is None else stored[part]
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{path}: {name} cannot be read: {one_line(error)}") from error
        self._taken.add(name)
        self._bytes_mapped += tensor.nbytes
        if self._copies and self._bytes_mapped > _MOST_MAPPED:
            # Pages that were read count as ours until the mapping goes, with its last tensor.
            self._bytes_mapped = 0
            self._open = {path: _open(path) for path in self._open}
        return tensor

    @property
    def num_elements(self) -> int:
        """Of all tensors together."""
        return sum(map(self._elements, self._files))

    @property
    def num_tensors(self) -> int:
        """Of all files together."""
        return len(self._files)

    @property
    def total_bytes(self) -> int:
        """What all tensors take where they are taken to, before any is read.

        Those that stay views of their files take nothing: the system pages them in and out.
        """
        return sum(self._bytes(name) for name in self._files)

    @property
    def largest_bytes(self) -> int:
        """Of the tensor that takes most; of one of three dimensions, which is many, a part."""
        return max((self._bytes(name) // self._parts(name) for name in self._files), default=0)

    def _parts(self, name: str) -> int:
        shape = self._open[self._files[name]].get_slice(name).get_shape()
        return max(1, shape[0]) if len(shape) == 3 else 1

    def _bytes(self, name: str) -> int:
        stored = self._stored(name)
        if not self._copies and self.device.type == "cpu" and _DTYPES.get(stored) is self.dtype:
            return 0
        size = _CODE_BYTES.get(stored, self.dtype.itemsize)
        return size * self._elements(name)

    def _elements(self, name: str) -> int:
        return math.prod(self._open[self._files[name]].get_slice(name).get_shape())

    def finish(self) -> None:
        """Say that no more tensors will be taken.

        Raises:
            ModelError: the checkpoint has tensors that the architecture has no place for.
        """
        left = [name for name in self._files if name not in self._taken]
        left = sorted(name for name in left if not name.endswith(_COMPUTED))
        if left:
            shown = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise ModelError(
                f"{self.directory}: {len(left)} tensors are not part of this architecture: {shown}"
            )

    def _first_dtype(self) -> torch.dtype:
        for name in self._files:
            dtype = _DTYPES.get(self._stored(name))
            if dtype is not None:
                return dtype
        return torch.float32

    def _stored(self, name: str) -> str:
        """The dtype of a tensor, as its file calls it."""
        return str(self._open[self._files[name]].get_slice(name).get_dtype())


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint. ModelError: there are none, or one is missing."""
    index = directory / INDEX
    if index.exists():
        files = [directory / name for name in _indexed(index)]
    else:
        files = [directory / "model.safetensors"]
        if not files[0].exists():
            raise ModelError(_no_weights(directory))
    missing = ", ".join(path.name for path in files if not path.exists())
    if missing:
        raise ModelError(f"{directory}: {INDEX} names files that are not there: {missing}")
    return files


def _indexed(index: Path) -> list[str]:
    """The files that an index names, all of them below its directory.

    They may be links to anywhere, as in Hugging Face's cache: those are of whoever made the
    directory, while the index may come from anybody.
    """
    names = read_object(index, _MOST_INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{index} is not a safetensors index: weight_map must name files")
    files = sorted(set(names.values()))
    for name in files:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or path.suffix != ".safetensors":
            raise ModelError(f"{index} names {short(name)}, no .safetensors file beside it")
    return files


def _no_weights(directory: Path) -> str:
    message = f"{directory} has neither model.safetensors nor {INDEX}"
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt")):
        message += (
            "; its pickled weights (.bin, .pt) are not read, since loading them runs code. Convert "
            "them: transformers.AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    return message


def _open(path: Path) -> Any:
    check_plain(path)
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a whole safetensors file: {one_line(error)}") from error

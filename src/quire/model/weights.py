"""Tensors of a checkpoint in safetensors files, by name.

Files are memory-mapped. A tensor whose dtype is already the wanted one stays a view of its file:
the operating system pages it in and can drop it again. Others are converted one at a time.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.errors import ModelError
from quire.model.layers import Linear

INDEX = "model.safetensors.index.json"

# Tables that old checkpoints carry and that are computed from the config.
_COMPUTED = ("rotary_emb.inv_freq",)

_CPU = torch.device("cpu")


class Weights:
    """The checkpoint in a directory: each tensor is taken once, with the shape it must have."""

    def __init__(
        self, directory: Path, dtype: torch.dtype | None, device: torch.device = _CPU
    ) -> None:
        """Open the files of ``directory``; ``dtype`` None keeps the dtype of the first tensor.

        Tensors are taken to ``device``.

        Raises:
            ModelError: there are no safetensors files, or one is missing or damaged.
        """
        self._files: dict[str, tuple[Path, Any]] = {}  # by tensor name: where it is, open
        for path in _checkpoint_files(directory):
            handle = _open(path)
            self._files.update(dict.fromkeys(handle.keys(), (path, handle)))
        self.directory = directory
        self.dtype = dtype or self._first_dtype()
        self.device = device
        self.bytes_taken = 0
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor called ``name``.

        Raises:
            ModelError: there is none, it has another shape, or it cannot be read.
        """
        if name not in self._files:
            raise ModelError(f"{self.directory}: the checkpoint has no tensor {name}")
        path, handle = self._files[name]
        try:
            tensor: Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{path}: {name} cannot be read: {error}") from error
        if tensor.shape != shape:
            found = tuple(tensor.shape)
            raise ModelError(f"{path}: {name} has shape {found}, but the config asks for {shape}")
        if not tensor.is_floating_point():
            raise ModelError(f"{path}: {name} holds {tensor.dtype}; quantised weights are refused")
        self._taken.add(name)
        tensor = tensor.to(self.device, self.dtype)
        self.bytes_taken += tensor.nbytes
        return tensor

    @property
    def total_bytes(self) -> int:
        """Of all tensors, in the wanted dtype, before any is read."""
        elements = 0
        for name, (_, handle) in self._files.items():
            elements += math.prod(handle.get_slice(name).get_shape())
        return elements * self.dtype.itemsize

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
        for name, (_, handle) in self._files.items():
            dtype: torch.dtype = handle.get_tensor(name).dtype
            if dtype.is_floating_point:
                return dtype
        return torch.float32


def read_linear(weights: Weights, name: str, inputs: int, outputs: int, bias: bool) -> Linear:
    """The projection whose tensors are called ``name.weight`` and, with ``bias``, ``name.bias``."""
    weight = weights.take(f"{name}.weight", outputs, inputs)
    return Linear(weight, weights.take(f"{name}.bias", outputs) if bias else None)


def _checkpoint_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index} is not a safetensors index: {error!r}") from error
        files = [directory / str(name) for name in sorted(names)]
    else:
        files = [directory / "model.safetensors"]
        if not files[0].exists():
            raise ModelError(_no_weights(directory))
    missing = ", ".join(path.name for path in files if not path.exists())
    if missing:
        raise ModelError(f"{directory}: {INDEX} names files that are not there: {missing}")
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
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error

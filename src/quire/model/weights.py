"""Tensors of a checkpoint in safetensors files, or a GGUF file, by name.

Files are memory-mapped. A tensor whose dtype is already the wanted one stays a view of its file:
the operating system pages it in and can drop it again. Others are converted one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from reprlib import repr as short
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.errors import ModelError
from quire.files import check_plain, one_line, read_object
from quire.gguf import BLOCKS, ROUNDED_BYTES, is_gguf
from quire.model.gguf.tensors import GGUFTensors
from quire.model.parts import WHOLE, Part
from quire.model.stored import ByGroups

INDEX = "model.safetensors.index.json"

# Tables that old checkpoints carry and that are computed from the config: angles, and causal masks.
_COMPUTED = (
    "rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
)

# Of a decoder that was saved by itself, as embedding models are.
_BARE = "embed_tokens.weight"

# In the names of what belongs to one of a mixture's; what belongs to all of them has a dimension.
_EXPERTS = ".experts."

_CPU = torch.device("cpu")

# What weights may be kept in, by safetensors' names.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

_MOST_MAPPED = 64 << 20  # bytes, where tensors are copied
_MOST_INDEX = 64 << 20  # bytes; that of a model of 10^12 parameters has ten millions


class Weights:
    """The checkpoint in a directory: each tensor is read once, with the shape it must have.

    Names are those of a decoder with its head, "model.layers.0.…", even where it was saved alone.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype | None,
        copies: bool = False,
        device: torch.device = _CPU,
    ) -> None:
        """Open the files of ``directory``, or a GGUF file.

        dtype: None keeps the dtype of the first tensor.
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
        self._prefix = "model." if _BARE in self._files else ""  # that the files leave out
        self._files = {self._prefix + name: path for name, path in self._files.items()}
        self.directory = directory
        self.dtype = dtype or self._first_dtype()
        self.device = device
        self.bytes_taken = 0
        self._bytes_read = 0
        self._bytes_mapped = 0
        self._copies = copies
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int, part: Part = WHOLE) -> Tensor:
        """The tensor called ``name``, or a part of it, for the model to keep.

        shape: of all of it.

        Raises:
            ModelError: there is none, it has another shape or no floats, or it cannot be read.
        """
        tensor = self.read(name, *shape, part=part)
        self.bytes_taken += tensor.nbytes
        return tensor.clone() if self._copies else tensor

    def take_floats(self, name: str, *shape: int, part: Part = WHOLE) -> Tensor:
        """As ``take``, of the model's dtype but widened to float32."""
        tensor = self.read(name, *shape, part=part).float()
        self.bytes_taken += tensor.nbytes
        return tensor

    def check(self, name: str, *shape: int) -> None:
        """ModelError: there is no tensor called ``name``, or it has another shape."""
        if name not in self._files:
            raise ModelError(f"{self.directory}: the checkpoint has no tensor {name}")
        found = tuple(self._slice(name).get_shape())
        if found != shape:
            path = self._files[name]
            raise ModelError(f"{path}: {name} has shape {found}, but the config asks for {shape}")

    def leave(self, beginnings: tuple[str, ...]) -> None:
        """Say that tensors whose names begin so are rightly not taken."""
        self._taken.update(name for name in self._files if name.startswith(beginnings))

    def read(
        self, name: str, *shape: int, dtype: torch.dtype | None = None, part: Part = WHOLE
    ) -> Tensor:
        """As ``take``, but to make something else of; ``dtype`` None is the model's."""
        return self._floats(name, self._read(name, shape, part), dtype)

    def stored(self, name: str) -> str:
        """The dtype of a tensor, as its file calls it."""
        return str(self._slice(name).get_dtype())

    def has_floats(self, name: str) -> bool:
        """Whether there is such a tensor, of a type that weights may be kept in."""
        return name in self._files and self.stored(name) in _DTYPES

    def is_rounded(self, name: str) -> bool:
        """Whether ``read_rounded`` has it: one of a GGUF file's rounded types."""
        return name in self._files and self.stored(name) in ROUNDED_BYTES

    def read_rounded(self, name: str, *shape: int, part: Part = WHOLE) -> ByGroups:
        """As ``read``, as it is stored; columns are whole blocks of it."""
        rounded: ByGroups = self._load(name, shape, "get_rounded", part)
        return rounded

    def block(self, name: str) -> int:
        """Inputs in a block of a tensor that ``is_rounded``."""
        return BLOCKS[self.stored(name)]

    def read_codes(self, name: str, *shape: int, part: Part = WHOLE) -> Tensor:
        """As ``read``, of int32."""
        return self.read_typed(name, (torch.int32,), *shape, part=part)

    def read_typed(
        self, name: str, dtypes: Collection[torch.dtype], *shape: int, part: Part = WHOLE
    ) -> Tensor:
        """As ``read``, of one of ``dtypes`` as it is stored."""
        tensor = self._read(name, shape, part)
        if tensor.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            path = self._files[name]
            raise ModelError(f"{path}: {name} holds {tensor.dtype} where {wanted} is expected")
        return tensor

    def read_shaped(
        self, name: str, dtypes: Collection[torch.dtype], *shapes: tuple[int, ...]
    ) -> Tensor:
        """As ``read_typed``, in one of several shapes."""
        found = self.shape(name)
        return self.read_typed(name, dtypes, *(found if found in shapes else shapes[0]))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """As it is stored; None where there is no such tensor."""
        if name not in self._files:
            return None
        return tuple(self._open[self._files[name]].get_slice(name).get_shape())

    def _floats(self, name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        if not tensor.is_floating_point():
            path = self._files[name]
            raise ModelError(f"{path}: {name} holds {tensor.dtype} where floats are expected")
        return tensor.to(self.device, dtype or self.dtype)

    def _read(self, name: str, shape: tuple[int, ...], part: Part) -> Tensor:
        return self._mapped(self._load(name, shape, "get_tensor", part))

    def _mapped(self, tensor: Tensor) -> Tensor:
        """The same, whose pages are counted."""
        self._bytes_mapped += tensor.nbytes
        if self._copies and self._bytes_mapped > _MOST_MAPPED:
            # Pages that were read count as ours until the mapping goes, with its last tensor.
            self._bytes_mapped = 0
            self._open = {path: _reopened(path, file) for path, file in self._open.items()}
        return tensor

    def _load(self, name: str, shape: tuple[int, ...], how: str, part: Part) -> Any:
        """By a method of the file that holds it; the shape is checked first."""
        self.check(name, *shape)
        path = self._files[name]
        self._taken.add(name)
        try:
            file, own_name = self._open[path], name.removeprefix(self._prefix)
            if isinstance(file, GGUFTensors):
                return getattr(file, how)(own_name, part)
            tensor = part.of(getattr(file, how)(own_name))  # of a view: no page had been read
            self._bytes_read += tensor.nbytes
            return tensor
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{path}: {name} cannot be read: {one_line(error)}") from error

    @property
    def bytes_read(self) -> int:
        """Of the files so far, but for their headers."""
        files = [file for file in self._open.values() if isinstance(file, GGUFTensors)]
        return self._bytes_read + sum(file.bytes_read for file in files)

    @property
    def num_elements(self) -> int:
        """Of all tensors together."""
        return sum(map(self._elements, self._files))

    @property
    def num_tensors(self) -> int:
        """Of all files together."""
        return len(self._files)

    def bytes_needed(
        self, code_bytes: Mapping[str, float], *, experts: bool = True
    ) -> tuple[int, int]:
        """What tensors take where they are taken to, before any is read, and the largest of all.

        Of a tensor of three dimensions or more, which is many, the largest is a part.
        Those that stay views of their files take nothing: the system pages them in and out.
        code_bytes: of an element that is no float, by its type as safetensors calls it.
        experts: whether those of mixtures count.
        """
        sizes = {name: self._bytes(name, code_bytes) for name in self._files}
        parts = (size // self._parts(name) for name, size in sizes.items())
        counted = (size for name, size in sizes.items() if experts or not self._of_experts(name))
        return sum(counted), max(parts, default=0)

    def _of_experts(self, name: str) -> bool:
        return _EXPERTS in name or self._parts(name) > 1

    def _parts(self, name: str) -> int:
        shape = self._slice(name).get_shape()
        return max(1, shape[0]) if len(shape) > 2 else 1

    def _bytes(self, name: str, code_bytes: Mapping[str, float]) -> int:
        stored = self.stored(name)
        if not self._copies and self.device.type == "cpu" and _DTYPES.get(stored) is self.dtype:
            return 0
        size = code_bytes.get(stored, self.dtype.itemsize)
        return int(size * self._elements(name))

    def _elements(self, name: str) -> int:
        return math.prod(self._slice(name).get_shape())

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
            dtype = _DTYPES.get(self.stored(name))
            if dtype is not None:
                return dtype
        return torch.float32

    def _slice(self, name: str) -> Any:
        """What a file says of a tensor before it is read."""
        return self._open[self._files[name]].get_slice(name.removeprefix(self._prefix))


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, or the GGUF file that it is.

    ModelError: there are none, or one is missing.
    """
    if is_gguf(directory):
        return [directory]
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
    if is_gguf(path):
        return GGUFTensors(path)
    check_plain(path)
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, RuntimeError) as error:  # too large to be mapped, too
        raise ModelError(f"{path} is not a whole safetensors file: {one_line(error)}") from error


def _reopened(path: Path, file: Any) -> Any:
    return file if isinstance(file, GGUFTensors) else _open(path)

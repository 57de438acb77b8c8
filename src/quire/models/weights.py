"""Tensors of a checkpoint in safetensors files, or a GGUF file, by name.

Each is read into memory of its own, one at a time: what is served outlives its files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.core.errors import ModelError, reason
from quire.models.checkpoint_files import find_files
from quire.models.gguf import BLOCKS, ROUNDED_BYTES, is_gguf
from quire.models.gguf_tensors.tensors import GGUFTensors
from quire.models.parts import WHOLE, TensorPart
from quire.models.safetensors_file import SafetensorsFile
from quire.models.stored import ByGroups

# Tables that old checkpoints carry and that are computed from the config: angles, causal masks, and
# the kinds of tokens of a text that has but one.
_COMPUTED = (
    "rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.causal_mask",
    "embeddings.token_type_ids",
)

# Of a decoder that was saved by itself, as embedding models are; and what stands beside one.
_BARE, _BESIDE = "embed_tokens.", "lm_head."

# In the names of what belongs to one of a mixture's; what belongs to all of them has a dimension.
_EXPERTS = ".experts."

_CPU = torch.device("cpu")

# What weights may be kept in, by safetensors' names.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Weights:
    """The checkpoint in a directory: each tensor is read once, with the shape it must have.

    Names are those of a decoder with its head, "model.layers.0.…", even where it was saved alone:
    then files leave the ``prefix`` out.
    """

    def __init__(
        self, directory: Path, dtype: torch.dtype | None, device: torch.device = _CPU
    ) -> None:
        """Open the files of ``directory``, or a GGUF file.

        dtype: None keeps the one in which most of the floats are stored.
        device: where tensors are taken to.

        Raises:
            ModelError: there are no safetensors files, or one is missing or damaged.
        """
        found = find_files(directory)
        self._open: dict[Path, SafetensorsFile | GGUFTensors] = {}
        stored: dict[str, Path] = {}  # by the names that the files have
        for path in found.paths:
            self._open[path] = file = GGUFTensors(path) if is_gguf(path) else SafetensorsFile(path)
            for name in file.keys():  # noqa: SIM118
                if name in stored and found.places.get(name) not in (stored[name], path):
                    raise ModelError(f"{path}: {name} is in {stored[name].name} as well")
                stored[name] = found.places.get(name, path) if name in stored else path
        self.prefix = "model." if any(name.startswith(_BARE) for name in stored) else ""
        self._files = {
            name if name.startswith(_BESIDE) else self.prefix + name: path
            for name, path in stored.items()
        }
        self.directory = directory
        self.dtype = dtype or self._most_common_dtype()
        self.device = device
        self.bytes_taken = 0
        self._taken: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int, part: TensorPart = WHOLE) -> Tensor:
        """The tensor called ``name``, or a part of it, for the model to keep.

        shape: of all of it.

        Raises:
            ModelError: there is none, it has another shape or no floats, or it cannot be read.
        """
        tensor = self.read(name, *shape, part=part)
        self.bytes_taken += tensor.nbytes
        return tensor

    def take_floats(self, name: str, *shape: int, part: TensorPart = WHOLE) -> Tensor:
        """Like ``take``, but in float32, and never in the model's dtype before: of numbers that
        choose experts, the digits past that are what tells them apart.
        """
        tensor = self.read(name, *shape, dtype=torch.float32, part=part)
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

    def as_stored(self, name: str) -> Tensor:
        """A tensor as it is stored, of whatever type and shape. ModelError: it cannot be read."""
        return self._read(name, tuple(self._slice(name).get_shape()), WHOLE)

    def leave(self, beginnings: tuple[str, ...]) -> None:
        """Note that tensors whose names begin like this are not needed."""
        self._taken.update(name for name in self._files if name.startswith(beginnings))

    def read(
        self,
        name: str,
        *shape: int,
        dtype: torch.dtype | None = None,
        part: TensorPart = WHOLE,
        exact: bool = False,
    ) -> Tensor:
        """Like ``take``, for tensors to compute others from; ``dtype`` None is the model's.

        exact: what is stored in float32 stays so, whatever the model's is.
        """
        found = self._read(name, shape, part)
        if exact and found.dtype == torch.float32:
            dtype = torch.float32
        return self._floats(name, found, dtype)

    def stored(self, name: str) -> str:
        """The dtype of a tensor, as its file calls it."""
        return str(self._slice(name).get_dtype())

    def has_floats(self, name: str) -> bool:
        """Whether there is such a tensor, of a type that weights may be kept in."""
        return name in self._files and self.stored(name) in _DTYPES

    def is_rounded(self, name: str) -> bool:
        """Whether ``read_rounded`` has it: one of a GGUF file's rounded types."""
        return name in self._files and self.stored(name) in ROUNDED_BYTES

    def read_rounded(self, name: str, *shape: int, part: TensorPart = WHOLE) -> ByGroups:
        """Like ``read``, as it is stored; columns are whole blocks."""
        rounded: ByGroups = self._load(name, shape, "get_rounded", part)
        return rounded

    def block(self, name: str) -> int:
        """Inputs in a block of a tensor that ``is_rounded``."""
        return BLOCKS[self.stored(name)]

    def read_codes(self, name: str, *shape: int, part: TensorPart = WHOLE) -> Tensor:
        """Like ``read``, for int32."""
        return self.read_typed(name, (torch.int32,), *shape, part=part)

    def read_typed(
        self, name: str, dtypes: Collection[torch.dtype], *shape: int, part: TensorPart = WHOLE
    ) -> Tensor:
        """Like ``read``, for one of ``dtypes`` as it is stored."""
        tensor = self._read(name, shape, part)
        if tensor.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            path = self._files[name]
            raise ModelError(f"{path}: {name} holds {tensor.dtype} where {wanted} is expected")
        return tensor

    def read_shaped(
        self, name: str, dtypes: Collection[torch.dtype], *shapes: tuple[int, ...]
    ) -> Tensor:
        """Like ``read_typed``, for one of several shapes."""
        found = self.shape(name)
        return self.read_typed(name, dtypes, *(found if found in shapes else shapes[0]))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's stored shape; None: there is no such tensor."""
        if name not in self._files:
            return None
        return tuple(self._slice(name).get_shape())

    def _floats(self, name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        if not tensor.is_floating_point():
            path = self._files[name]
            raise ModelError(f"{path}: {name} holds {tensor.dtype} where floats are expected")
        return tensor.to(self.device, dtype or self.dtype)

    def _read(self, name: str, shape: tuple[int, ...], part: TensorPart) -> Tensor:
        tensor: Tensor = self._load(name, shape, "get_tensor", part)
        return tensor

    def _load(self, name: str, shape: tuple[int, ...], how: str, part: TensorPart) -> Any:
        """Load by a method of the file that has the tensor; the shape is checked first."""
        self.check(name, *shape)
        path = self._files[name]
        self._taken.add(name)
        try:
            return getattr(self._open[path], how)(name.removeprefix(self.prefix), part)
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{path}: {name} cannot be read: {reason(error)}") from error

    @property
    def bytes_read(self) -> int:
        """Bytes of the files that have been read, without headers."""
        return sum(file.bytes_read for file in self._open.values())

    @property
    def num_elements(self) -> int:
        """Elements of all tensors together."""
        return sum(map(self._elements, self._files))

    @property
    def num_tensors(self) -> int:
        """Tensors of all files together."""
        return len(self._files)

    def bytes_needed(
        self, code_bytes: Mapping[str, float], *, experts: bool = True
    ) -> tuple[int, int]:
        """Memory for all tensors, before any is read, and for the largest.

        Of a tensor of three dimensions or more, which is several in one, the largest is a part.
        code_bytes: of an element that is not a float, by its type in safetensors.
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
        size = code_bytes.get(self.stored(name), self.dtype.itemsize)
        return int(size * self._elements(name))

    def _elements(self, name: str) -> int:
        return math.prod(self._slice(name).get_shape())

    def finish(self) -> None:
        """Check that all needed tensors were taken.

        Raises:
            ModelError: the checkpoint has tensors that the architecture does not use.
        """
        left = [name for name in self._files if name not in self._taken]
        left = sorted(name for name in left if not adds_nothing(self, name))
        if left:
            shown = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise ModelError(
                f"{self.directory}: {len(left)} tensors are not part of this architecture: {shown}"
            )

    def _most_common_dtype(self) -> torch.dtype:
        counts = Counter[torch.dtype]()
        for name in self._files:
            dtype = _DTYPES.get(self.stored(name))
            if dtype is not None:
                counts[dtype] += self._elements(name)
        return counts.most_common(1)[0][0] if counts else torch.float32

    def _slice(self, name: str) -> Any:
        """The facts in a file about a tensor, before it is read."""
        return self._open[self._files[name]].get_slice(name.removeprefix(self.prefix))


def adds_nothing(weights: Weights, name: str) -> bool:
    """Whether it is a table that is computed, or a bias of zeros, which some savers write for
    every projection.
    """
    if name.endswith(_COMPUTED):
        return True
    if not (name.endswith(".bias") and weights.has_floats(name)):
        return False
    return len(weights.shape(name) or ()) == 1 and not weights.as_stored(name).any()

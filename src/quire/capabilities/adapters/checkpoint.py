"""An adapter's directory: checked against the model before its weights take memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quire.capabilities.adapters.lora_config import LoraConfig
from quire.capabilities.adapters.tensors import TensorFile
from quire.core.errors import ModelError
from quire.kernels.adapters import Site, Update, Updates
from quire.models.adaptable import Adaptable
from quire.models.safetensors_file import StoredTensor

WEIGHTS = "adapter_model.safetensors"

_NAME = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
_LONGEST_NAME = 512
_NOT_YET = {  # in a tensor's name, and what it stands for
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "an adapter of an embedding",
    "embed_tokens": "an adapter of the embedding",
    "lm_head": "an adapter of the head",
    "experts": "an adapter of experts",
    "modules_to_save": "modules_to_save",
    ".bias": "a bias",
}


@dataclass(frozen=True)
class _Matrices:
    """Both of a module's, and what is done with them."""

    module: Adaptable
    rank: int
    scale: float
    down: str  # names of the tensors
    up: str


@dataclass(frozen=True)
class AdapterCheckpoint:
    """An adapter that fits the model. Its tensors are read when they are asked for."""

    path: Path
    fingerprint: bytes
    _file: TensorFile
    _matrices: tuple[_Matrices, ...]

    def read(self) -> Updates:
        """ModelError: the file is not there any more, or holds something else by now."""
        tensors = self._file.read()
        updates: dict[tuple[int, Site], list[Update]] = {}
        for one in self._matrices:
            module = one.module
            down = tensors[one.down][:, module.part.columns]
            up = tensors[one.up][module.part.rows]
            update = Update(module.first, down, up, one.scale)
            updates.setdefault((module.layer, module.site), []).append(update)
        return updates


def check_adapter(path: Path, modules: Mapping[str, Adaptable], max_rank: int) -> AdapterCheckpoint:
    """The adapter in a directory.

    modules: those of the model that adapters can change, by name.

    Raises:
        ModelError: it is none, of a kind that is not supported, of another base, or its rank is
            above ``max_rank``.
    """
    config = LoraConfig.read(path)
    weights = path / WEIGHTS
    if not weights.exists() and any(path.glob("adapter_model.*")):
        raise ModelError(f"{path}: {WEIGHTS} is missing; other files of weights are not read")
    file = TensorFile(weights)
    pairs = _pairs(file)
    known = {_plain(name): module for name, module in modules.items()}
    matrices: list[_Matrices] = []
    for module, (down, up) in sorted(pairs.items()):
        place = known.get(_plain(module))
        if place is None:
            raise ModelError(
                f"{weights}: {module} is no projection of this model that adapters change"
            )
        if any(one.module is place for one in matrices):
            raise ModelError(f"{weights} has {module} twice")
        rank = _rank(file, down, up, place)
        if rank > max_rank:
            raise ModelError(
                f"{weights}: {module} has rank {rank}, above max_lora_rank, {max_rank}"
            )
        matrices.append(_Matrices(place, rank, config.scale(module, rank), down, up))
    file.seal()  # no larger than matrices of such ranks are
    return AdapterCheckpoint(path, _fingerprint(file, matrices), file, tuple(matrices))


def _pairs(file: TensorFile) -> dict[str, tuple[str, str]]:
    """The names of both tensors of each module."""
    found: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        for part, what in _NOT_YET.items():
            if part in name:
                raise ModelError(f"{file.path}: {name:.200} is {what}, which is not supported")
        match = _NAME.fullmatch(name) if len(name) <= _LONGEST_NAME else None
        if match is None:
            raise ModelError(f"{file.path}: {name:.200} is no tensor of PEFT's LoRA")
        found.setdefault(match[1], {})[match[2]] = name
    if not found:
        raise ModelError(f"{file.path} holds no tensors")
    for module, names in found.items():
        if len(names) < 2:
            raise ModelError(f"{file.path}: {module} has lora_{next(iter(names))}, but not both")
    return {module: (names["A"], names["B"]) for module, names in found.items()}


def _rank(file: TensorFile, down: str, up: str, place: Adaptable) -> int:
    first, second = file.tensors[down], file.tensors[up]
    rank = first.shape[0] if first.shape else 0
    _check_shape(file, down, first, (rank, place.inputs))
    _check_shape(file, up, second, (place.outputs, rank))
    if not rank:
        raise ModelError(f"{file.path}: {down} is empty")
    return rank


def _check_shape(file: TensorFile, name: str, tensor: StoredTensor, shape: tuple[int, int]) -> None:
    if tensor.shape != shape:
        raise ModelError(
            f"{file.path}: {name} has shape {tensor.shape}, but this model asks for {shape}: the "
            "adapter is of another base"
        )


def _fingerprint(file: TensorFile, matrices: list[_Matrices]) -> bytes:
    """Of all that a text can depend on."""
    scales = repr([(one.down, one.scale) for one in matrices])
    return hashlib.sha256(file.digest + hashlib.sha256(scales.encode()).digest()).digest()


def _plain(module: str) -> str:
    """The name within the decoder, which some checkpoints leave out the outer name of."""
    return module.removeprefix("model.")

"""An adapter's directory: checked against the model before its weights take memory."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quire.capabilities.adapters.lora_config import FOLD, LoraConfig
from quire.capabilities.adapters.tensors import TensorFile
from quire.core.errors import ModelError
from quire.kernels.adapters import Site, Update, Updates
from quire.models.adaptable import Adaptable, Replaceable
from quire.models.files import StoredTensor
from quire.models.linear import Given
from quire.models.parts import ALL

WEIGHTS = "adapter_model.safetensors"

_NAME = re.compile(
    r"base_model\.model\.(.+)\.(?:(lora_[AB])\.weight|(lora_magnitude_vector)(?:\.weight)?)"
)
_DOWN, _UP, _MAGNITUDE = "lora_A", "lora_B", "lora_magnitude_vector"
_LONGEST_NAME = 512
_NOT_YET = {  # in a tensor's name, and what it stands for
    "lora_embedding_": "an adapter of an embedding",
    "embed_tokens": "an adapter of the embedding",
    "lm_head": "an adapter of the head",
    "experts": "an adapter of experts",
    ".bias": "a bias",
}
_REPLACED = "a tensor that takes the place of the base's (modules_to_save)"
_AT_ONCE = 1 << 20  # weights whose lengths are taken


@dataclass(frozen=True)
class _Matrices:
    """The matrices of one module, and how they are applied."""

    module: Adaptable
    rank: int
    scale: float
    down: str  # names of the tensors
    up: str
    magnitude: str | None  # of a DoRA


class _Table(NamedTuple):
    """An embedding or a head, by the names of its tensors."""

    is_head: bool
    weight: str
    bias: str | None


class AdapterWeights(NamedTuple):
    """What an adapter does to products, and what it has in the place of the model's own."""

    updates: Updates
    embedding: Given | None = None
    head: Given | None = None


@dataclass(frozen=True)
class AdapterCheckpoint:
    """An adapter that fits the model. Its tensors are read when they are asked for."""

    path: Path
    fingerprint: bytes
    _file: TensorFile
    _matrices: tuple[_Matrices, ...]
    _tables: tuple[_Table, ...]

    @property
    def table_weights(self) -> int:
        """Numbers of embedding and head."""
        return sum(math.prod(self._file.tensors[one.weight].shape) for one in self._tables)

    def read(self) -> AdapterWeights:
        """ModelError: the file is not there any more, or holds something else by now, or what are
        no numbers: whoever asked for the adapter would have nothing but failed steps of it.
        """
        tensors = self._file.read()
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise ModelError(f"{self._file.path}: {name} holds no finite numbers")
        embedding = head = None
        for one in self._tables:
            given = Given(tensors[one.weight], tensors[one.bias] if one.bias else None)
            embedding, head = (embedding, given) if one.is_head else (given, head)
        return AdapterWeights(self._updates(tensors), embedding, head)

    def _updates(self, tensors: Mapping[str, Tensor]) -> Updates:
        updates: dict[tuple[int, Site], list[Update]] = {}
        for one in self._matrices:
            module = one.module
            down = tensors[one.down][:, module.part.columns]
            up = tensors[one.up][module.part.rows]
            update = Update(module.first, down, up, one.scale)
            if one.magnitude is not None:
                magnitude = tensors[one.magnitude].double()[module.part.rows]
                lengths = _lengths(module, update)
                if not lengths.all():
                    raise ModelError(f"{self._file.path}: {one.down} leaves an output no weights")
                rescaling = _rescaling(module, magnitude / lengths)
                if not rescaling.isfinite().all():
                    raise ModelError(f"{self._file.path}: {one.magnitude} is beyond all numbers")
                update = update._replace(rescaling=rescaling)
            updates.setdefault((module.layer, module.site), []).append(update)
        return updates


def check_adapter(
    path: Path,
    modules: Mapping[str, Adaptable],
    max_rank: int,
    tables: Mapping[str, Replaceable] | None = None,
) -> AdapterCheckpoint:
    """The adapter in a directory.

    modules: those of the model that adapters can change, by name. tables: those that they can take
        the place of.

    Raises:
        ModelError: it holds no adapter, one of a kind that is not supported or of another base,
            or one whose rank is above ``max_rank``.
    """
    config = LoraConfig.read(path)
    weights = path / WEIGHTS
    if not weights.exists() and any(path.glob("adapter_model.*")):
        raise ModelError(f"{path}: {WEIGHTS} is missing; other files of weights are not read")
    file = TensorFile(weights)
    replaced = _replaced(config, file, tables or {})
    taken = {name for one in replaced for name in one[1:] if name is not None}
    groups = _by_module(file, config.use_dora, taken)
    known = {_plain(name): module for name, module in modules.items()}
    matrices: list[_Matrices] = []
    for module, names in sorted(groups.items()):
        down, up, magnitude = names[_DOWN], names[_UP], names.get(_MAGNITUDE)
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
        if magnitude is not None:
            _check_magnitude(file, magnitude, place)
        matrices.append(_Matrices(place, rank, config.scale(module, rank), down, up, magnitude))
    file.seal()  # no larger than matrices of such ranks are
    fingerprint = _fingerprint(file, matrices, replaced)
    return AdapterCheckpoint(path, fingerprint, file, tuple(matrices), replaced)


def _replaced(
    config: LoraConfig, file: TensorFile, tables: Mapping[str, Replaceable]
) -> tuple[_Table, ...]:
    """The tables in a file. ModelError: one does not fit, or is no table of the model."""
    for name in config.saved:
        if not any(own.rpartition(".")[2] == name.rpartition(".")[2] for own in tables):
            names = " and ".join(own.rpartition(".")[2] for own in tables) or "none"
            raise ModelError(
                f"{config.source}: modules_to_save names {name:.100}; of this model those that "
                f"adapters can take the place of are {names}; {FOLD}"
            )
    found = dict[bool, _Table]()
    listed = {name.rpartition(".")[2] for name in config.saved}
    for own, table in tables.items():
        stored = next((one for one in _spellings(own, ".weight") if one in file.tensors), None)
        if stored is None:
            continue
        _check_shape(file, stored, file.tensors[stored], table.shape)
        bias = next((one for one in _spellings(own, ".bias") if one in file.tensors), None)
        if bias is not None:
            _check_shape(file, bias, file.tensors[bias], table.shape[:1])
        found[table.is_head] = _Table(table.is_head, stored, bias)
        together = config.keeps_tied or own.rpartition(".")[2] not in listed
        if table.tied and together:  # then the base's own is changed, which both are
            other = not table.is_head
            found.setdefault(other, _Table(other, stored, None))
    return tuple(found.values())


def _spellings(module: str, ending: str) -> tuple[str, str]:
    own = module.removeprefix("model.")
    return f"base_model.model.model.{own}{ending}", f"base_model.model.{own}{ending}"


def _by_module(file: TensorFile, dora: bool, taken: Collection[str]) -> dict[str, dict[str, str]]:
    """The names of the tensors of each module but for those ``taken``, by what they are; of a DoRA
    its magnitudes too.
    """
    found: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        if name in taken:
            continue
        what = next((what for part, what in _NOT_YET.items() if part in name), None)
        if "modules_to_save" in name or (what and ".lora_" not in name and ".bias" not in name):
            what = _REPLACED
        if what is not None:
            raise ModelError(
                f"{file.path}: {name:.200} is {what}, which is not computed here; {FOLD}"
            )
        match = _NAME.fullmatch(name) if len(name) <= _LONGEST_NAME else None
        if match is None:
            raise ModelError(f"{file.path}: {name:.200} is no tensor of PEFT's LoRA")
        kind = match[2] or match[3]
        if found.setdefault(match[1], {}).setdefault(kind, name) != name:
            raise ModelError(f"{file.path} has {kind} of {match[1]} twice")
    if not found:
        raise ModelError(f"{file.path} holds no tensors")
    for module, names in found.items():
        if not {_DOWN, _UP} <= names.keys():
            raise ModelError(f"{file.path}: {module} has {next(iter(names))}, but not both")
        if (_MAGNITUDE in names) is not dora:
            says, has = ("true", "no") if dora else ("false", "a")
            raise ModelError(
                f"{file.path}: use_dora is {says}, but {module} has {has} {_MAGNITUDE}"
            )
    return found


def _rank(file: TensorFile, down: str, up: str, place: Adaptable) -> int:
    first, second = file.tensors[down], file.tensors[up]
    rank = first.shape[0] if first.shape else 0
    _check_shape(file, down, first, (rank, place.inputs))
    _check_shape(file, up, second, (place.outputs, rank))
    if not rank:
        raise ModelError(f"{file.path}: {down} is empty")
    return rank


def _check_magnitude(file: TensorFile, name: str, place: Adaptable) -> None:
    """ModelError: a DoRA magnitude has another shape, or needs norms that ranks have in parts."""
    _check_shape(file, name, file.tensors[name], (place.outputs,))
    if place.part.columns is not ALL:
        raise ModelError(
            f"{file.path}: {name} is DoRA of a projection whose inputs are divided among ranks, "
            f"which is not computed; serve it with one rank, or {FOLD}"
        )


def _lengths(module: Adaptable, update: Update) -> Tensor:
    """Lengths of the rows of W + scale up down, in float64: [outputs], with W as it is kept."""
    down, up = update.down.double(), update.scale * update.up.double()
    outputs, found = torch.arange(len(up)) + update.first_output, []
    step = max(1, _AT_ONCE // module.inputs)
    for ids, part in zip(torch.split(outputs, step), torch.split(up, step), strict=True):
        weights = module.product.rows(ids, module.dtype).double()
        found.append(torch.linalg.vector_norm(weights.addmm_(part, down), dim=1))
    return torch.cat(found)


def _rescaling(module: Adaptable, gains: Tensor) -> Tensor:
    """Gains of the outputs, and the shifts that restore what gains take from their biases."""
    nothing = torch.zeros((1, module.inputs), dtype=module.dtype)
    biases = module.product.floats(nothing)[0, module.first :][: len(gains)].double()
    return torch.stack([gains, (1 - gains) * biases]).float()


def _check_shape(file: TensorFile, name: str, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ModelError(
            f"{file.path}: {name} has shape {tensor.shape}, but this model asks for {shape}: the "
            "adapter is of another base"
        )


def _fingerprint(
    file: TensorFile, matrices: list[_Matrices], replaced: tuple[_Table, ...]
) -> bytes:
    """A hash of all in the adapter that a text can depend on."""
    scales = repr(([(one.down, one.scale) for one in matrices], *map(tuple, replaced)))
    return hashlib.sha256(file.digest + hashlib.sha256(scales.encode()).digest()).digest()


def _plain(module: str) -> str:
    """The name within the decoder, which some checkpoints leave out the outer name of."""
    return module.removeprefix("model.")

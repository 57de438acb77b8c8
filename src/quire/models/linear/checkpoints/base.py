"""What all formats of rounded checkpoints share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.core.errors import ModelError
from quire.kernels.packing import Format, Groups
from quire.models.parts import ALL, WHOLE, Rows, TensorPart, outward, within
from quire.models.shape import Scheme, StoredWeights
from quire.models.stored import ByGroups, Stored, in_columns
from quire.models.weights import Weights


class RoundedProjections(Protocol):
    """Reads the projections of a quantised checkpoint."""

    def holds(self, name: str) -> bool:
        """Whether this one is rounded; some are left as they were."""
        ...

    @property
    def code_bytes(self) -> Mapping[str, float]:
        """Memory for an element that is no float, by its type as safetensors calls it."""
        ...

    def read(
        self, name: str, inputs: int, outputs: int, rows: Rows = ALL, columns: slice = ALL
    ) -> Stored:
        """The projection called ``name``, with these numbers of inputs and outputs, or a part of
        it.

        rows: which outputs, in which order. columns: which inputs.

        Raises:
            ModelError: a tensor is missing, or is not what its format makes of these sizes.
        """
        ...


@dataclass(frozen=True)
class PartReader(ABC):
    """``RoundedProjections`` that reads of one what is wanted, in whole units."""

    weights: Weights

    def read(
        self, name: str, inputs: int, outputs: int, rows: Rows = ALL, columns: slice = ALL
    ) -> Stored:
        unit = 1 if columns is ALL else self.unit(name, inputs)
        outer = outward(columns, unit, inputs)
        found = self.read_part(name, inputs, outputs, rows, outer)
        return in_columns(found, within(outer, columns), self.weights.dtype)

    @abstractmethod
    def unit(self, name: str, inputs: int) -> int:
        """The number of inputs that can only be read together."""

    @abstractmethod
    def read_part(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        """Like ``read``, for columns in whole units."""


@dataclass(frozen=True)
class RoundedCheckpoint(PartReader):
    """A checkpoint and what its config says of it."""

    stored: StoredWeights

    @property
    def code_bytes(self) -> Mapping[str, float]:
        return {"I32": 4, "I8": 1}

    def fault(self, name: str, what: str) -> ModelError:
        """The error for a tensor or projection."""
        return ModelError(f"{self.weights.directory}: {name} {what}")

    def group(self, name: str, inputs: int, scheme: Scheme) -> int:
        """Inputs that share a scale.

        Raises:
            ModelError: they do not divide the inputs.
        """
        size = scheme.group or inputs
        if inputs % size:
            raise self.fault(
                name, f"has {inputs} inputs, which groups (group_size) of {size} do not divide"
            )
        return size

    def grouped(
        self,
        bits: int,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        order: Tensor | None = None,
        part: TensorPart = WHOLE,
    ) -> Stored:
        """(codes - zeros) * scales as it is if kernels can have it so, or else as floats.

        codes [out, in] and zeros [out, groups] uint8 of this many bits, scales [out, groups].
        Kernels need whole lines of inputs in a group, and keep scales in float16.

        part: the outputs and groups of the codes, on which the form does not depend.
        """
        form, half = (Format.int4, 8) if bits <= 4 else (Format.grouped_int8, 128)
        if zeros is None and 1 << (bits - 1) != half:
            zeros = torch.full_like(scales, 1 << (bits - 1), dtype=torch.uint8)
        if zeros is not None and bool((zeros == half).all()):
            zeros = None
        groups = Groups(part.of(scales), None if zeros is None else part.of(zeros))
        weight = ByGroups(form, codes, groups, order)
        kept = scales.half().float()
        near = (kept - scales.float()).abs() <= scales.float().abs() * 2**-11
        if weight.group % form.inputs_per_unit or not bool(near.all()):
            return weight.floats(self.weights.dtype)
        return weight


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """[n, m] int32 -> [n, 32 / bits * m] uint8: codes of 2, 4 or 8 bits, from the low end on."""
    codes = packed.contiguous().view(torch.uint8)
    while codes.shape[1] < packed.shape[1] * (32 // bits):
        wide = 8 * packed.shape[1] * 4 // codes.shape[1]
        half = wide // 2
        codes = torch.stack([codes & (1 << half) - 1, codes >> half], dim=2).flatten(1)
    return codes


def in_order(group_of: Tensor, size: int) -> Tensor | None:
    """group_of [in] -> the inputs [in] by groups of ``size``; None: they are so already.

    Raises:
        ValueError: a group has more or fewer inputs, or is none.
    """
    groups = group_of.long()
    wanted = torch.arange(len(groups)) // size
    if torch.equal(groups, wanted):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], wanted):
        raise ValueError(f"does not put {size} inputs into each of {len(groups) // size} groups")
    return order

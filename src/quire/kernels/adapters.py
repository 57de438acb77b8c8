"""What adapters (LoRA) add to products: as data, and as the C++ has it (csrc/adapters.hpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

PANEL = 16


class Site(IntEnum):
    """A product of a layer; the values are ``Walk::Projection`` in C++."""

    qkv = 0
    output = 1
    up = 2
    down = 3


class Update(NamedTuple):
    """Added to neighbouring outputs of a product of x: scale * (x downᵀ) upᵀ."""

    first_output: int
    down: Tensor  # [rank, in]
    up: Tensor  # [outputs, rank]
    scale: float


Updates = Mapping[tuple[int, Site], Sequence[Update]]
"""All that an adapter does, by layer and product: to each output at most once."""


class AdaptedRows(NamedTuple):
    """Rows of a step that are changed by one adapter."""

    ranges: tuple[tuple[int, int], ...]  # from, up to
    adapter: Any  # as ``Kernels.keep_adapter`` gave it


def packed_bytes(rank: int, inputs: int, outputs: int, dtype: torch.dtype) -> int:
    """Memory that an update of that rank takes."""
    down, up = _whole(rank) * _whole(inputs, 4), _whole(rank, 4) * _whole(outputs)
    return dtype.itemsize * (down + up) + 4 * _whole(rank)


def panels(weight: Tensor) -> Tensor:
    """weight [out, in] -> [panels, inputs, 16], filled up with zeros to whole fours of inputs."""
    outputs, inputs = weight.shape
    filled = (0, _whole(inputs, 4) - inputs, 0, _whole(outputs) - outputs)
    padded = torch.nn.functional.pad(weight, filled)
    return padded.view(-1, PANEL, padded.shape[1]).transpose(1, 2).contiguous()


class PackedUpdates:
    """An adapter's updates for the C++ kernels; keeps their tensors alive."""

    def __init__(self, native: Any, updates: Updates, dtype: torch.dtype) -> None:
        """native: an ``Adapter`` of the C++ module, to be filled."""
        self.native = native
        self._tensors: list[Tensor] = []
        for (layer, site), of_product in updates.items():
            self._set(len(Site) * layer + site, of_product, dtype)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def _set(self, product: int, updates: Sequence[Update], dtype: torch.dtype) -> None:
        downs, scales, parts, first_rank = [], [], [], 0
        for first_output, down, up, scale in updates:
            outputs, rank = up.shape
            downs.append(panels(down.to(dtype)))
            scales.append(torch.full((_whole(rank),), scale, dtype=torch.float32))
            ups = panels(up.to(dtype))
            parts.append((first_output, outputs, first_rank, rank, ups.data_ptr()))
            first_rank += _whole(rank)
            self._tensors.append(ups)
        stacked, scaling = torch.cat(downs), torch.cat(scales)
        self._tensors += (stacked, scaling)
        inputs = updates[0].down.shape[1]
        self.native.set(product, inputs, first_rank, stacked.data_ptr(), scaling.data_ptr(), parts)


def _whole(count: int, of: int = PANEL) -> int:
    return -(-count // of) * of

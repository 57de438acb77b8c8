"""What adapters (LoRA) do to products: as data, and as C++ has it (csrc/layers/adapters.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.kernels.pages import HugePages

PANEL = 16
_FOUR_LINES = 16  # bytes of an output


class Site(IntEnum):
    """A product of a layer; the values are ``Walk::Projection`` in C++."""

    qkv = 0
    output = 1
    up = 2
    down = 3


class Update(NamedTuple):
    """Added to neighbouring outputs of a product of x: scale * (x downᵀ) upᵀ.

    Of a DoRA each sum is then multiplied by a gain, and a shift is added.
    """

    first_output: int
    down: Tensor  # [rank, in]
    up: Tensor  # [outputs, rank]
    scale: float
    rescaling: Tensor | None = None  # [2, outputs] float32: gains, shifts


Updates = Mapping[tuple[int, Site], Sequence[Update]]
"""All that an adapter does, by layer and product: to each output at most once."""


class OwnTables(NamedTuple):
    """What an adapter has in the place of the model's own (PEFT's ``modules_to_save``)."""

    rows: Callable[[Tensor], Tensor] | None = None  # ids of tokens [n] -> their vectors [n, d]
    logits: Callable[[Tensor], Tensor] | None = None  # states [n, d] -> float32 [n, V]


class AdaptedRows(NamedTuple):
    """Rows of a step that are changed by one adapter."""

    ranges: tuple[tuple[int, int], ...]  # from, up to
    adapter: Any  # as ``Kernels.keep_adapter`` gave it
    tables: OwnTables = OwnTables()


def packed_bytes(rank: int, inputs: int, outputs: int, dtype: torch.dtype) -> int:
    """Memory that an update of that rank takes, with gains and shifts."""
    fours = _FOUR_LINES // dtype.itemsize
    down, up = _whole(rank) * _whole(inputs, fours), _whole(rank, fours) * _whole(outputs)
    return dtype.itemsize * (down + up) + 4 * (_whole(rank) + 2 * _whole(outputs))


def panels(weight: Tensor) -> Tensor:
    """weight [out, in] -> [panels, lines, 16] int32, filled up with zeros to four whole lines."""
    outputs, inputs = weight.shape
    whole = _whole(inputs, _FOUR_LINES // weight.itemsize)
    padded = torch.nn.functional.pad(weight, (0, whole - inputs, 0, _whole(outputs) - outputs))
    lanes = padded.contiguous().view(torch.int32)
    return lanes.view(-1, PANEL, lanes.shape[1]).transpose(1, 2).contiguous()


class PackedUpdates:
    """An adapter's updates for the C++ kernels, in the order in which they are read."""

    def __init__(self, native: Any, updates: Updates, dtype: torch.dtype) -> None:
        """native: an ``Adapter`` of the C++ module, to be filled."""
        self.native = native
        self.nbytes = sum(
            packed_bytes(len(one.down), one.down.shape[1], len(one.up), dtype)
            for several in updates.values()
            for one in several
        )
        self._left = self._memory = HugePages.of(self.nbytes)
        for (layer, site), of_product in sorted(updates.items()):
            self._set(len(Site) * layer + site, of_product, dtype)

    def _set(self, product: int, updates: Sequence[Update], dtype: torch.dtype) -> None:
        downs = [panels(one.down.to(dtype)) for one in updates]
        address, parts, first_rank = self._put(torch.cat(downs)), [], 0
        for one in updates:
            outputs, rank = one.up.shape
            lines = panels(one.up.to(dtype))
            where = one.first_output, outputs, first_rank, lines.shape[1], self._put(lines)
            parts.append((*where, *self._put_rescaling(one.rescaling)))
            first_rank += _whole(rank)
        scales = [torch.full((_whole(one.up.shape[1]),), one.scale) for one in updates]
        sizes = updates[0].down.shape[1], first_rank, downs[0].shape[1]
        self.native.set(product, *sizes, address, self._put(torch.cat(scales)), parts)

    def _put_rescaling(self, rescaling: Tensor | None) -> tuple[int, int]:
        """Addresses of gains and shifts, in whole panels; 0 for an update without them."""
        if rescaling is None:
            return 0, 0
        padding = _whole(rescaling.shape[1]) - rescaling.shape[1]
        gains, shifts = torch.nn.functional.pad(rescaling, (0, padding))
        return self._put(gains), self._put(shifts)

    def _put(self, tensor: Tensor) -> int:
        """Copy a tensor to the packed memory; its address there."""
        place, self._left = self._left[: tensor.nbytes], self._left[tensor.nbytes :]
        place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return int(place.data_ptr())


def _whole(count: int, of: int = PANEL) -> int:
    return -(-count // of) * of

"""Memory for weights in large pages: fewer of them for the processor to look up."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_CHUNK = 64 << 20  # bytes
_ALIGNMENT = 64


class HugePages:
    """Deals tensors out of a few large pieces of memory, one after the other.

    NumPy asks the system for huge pages for arrays of 4 MiB and more, which most weights are not.
    A piece lives as long as any tensor in it; of the last one only what is used takes memory.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """An int32 tensor, contiguous and aligned to cache lines, that holds anything."""
        nbytes = math.prod(shape) * torch.int32.itemsize
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._left):
            memory = torch.from_numpy(np.empty(max(size, _CHUNK) + _ALIGNMENT, dtype=np.uint8))
            self._left = memory[-memory.data_ptr() % _ALIGNMENT :]
        place, self._left = self._left[:nbytes], self._left[size:]
        return place.view(torch.int32).view(shape)

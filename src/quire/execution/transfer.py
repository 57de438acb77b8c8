"""To a device and back without waiting for what it computes meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """``values``, which are in main memory, where ``device`` will see them when it gets there."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


class Readback:
    """The values of tensors, on their way to main memory in one transfer."""

    def __init__(self, *tensors: Tensor) -> None:
        """Of a GPU's, those of larger types come first, so that all are aligned."""
        self._tensors: Sequence[Tensor] = tensors
        self._bytes, self._arrived = None, None
        if tensors[0].is_cuda:
            together = torch.cat([tensor.flatten().view(torch.uint8) for tensor in tensors])
            self._bytes = together.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def tolist(self) -> list[list[Any]]:
        """Waits for them: a list for each tensor."""
        return [tensor.tolist() for tensor in self.tensors()]

    def tensors(self) -> Sequence[Tensor]:
        """Waits for them: what they hold, in main memory."""
        if self._bytes is None or self._arrived is None:
            return self._tensors
        self._arrived.synchronize()
        return unpacked(self._bytes, self._tensors)


def unpacked(together: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the types and shapes of ``like`` whose bytes, uint8, are one after the other."""
    parts = torch.split(together, [tensor.nbytes for tensor in like])
    return [
        part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)
    ]

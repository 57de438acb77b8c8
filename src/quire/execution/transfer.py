"""To a device and back without waiting for what it computes meanwhile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """``values``, which are in main memory, where ``device`` will see them when it gets there."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


class Readback:
    """The values of a tensor, on their way to main memory."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._arrived = values, None
        if values.is_cuda:
            self._values = values.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def tolist(self) -> list[Any]:
        """Waits for them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()

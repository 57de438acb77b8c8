"""What makes a host wait for its GPU, refused on the CPU.

CUDA does not allow it while launches are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class AsksTheDeviceError(AssertionError):
    """The host would have to wait for a number, or to bring one."""


_ASKING = {
    "_local_scalar_dense",  # item(), bool(), and the like
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
}


_BRINGING = {"lift_fresh"}  # torch.tensor() of numbers that the host has


class _Rules(TorchDispatchMode):
    def __init__(self, refused: set[str]) -> None:
        super().__init__()
        self._refused = refused

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, named = func.overloadpacket.__name__, kwargs or {}
        counted = name == "repeat_interleave" and named.get("output_size") is None
        indices = args[1] if name in ("index", "index_put_") else ()
        masked = any(index is not None and index.dtype == torch.bool for index in indices)
        if name in self._refused or counted or masked:
            raise AsksTheDeviceError(f"{func} waits for the device")
        return func(*args, **named)


@contextmanager
def capture_rules(bringing: bool = False) -> Iterator[None]:
    """Meanwhile tensors count as a device's, whose contents the host must not ask for.

    bringing: it may bring numbers of its own there.
    """

    def refuse(self: torch.Tensor) -> Any:
        raise AsksTheDeviceError("tolist() waits for the device")

    original = torch.Tensor.tolist
    torch.Tensor.tolist = refuse  # type: ignore[method-assign, assignment]
    try:
        with _Rules(_ASKING if bringing else _ASKING | _BRINGING):
            yield
    finally:
        torch.Tensor.tolist = original  # type: ignore[method-assign]

"""Main memory that a GPU reads and writes by itself."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.execution.free_memory import free_memory

_PORTABLE = 1  # cudaHostRegisterPortable


def swap_memory(size: int, device: torch.device) -> Tensor:
    """``size`` bytes, uint8, that stay where they are for as long as this very tensor lives.

    PyTorch's own pinned tensors take the next power of two, and keep it when they are gone.

    Raises:
        ConfigError: there is not so much, or it cannot be pinned.
    """
    free = free_memory()
    if size > free:
        raise ConfigError(
            f"swap_space: {size:,} bytes of main memory are to be taken for good, and only "
            f"{free:,} are free"
        )
    memory = torch.empty(size, dtype=torch.uint8)
    if device.type == "cuda":
        driver, address = torch.cuda.cudart(), memory.data_ptr()  # type: ignore[no-untyped-call]
        error = int(driver.cudaHostRegister(address, size, _PORTABLE))
        if error:
            raise ConfigError(
                f"swap_space: {size:,} bytes of main memory cannot be pinned (CUDA error {error}): "
                "lower it, or raise the limit of locked memory (ulimit -l)"
            )
        weakref.finalize(memory, driver.cudaHostUnregister, address)
    return memory

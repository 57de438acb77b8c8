"""Where an engine computes, as one value: what it has room for, and its executor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch

from quire.errors import ModelError
from quire.execution.executor import ModelExecutor
from quire.execution.forward import DirectForward
from quire.execution.kv_cache import KVCache
from quire.execution.lanes import Lane
from quire.execution.measure import measure_recovery
from quire.execution.memory_budget import FREE_MEMORY_SHARE, free_memory
from quire.execution.worker import Worker
from quire.kernels.dispatch import choose_kernels
from quire.model import Model
from quire.scheduling import RecoveryCosts


class Room(NamedTuple):
    """Memory for the KV pool."""

    free: int  # bytes
    share: float  # of them that the pool takes if nobody says otherwise


class Placement(Protocol):
    """A device and what is put on it, in this order: admit and load, room, executor."""

    device: torch.device
    host_blocks: str  # where swapped blocks are, for people
    asynchronous: bool  # whether it computes while the thread that launched it does something else

    def turn(self) -> AbstractContextManager[None]:
        """To be held from before the model is loaded until the executor is there."""
        ...

    def admit(self, weight_bytes: int) -> None:
        """ModelError if weights of that size cannot be loaded."""
        ...

    def room(self, model: Model, kv_dtype: torch.dtype) -> Room:
        """ConfigError if there is none."""
        ...

    def executor(self, model: Model, lanes: Sequence[Lane], kv_dtype: torch.dtype) -> ModelExecutor:
        """An executor with a pool of ``lanes``. ConfigError if there is not enough memory."""
        ...

    def recovery_costs(self) -> RecoveryCosts:
        """Measured on the executor's lanes, which must have host blocks and be unused."""
        ...


class OnCPU:
    """In main memory, with the host blocks in a file."""

    device = torch.device("cpu")
    host_blocks = "on disk"
    asynchronous = False

    def __init__(self, block_size: int, swap_path: str | None) -> None:
        self._block_size = block_size
        self._swap_path = swap_path

    def turn(self) -> AbstractContextManager[None]:
        """See ``Placement.turn``."""
        return nullcontext()

    def admit(self, weight_bytes: int) -> None:
        """See ``Placement.admit``."""
        free = free_memory()
        if weight_bytes > free:
            raise ModelError(
                f"loading the model takes {weight_bytes:,} bytes of memory, but only {free:,} are "
                "free: choose a smaller model, --dtype bfloat16 if it is float32, or --quantization"
            )

    def room(self, model: Model, kv_dtype: torch.dtype) -> Room:
        """See ``Placement.room``."""
        return Room(free_memory(), FREE_MEMORY_SHARE)

    def executor(self, model: Model, lanes: Sequence[Lane], kv_dtype: torch.dtype) -> ModelExecutor:
        """See ``Placement.executor``."""
        kernels = choose_kernels(model.dtype)
        self._lanes, self._max_positions = lanes, model.max_positions
        self._kv_cache = KVCache(
            model.kv_shapes, lanes, self._block_size, kv_dtype, kernels, self._swap_path
        )
        forward = DirectForward(model, self._kv_cache.layers, kernels)
        self._executor = ModelExecutor(Worker(model, self._kv_cache, forward, kernels))
        return self._executor

    def recovery_costs(self) -> RecoveryCosts:
        """See ``Placement.recovery_costs``."""
        return measure_recovery(
            self._executor, self._kv_cache, self._lanes, self._block_size, self._max_positions
        )

"""Where an engine computes, as one value: what it has room for, and its executor."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from quire.capacity import FREE_MEMORY_SHARE, EngineLimits, MemoryBudget
from quire.errors import ModelError
from quire.execution.executor import ModelExecutor
from quire.execution.forward import DirectForward
from quire.execution.free_memory import free_memory
from quire.execution.kv.cache import KVCache
from quire.execution.measure import measure_recovery
from quire.execution.worker import Worker
from quire.kernels.dispatch import choose_kernels
from quire.kernels.instructions import Instructions
from quire.model import Model
from quire.protocol import RecoveryCosts


class DeviceRuntime(Protocol):
    """A device and what is put on it, in this order: admit and load, room, executor."""

    device: torch.device
    host_blocks: str  # where swapped blocks are, for people
    kernels: str  # what computes, for people
    instruction_set: str  # of the kernels in main memory; empty: the best
    asynchronous: bool  # whether it computes while the thread that launched it does something else

    def start_up_lock(self) -> AbstractContextManager[None]:
        """To be held from before the model is loaded until the executor is there."""
        ...

    def admit(self, weight_bytes: int) -> None:
        """ModelError if weights of that size cannot be loaded."""
        ...

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        """Memory for a pool, the size of which ``limits`` do not know. ConfigError: none."""
        ...

    def executor(self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype) -> ModelExecutor:
        """An executor with the pool of ``limits``. ConfigError if there is not enough memory."""
        ...

    def recovery_costs(self) -> RecoveryCosts:
        """Measured on the executor's pool, which must have host blocks and be unused."""
        ...


class OnCPU:
    """In main memory, with the host blocks in a file."""

    device = torch.device("cpu")
    host_blocks = "on disk"
    asynchronous = False

    def __init__(self, swap_path: str | None, instructions: Instructions) -> None:
        self._swap_path = swap_path
        self.kernels, self.instruction_set = instructions.describe(), instructions.name

    def start_up_lock(self) -> AbstractContextManager[None]:
        """See ``DeviceRuntime.start_up_lock``."""
        return nullcontext()

    def admit(self, weight_bytes: int) -> None:
        """See ``DeviceRuntime.admit``."""
        free = free_memory()
        if weight_bytes > free:
            raise ModelError(
                f"loading the model takes {weight_bytes:,} bytes of memory, but only {free:,} are "
                "free: choose a smaller model, --dtype bfloat16 if it is float32, or --quantization"
            )

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        """See ``DeviceRuntime.memory_budget``."""
        return MemoryBudget(free_memory(), FREE_MEMORY_SHARE)

    def executor(self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype) -> ModelExecutor:
        """See ``DeviceRuntime.executor``."""
        kernels = choose_kernels(model.dtype, self.instruction_set)
        self._limits, self._max_positions = limits, model.max_positions
        self._kv_cache = KVCache(
            model.kv_shapes, limits.kv_groups, limits.block_size, kv_dtype, kernels, self._swap_path
        )
        forward = DirectForward(model, self._kv_cache.layers, kernels)
        self._executor = ModelExecutor(Worker(model, self._kv_cache, forward, kernels))
        return self._executor

    def recovery_costs(self) -> RecoveryCosts:
        """See ``DeviceRuntime.recovery_costs``."""
        limits = self._limits
        return measure_recovery(
            self._executor, self._kv_cache, limits.kv_groups, limits.block_size, self._max_positions
        )

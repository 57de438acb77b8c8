"""Where an engine computes, as one value: what it has room for, and its executor."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from quire.core.errors import DOCTOR, ModelError
from quire.core.limits import EngineLimits
from quire.core.memory import BlockSource
from quire.core.protocol import Adapter, RecoveryCosts
from quire.execution.adapters import StepAdapters
from quire.execution.executor import ModelExecutor, StepDrafts
from quire.execution.forward import DirectForward, Forward, Worker
from quire.execution.free_memory import free_memory
from quire.execution.kv.cache import KVCache
from quire.execution.measure import measure_recovery
from quire.execution.memory_limits import FREE_MEMORY_SHARE, MemoryBudget
from quire.execution.promises import Claim
from quire.kernels.dispatch import choose_kernels
from quire.kernels.instructions import Instructions
from quire.kernels.layer_memory import KVShape, StateShape
from quire.kernels.ops import Kernels
from quire.models.base import Model


class Draft(NamedTuple):
    """A loaded model that drafts for another, whose layers are the pool's last ones.

    make: makes the drafter, of the worker that computes it and the target's vocab_size.
    """

    model: Model
    kv_dtype: torch.dtype
    make: Callable[[Worker, int], StepDrafts]

    @property
    def own_shapes(self) -> list[KVShape | StateShape]:
        """What the draft model's layers keep; nothing of drafts, see ``CacheShape.with_draft``."""
        kept = self.model.kv_shapes
        return [one._replace(columns=0) if isinstance(one, StateShape) else one for one in kept]


class DeviceRuntime(Protocol):
    """A device and what is put on it, in this order: admit and load, room, executor."""

    device: torch.device
    host_blocks: str  # where swapped blocks are, for people
    kernels: str  # what computes, for people
    instruction_set: str  # of the kernels in main memory; empty: the best
    asynchronous: bool  # whether it computes while the thread that launched it does something else
    warm_seconds: float | None  # for touching the pool's memory; None: it was not

    @property
    def counts_others(self) -> bool:
        """Whether what other engines will take of main memory does not count as free."""
        ...

    def start_up_lock(self) -> AbstractContextManager[None]:
        """A lock to hold from before the model is loaded until the executor is there."""
        ...

    def admit(self, weight_bytes: int) -> None:
        """ModelError if weights of that size cannot be loaded."""
        ...

    def settling(self) -> AbstractContextManager[None]:
        """A lock to hold from before ``memory_budget`` until ``promise``.

        Else another engine might be promised the same memory.
        """
        ...

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        """Memory for a pool, the size of which ``limits`` do not know. ConfigError: none."""
        ...

    def promise(self, kept: int, files: int) -> None:
        """Announce main memory that the engine will take over time; others count it as taken.

        files: bytes of files in memory that are there once there is an executor.
        """
        ...

    def executor(
        self,
        model: Model,
        limits: EngineLimits,
        kv_dtype: torch.dtype,
        draft: Draft | None = None,
        adapters: Mapping[Adapter, Any] | None = None,
        source: BlockSource | None = None,
    ) -> ModelExecutor:
        """An executor with the pool of ``limits``. ConfigError if there is not enough memory.

        adapters: the weights of those that are in memory at any time.
        source: where blocks are fetched from and stored.
        """
        ...

    def recovery_costs(self) -> RecoveryCosts:
        """Measured on the executor's pool, which must be unused."""
        ...


class OnCPU:
    """A ``DeviceRuntime``: in main memory, with the host blocks in a file.

    ranks_here: processes that share this machine's memory, of which this is one.
    warm_up: touch the pool's memory before the executor is there.
    """

    device = torch.device("cpu")
    host_blocks = "on disk"
    asynchronous = False

    warm_seconds: float | None = None

    def __init__(
        self,
        swap_path: str | None,
        instructions: Instructions,
        ranks_here: int = 1,
        warm_up: bool = False,
    ) -> None:
        self._swap_path = swap_path
        self._ranks_here = ranks_here
        self._warm_up = warm_up
        self._claim = Claim()
        self._kept = 0
        self._free_at_first = self._free()  # they all load at the same time
        self.instructions = instructions
        self.kernels, self.instruction_set = instructions.describe(), instructions.name

    def start_up_lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def counts_others(self) -> bool:
        return self._claim.is_told

    def admit(self, weight_bytes: int) -> None:
        """See ``DeviceRuntime.admit``. Each is loaded before the next is asked for."""
        with self._claim.settling():
            # Ranks load at the same time: what others are promised counts, where that is known.
            free = free_memory() if self._claim.is_told else self._free_at_first
            if weight_bytes > free:
                raise ModelError(
                    f"loading the model takes {weight_bytes:,} bytes of memory, but only {free:,} "
                    "are free: choose a smaller model, --dtype bfloat16 if it is float32, or "
                    f"--quantization; {DOCTOR}"
                )
            self._claim.promise(weight_bytes)

    def settling(self) -> AbstractContextManager[None]:
        return self._claim.settling()

    def promise(self, kept: int, files: int) -> None:
        self._kept = kept
        self._claim.promise(kept + files)

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        return MemoryBudget(self._free(), FREE_MEMORY_SHARE)

    def executor(
        self,
        model: Model,
        limits: EngineLimits,
        kv_dtype: torch.dtype,
        draft: Draft | None = None,
        adapters: Mapping[Adapter, Any] | None = None,
        source: BlockSource | None = None,
    ) -> ModelExecutor:
        kernels = choose_kernels(model.dtype, self.instruction_set)
        self._limits, self._max_positions = limits, model.max_positions
        shapes, dtypes = [*model.kv_shapes], [kv_dtype] * len(model.kv_shapes)
        if draft is not None:
            shapes += draft.own_shapes
            dtypes += [draft.kv_dtype] * len(draft.model.kv_shapes)
        self._kv_cache = KVCache(
            shapes, limits.kv_groups, limits.block_size, dtypes, kernels, self._swap_path, source
        )
        weakref.finalize(self._kv_cache, self._claim.give_up)
        self._claim.promise(self._kept)  # files are there
        if self._warm_up:
            self.touch_pool()
        own_adapters = None if adapters is None else StepAdapters(adapters)
        forward = self._forward(model, 0, kernels, own_adapters)
        worker, draft_model = self._make_worker(model, forward, kernels, own_adapters), None
        if draft is not None:
            own = choose_kernels(draft.model.dtype, self.instruction_set)
            forward = self._forward(draft.model, len(model.kv_shapes), own)
            draft_worker = Worker(draft.model, self._kv_cache, forward, own)
            draft_model = draft.make(draft_worker, model.vocab_size)
        self._executor = ModelExecutor(worker, draft_model, own_adapters)
        return self._executor

    def touch_pool(self) -> None:
        """Take the memory of the executor's pool now."""
        start = time.perf_counter()
        self._kv_cache.touch()
        self.warm_seconds = time.perf_counter() - start

    def _forward(
        self, model: Model, first: int, kernels: Kernels, adapters: StepAdapters | None = None
    ) -> Forward:
        """The forward pass of a model whose layers are those of the pool from ``first`` on."""
        layers = self._kv_cache.layers[first : first + len(model.kv_shapes)]
        return DirectForward(model, layers, kernels, adapters)

    def _make_worker(
        self, model: Model, forward: Forward, kernels: Kernels, adapters: StepAdapters | None
    ) -> Worker:
        """A worker for the model that is served."""
        return Worker(model, self._kv_cache, forward, kernels)

    def _free(self) -> int:
        return free_memory() // self._ranks_here

    def recovery_costs(self) -> RecoveryCosts:
        limits = self._limits
        return measure_recovery(
            self._executor, limits.kv_groups, limits.block_size, self._max_positions
        )

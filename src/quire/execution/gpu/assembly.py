"""An engine's parts on an NVIDIA GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from quire.core.kv_groups import KVGroup
from quire.core.limits import EngineLimits
from quire.core.memory import BlockSource
from quire.core.protocol import Adapter, RecoveryCosts, Step
from quire.execution.device_runtime import Draft
from quire.execution.executor import ModelExecutor
from quire.execution.forward import Worker
from quire.execution.gpu.forward import DeviceForward
from quire.execution.gpu.graphs import CUDARecorder, NoRecorder, step_sizes
from quire.execution.gpu.inputs import DeviceInputs
from quire.execution.gpu.kv_cache import DeviceKVCache
from quire.execution.gpu.memory import (
    CUDAMemory,
    MemoryPlan,
    one_at_a_time,
    run_or_refuse,
    worst_step,
)
from quire.execution.measure import measure_recovery
from quire.execution.memory_limits import MemoryBudget
from quire.kernels.gpu.kernels import GPUKernels
from quire.kernels.gpu.support import check_cache_dtype, check_model
from quire.models.base import Model


class _Parts(NamedTuple):
    executor: ModelExecutor
    forward: DeviceForward
    kv_cache: DeviceKVCache


class OnGPU:
    """A ``DeviceRuntime``: on a CUDA device, with the host blocks in pinned main memory."""

    host_blocks = "in main memory"
    asynchronous = True
    warm_seconds: float | None = None  # its memory is there from the start
    kernels = "Triton"
    instruction_set = ""
    counts_others = False

    def __init__(self, device: torch.device, utilization: float, enforce_eager: bool) -> None:
        """utilization: share of the device's memory that may be taken."""
        self.device = device
        self._utilization = utilization
        self._enforce_eager = enforce_eager

    @contextmanager
    def start_up_lock(self) -> Iterator[None]:
        name = str(torch.cuda.get_device_properties(self.device).uuid)
        with one_at_a_time(name):
            self._plan = MemoryPlan(CUDAMemory(self.device), self._utilization)
            yield

    def admit(self, weight_bytes: int) -> None:
        self._plan.check_weights(weight_bytes)

    def settling(self) -> AbstractContextManager[None]:
        """See ``DeviceRuntime.settling``: nobody else starts on the device."""
        return nullcontext()

    def promise(self, kept: int, files: int) -> None:
        """See ``DeviceRuntime.promise``: main memory is taken at once."""

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        """See ``DeviceRuntime.memory_budget``.

        Computes the largest step in a pool of one block a KV group.
        """
        traits = torch.cuda.get_device_properties(self.device)
        check_cache_dtype(kv_dtype, traits.name, (traits.major, traits.minor))
        check_model(model.kv_shapes, model.dtype)
        smallest = limits.with_blocks(1)
        return MemoryBudget(
            self._plan.pool_bytes(lambda: self._tried(model, smallest, kv_dtype)), 1.0
        )

    def executor(
        self,
        model: Model,
        limits: EngineLimits,
        kv_dtype: torch.dtype,
        draft: Draft | None = None,
        adapters: Mapping[Adapter, Any] | None = None,
        source: BlockSource | None = None,
    ) -> ModelExecutor:
        """See ``DeviceRuntime.executor``. The largest step is computed once more, to be sure."""
        assert draft is None and adapters is None and source is None, (
            "refused before anything is loaded"
        )
        self._limits, self._max_positions = limits, model.max_positions
        self.parts = run_or_refuse(lambda: self._tried(model, limits, kv_dtype))
        return self.parts.executor

    def recovery_costs(self) -> RecoveryCosts:
        return measure_recovery(
            self.parts.executor,
            self._limits.kv_groups,
            self._limits.block_size,
            min(self._limits.max_num_batched_tokens, self._max_positions),
            lambda: torch.cuda.synchronize(self.device),
        )

    def _tried(self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype) -> _Parts:
        """Parts that have computed the largest step."""
        parts = self._assemble(model, limits, kv_dtype)
        step = worst_step(
            limits.max_num_batched_tokens,
            limits.max_num_seqs,
            model.max_positions,
            limits.block_size,
            [one.num_sink_blocks(limits.block_size) for one in _paged(limits.kv_groups)],
            limits.kv_groups[-1].state is not None,
        )
        parts.executor.submit(step).collect()
        parts.executor.submit(Step(closed=[opened.seq_id for opened in step.opened]))
        return parts

    def _assemble(self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype) -> _Parts:
        kv_groups, paged = limits.kv_groups, _paged(limits.kv_groups)
        check_model(model.kv_shapes, model.dtype)
        kv_cache = DeviceKVCache(
            model.kv_shapes, kv_groups, limits.block_size, kv_dtype, self.device
        )
        inputs = DeviceInputs(
            self.device,
            limits.max_num_batched_tokens,
            limits.max_num_seqs,
            max((_widest(one, model, limits.block_size) for one in paged), default=0),
            [one.num_sink_blocks(limits.block_size) for one in paged],
            limits.block_size,
            len(paged) < len(kv_groups),
        )
        kernels = GPUKernels.on(self.device)
        forward = DeviceForward(model, kv_cache.layers, kernels, inputs)
        if model.replayable:
            recorder = NoRecorder() if self._enforce_eager else CUDARecorder()
            sizes = step_sizes(limits.max_num_seqs, limits.max_num_batched_tokens)
            forward.record(sizes, recorder)
        return _Parts(ModelExecutor(Worker(model, kv_cache, forward, kernels)), forward, kv_cache)


def _paged(kv_groups: Sequence[KVGroup]) -> list[KVGroup]:
    """Those that keep tokens. States come last."""
    return [one for one in kv_groups if one.state is None]


def _widest(kv_group: KVGroup, model: Model, block_size: int) -> int:
    """Most blocks of a sequence in a KV group, whose window may let it go on for ever."""
    whole = math.ceil(model.max_positions / block_size)
    if kv_group.window is None:
        return whole
    return max(
        whole, kv_group.window.seq_blocks(block_size) + kv_group.window.step_blocks(block_size)
    )

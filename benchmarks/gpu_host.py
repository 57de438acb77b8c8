"""What the host does in a decode step on a GPU: milliseconds, without a GPU.

    python benchmarks/gpu_host.py

The engine is put together as on a GPU, over a model that computes nothing: its launches return at
once, the rest is what the host does for each step. While a GPU computes a step, the host plans,
lays out and launches the next one and turns the tokens of the one before into text: it keeps up
if that takes less than the step. Beside it, what a step of an 8B model in bfloat16 takes at least
on an H100: the time to read its weights and 500 tokens of cache a sequence.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from clock import Clock
from torch import Tensor

from quire import LLM, SamplingParams
from quire.core.limits import EngineLimits
from quire.core.protocol import RecoveryCosts
from quire.core.scheduling import Scheduler
from quire.engine.assembly import engine as assembly
from quire.engine.engine import Engine
from quire.execution.executor import ModelExecutor
from quire.execution.forward import Worker
from quire.execution.gpu.forward import DeviceForward
from quire.execution.gpu.graphs import step_sizes
from quire.execution.gpu.inputs import DeviceInputs
from quire.execution.kv.cache import KVCache
from quire.execution.memory_limits import MemoryBudget
from quire.kernels.reference import ReferenceKernels
from quire.models.base import Model

SIZES = (1, 8, 64, 256)
STEPS, WARM_UP = 60, 10
BLOCK_SIZE = 16
WEIGHTS, KV_BYTES, BANDWIDTH = 15.0e9, 131_072, 3.0e12  # bytes; of a token; a second, as a copy
CONTEXT = 500


class Instant:
    """A model whose launches do nothing."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._logits = torch.randn(max(SIZES), 64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, token_ids: Tensor, *rest: Any) -> Tensor:
        return torch.zeros(len(token_ids), 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits[: len(hidden)]


class Once:
    """A ``Recorder`` whose replays return what the recording gave."""

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        result = compute()
        return lambda: result


class NoDevice:
    """``OnGPU`` without the GPU."""

    device = torch.device("cpu")
    host_blocks = "nowhere"
    kernels, instruction_set = "none", ""
    asynchronous = True
    warm_seconds = None
    counts_others = False

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs

    def start_up_lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def admit(self, weight_bytes: int) -> None:
        pass

    def settling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def promise(self, kept: int, files: int) -> None:
        pass

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        return MemoryBudget(2**30, 1.0)

    def executor(
        self,
        model: Model,
        limits: EngineLimits,
        kv_dtype: torch.dtype,
        draft: None = None,
        adapters: None = None,
        source: None = None,
    ) -> ModelExecutor:
        instant: Any = Instant(model)
        kernels = ReferenceKernels()
        cache = KVCache(model.kv_shapes, limits.kv_groups, BLOCK_SIZE, kv_dtype, kernels, None)
        inputs = DeviceInputs(self.device, 8192, self._max_num_seqs, 128, [0], BLOCK_SIZE)
        forward = DeviceForward(instant, cache.layers, kernels, inputs)
        forward.record(step_sizes(self._max_num_seqs, 8192), Once())
        return ModelExecutor(Worker(instant, cache, forward, kernels))

    def recovery_costs(self) -> RecoveryCosts:
        return RecoveryCosts(0.0, 0.0)  # nothing is swapped


def measure(clock: Clock, num_seqs: int, params: SamplingParams) -> dict[str, float]:
    """Each part's milliseconds a step, medians, in which a rare pause does not count."""
    assembly._choose_runtime = lambda config: NoDevice(num_seqs)
    llm = LLM(max_num_seqs=num_seqs, block_size=BLOCK_SIZE, max_num_batched_tokens=8192)
    for i in range(num_seqs):
        llm.engine.add_request(str(i), [7 + i, 8, 9], params)
    steps = []
    for _ in range(WARM_UP + STEPS):
        llm.engine.step()
        steps.append(clock.take())
    measured = steps[WARM_UP:]
    return {part: statistics.median(step[part] for step in measured) * 1e3 for part in measured[0]}


def main() -> int:
    clock = Clock()
    clock.watch(Engine, "step", "text, statistics")
    clock.watch(Scheduler, "schedule_ahead", "planning")
    clock.watch(Scheduler, "update", "taking in")
    clock.watch(ModelExecutor, "submit", "choosing tokens")
    clock.watch(DeviceForward, "__call__", "batch")
    greedy = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    drawn = SamplingParams(seed=1, max_tokens=400, ignore_eos=True)
    names = ["planning", "batch", "choosing tokens", "taking in", "text, statistics"]
    print(f"| sequences | tokens | {' | '.join(names)} | in all | an 8B model's step takes |")
    print("|" + "---|" * (len(names) + 4))
    for num_seqs in SIZES:
        limit = (WEIGHTS + num_seqs * CONTEXT * KV_BYTES) / BANDWIDTH * 1e3
        for kind, params in (("greedy", greedy), ("drawn", drawn)):
            found = measure(clock, num_seqs, params)
            cells = " | ".join(f"{found[name]:.2f}" for name in names)
            total = sum(found.values())
            print(f"| {num_seqs} | {kind} | {cells} | {total:.2f} | {limit:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""In main memory, with other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from quire.core.limits import EngineLimits
from quire.core.memory import BlockSource
from quire.core.protocol import Adapter
from quire.engine.assembly.ranks.meeting import meet
from quire.engine.assembly.ranks.messages import CountMemory, FreeMemory, MakePool, Ready
from quire.engine.assembly.ranks.team import Team
from quire.engine.config import EngineConfig
from quire.execution.adapters import StepAdapters
from quire.execution.device_runtime import DeviceRuntime, Draft, OnCPU
from quire.execution.executor import ModelExecutor
from quire.execution.forward import Forward, Worker
from quire.execution.memory_limits import FREE_MEMORY_SHARE, MemoryBudget
from quire.execution.ranks import LeadingWorker, Orders, SharedSource
from quire.kernels.instructions import Instructions
from quire.kernels.ops import Kernels
from quire.kernels.ranks import RankGroup
from quire.models.base import Model


class OnRanks(OnCPU):
    """What rank 0 computes on. Every rank has a pool of its own, and all pools are as large."""

    def __init__(
        self,
        config: EngineConfig,
        instructions: Instructions,
        team: Team,
        group: RankGroup,
        ranks_here: int,
    ) -> None:
        super().__init__(config.swap_path, instructions, ranks_here, bool(config.warm_up))
        self._team, self._group = team, group
        self._timeout = config.distributed_timeout_seconds

    @contextmanager
    def settling(self) -> Iterator[None]:
        """See ``DeviceRuntime.settling``. It begins once all ranks have loaded."""
        self._team.answers(Ready)
        with super().settling():
            yield

    def promise(self, kept: int, files: int) -> None:
        """See ``DeviceRuntime.promise``. For all ranks here, until each has its own promise."""
        super().promise(kept * self._ranks_here, files * self._ranks_here)
        self._kept_by_each = kept

    def memory_budget(
        self, model: Model, limits: EngineLimits, kv_dtype: torch.dtype
    ) -> MemoryBudget:
        """See ``DeviceRuntime.memory_budget``. The least that a rank has."""
        self._team.say(CountMemory())
        own = super().memory_budget(model, limits, kv_dtype).free
        others = [answer.free for answer in self._team.answers(FreeMemory)]
        return MemoryBudget(min(own, *others), FREE_MEMORY_SHARE)

    def executor(
        self,
        model: Model,
        limits: EngineLimits,
        kv_dtype: torch.dtype,
        draft: Draft | None = None,
        adapters: Mapping[Adapter, Any] | None = None,
        source: BlockSource | None = None,
    ) -> ModelExecutor:
        """See ``DeviceRuntime.executor``. A draft model is rank 0's alone, and whole.

        Others have the same blocks without its layers: they are told what it has drafted.
        """
        assert source is None or isinstance(source, SharedSource)
        self._source = source
        num_layers = len(model.kv_shapes)
        kv_groups = tuple(
            one._replace(layers=tuple(layer for layer in one.layers if layer < num_layers))
            for one in limits.kv_groups
        )
        self._team.say(MakePool(kv_groups, limits.max_model_len, self._warm_up))
        executor = super().executor(model, limits, kv_dtype, draft, adapters, source)
        self._team.answers(Ready)
        super().promise(self._kept_by_each, 0)
        return executor

    def _make_worker(
        self, model: Model, forward: Forward, kernels: Kernels, adapters: StepAdapters | None
    ) -> Worker:
        orders = Orders(self._group, adapters, self._timeout, self._team.why, self._source)
        return LeadingWorker(model, self._kv_cache, forward, kernels, orders)


def on_ranks(config: EngineConfig, directory: Path, alone: DeviceRuntime, team: Team) -> OnRanks:
    """Where all meet, to load the model in ``directory``. ConfigError: they do not agree.

    alone: what rank 0 would compute on by itself.
    """
    assert isinstance(alone, OnCPU), "others have been refused"
    group, ranks_here = meet(team, config, directory, alone.instruction_set)
    return OnRanks(config, alone.instructions, team, group, ranks_here)

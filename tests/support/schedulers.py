"""Schedulers by the names of their settings, whichever value those are in."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from quire.capabilities.beams import BeamSearch
from quire.capabilities.fairness import accounts_of
from quire.core.memory import KVAllocator
from quire.core.protocol import SchedulingPolicy
from quire.core.scheduling import (
    BatchLimits,
    Caching,
    Queueing,
    Recovery,
    Scheduler,
)


def make_scheduler(
    allocator: KVAllocator,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    *,
    caching: Caching | None = Caching(),  # noqa: B008  # frozen
    **settings: Any,
) -> Scheduler:
    """settings: fields of the other values."""

    def own(kind: type) -> dict[str, Any]:
        names = {field.name for field in fields(kind)}
        return {name: settings.pop(name) for name in [*settings] if name in names}

    batch = replace(BatchLimits(max_num_seqs, max_num_batched_tokens), **own(BatchLimits))
    queueing = {"policy": SchedulingPolicy.FCFS, **own(Queueing)}
    queueing["accounts"] = accounts_of(queueing["policy"])
    recovery = Recovery(**own(Recovery))
    assert not settings, f"no scheduler has {settings}"
    scheduler = Scheduler(allocator, batch, Queueing(**queueing), recovery, caching)
    scheduler.begin_search = BeamSearch
    return scheduler

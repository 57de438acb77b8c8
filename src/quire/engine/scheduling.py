"""A scheduler, put together: its limits, its policy, and where blocks are beyond its pool."""

from __future__ import annotations

from quire.blocks.offloading import offloading_to
from quire.capabilities.fairness import accounts_of
from quire.core.limits import EngineLimits
from quire.core.memory import BlockSource, SnapshotPlaces
from quire.core.protocol import PreemptionMode, RecoveryCosts, SchedulingPolicy
from quire.core.scheduling import BatchLimits, Caching, Queueing, Recovery, Scheduler


def scheduler_of(
    limits: EngineLimits, costs: RecoveryCosts, source: BlockSource | None = None
) -> Scheduler:
    """A scheduler over an empty pool. ``source``: of blocks that the pool does not have."""
    batch = BatchLimits(
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        max_adapters=limits.max_loras or None,
        whole_prompts=not limits.kv_groups,
    )
    states, places = limits.states, None
    if states is not None and states.state is not None:
        places = SnapshotPlaces(states.state.every, limits.block_size, states.state.decoding)
    policy = SchedulingPolicy(limits.scheduling_policy)
    return Scheduler(
        limits.allocator(),
        batch,
        Queueing(policy, limits.max_queue_time, accounts_of(policy)),
        Recovery(PreemptionMode(limits.preemption_mode), costs),
        Caching(offloading_to(source), places) if limits.enable_prefix_caching else None,
    )

"""By what ranks add up: memory that they share, or the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.engine.config import EngineConfig
from quire.kernels.compiled import KERNELS, need
from quire.kernels.gloo_ranks import GlooRanks
from quire.kernels.ranks import RankGroup

Join = dict[str, Any]
"""How a group is joined, as JSON has it."""


def need_shared_memory(config: EngineConfig) -> None:
    """ConfigError: ranks of one machine cannot add up here."""
    what = f"tensor_parallel_size {config.tensor_parallel_size} on one machine needs the kernels"
    need(KERNELS, what, "leave it out")


def in_memory(
    config: EngineConfig, instruction_set: str, tell: Callable[[Join], None]
) -> RankGroup:
    """Rank 0's of one machine. tell: to the others."""
    need_shared_memory(config)
    from quire.kernels.shared_ranks import SharedMemoryRanks

    size, timeout = config.tensor_parallel_size, config.distributed_timeout_seconds
    group = SharedMemoryRanks.create(size, timeout, instruction_set)
    tell({"memory": group.name})
    return group


def over_network(
    config: EngineConfig, address: tuple[str, int], tell: Callable[[Join], None]
) -> RankGroup:
    """Rank 0's of several machines, at a free port of an address that the others reach."""
    tell({"address": address})
    size, timeout = config.tensor_parallel_size, config.distributed_timeout_seconds
    return GlooRanks(0, size, *address, timeout)


def join_group(join: Join, rank: int, config: EngineConfig, instruction_set: str) -> RankGroup:
    """Another's. RankError: rank 0 is gone."""
    size, timeout = config.tensor_parallel_size, config.distributed_timeout_seconds
    if "memory" in join:
        from quire.kernels.shared_ranks import SharedMemoryRanks

        return SharedMemoryRanks.join(join["memory"], rank, size, timeout, instruction_set)
    host, port = join["address"]
    return GlooRanks(rank, size, host, port, timeout)

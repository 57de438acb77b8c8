"""By what ranks add up: memory that they share, or the network."""

from __future__ import annotations

from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.kernels.ranks import RankGroup
from quire.kernels.shared_ranks import SharedMemoryRanks


def create_group(
    config: EngineConfig, instruction_set: str, *, one_place: bool
) -> tuple[RankGroup, str]:
    """Rank 0's, and what the others join it by."""
    if not one_place:
        raise ConfigError("not yet")
    group = SharedMemoryRanks.create(
        config.tensor_parallel_size, config.distributed_timeout_seconds, instruction_set
    )
    return group, group.name


def join_group(join: str, rank: int, config: EngineConfig, instruction_set: str) -> RankGroup:
    """Another's. RankError: rank 0 is gone."""
    size, timeout = config.tensor_parallel_size, config.distributed_timeout_seconds
    return SharedMemoryRanks.join(join, rank, size, timeout, instruction_set)

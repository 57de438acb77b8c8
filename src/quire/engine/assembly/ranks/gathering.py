"""From settings to the other ranks, there and waiting."""

from __future__ import annotations

from functools import partial

from quire.core.errors import ConfigError
from quire.engine.assembly.ranks.door import Door
from quire.engine.assembly.ranks.meeting import need_shared_memory, start_here
from quire.engine.assembly.ranks.on_ray import RayRanks
from quire.engine.assembly.ranks.team import Team
from quire.engine.assembly.store import LAST_SECONDS
from quire.engine.config import EngineConfig


def gather(config: EngineConfig) -> Team:
    """The other ranks, which are being started, or will be waited for.

    ConfigError: that cannot be.
    """
    if config.node_rank:
        raise ConfigError(
            f"node_rank {config.node_rank}: the engine is on machine 0; run quire serve --headless "
            "on this one"
        )
    if config.nnodes == 1 and config.distributed_executor_backend != "ray":
        need_shared_memory(config)  # before processes are started in vain
    last = 0.0 if config.kv_store is None else LAST_SECONDS
    team = Team(config.tensor_parallel_size, config.distributed_timeout_seconds, last)
    try:
        if config.distributed_executor_backend == "ray":
            RayRanks(team, config)
        else:
            _gather_machines(team, config)
    except BaseException:
        team.close()
        raise
    return team


def _gather_machines(team: Team, config: EngineConfig) -> None:
    if config.nnodes == 1:
        start_here(team, config)
        return
    door = Door(config.master_addr, config.master_port)
    team.at_end(door.close)
    start_here(team, config)
    elsewhere = range(config.tensor_parallel_size // config.nnodes, config.tensor_parallel_size)
    team.awaits(door.host, partial(door.let_in, team, elsewhere, team.check))

"""Ranks as actors of a Ray cluster, wherever it has room for them."""

from __future__ import annotations

import importlib
import logging
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, RankError
from quire.engine.assembly.ranks.door import Door, reach
from quire.engine.assembly.ranks.meeting import threads_of
from quire.engine.assembly.ranks.processes import RankProcess, Start
from quire.engine.assembly.ranks.team import STARTING, Team
from quire.engine.config import EngineConfig

logger = logging.getLogger(__name__)


class RankActor:
    """Lives as long as the rank's process that it starts on its node, which ends with it."""

    def run(self, start: dict[str, Any], host: str, port: int) -> int | None:
        """Run the rank; the exit status of its process."""
        size = start["config"]["tensor_parallel_size"]
        return RankProcess(Start(**start), reach(start["rank"], size, host, port)).wait()


class RayRanks:
    """All ranks but this process, in one placement group."""

    def __init__(self, team: Team, config: EngineConfig) -> None:
        """ConfigError: there is no Ray, or it has no room."""
        self._ray = _ray()
        if not self._ray.is_initialized():
            self._ray.init()
        self._size, self._config = config.tensor_parallel_size, config
        self._threads = threads_of(config, self._size)
        self._runs: list[Any] = []
        group = self._reserve()
        team.at_end(partial(self._ray.util.remove_placement_group, group))
        self._actors = [self._actor(group, place) for place in range(self._size - 1)]
        for actor in self._actors:
            team.at_end(partial(self._ray.kill, actor))
        self._start(team)

    def _start(self, team: Team) -> None:
        door = Door(self._ray.util.get_node_ip_address(), 0)
        team.at_end(door.close)
        config, model = self._config, self._config.model
        if model is not None and Path(model).expanduser().exists():  # from wherever actors run
            config = replace(config, model=str(Path(model).expanduser().absolute()))
        if config.kv_store is not None:
            config = replace(config, kv_store=str(Path(config.kv_store).absolute()))
        for rank, actor in enumerate(self._actors, 1):
            start = Start.of(rank, config, self._threads, None, with_rank_0=False)
            self._runs.append(actor.run.remote(asdict(start), door.host, door.port))
        others = range(1, self._size)
        team.awaits(door.host, partial(door.let_in, team, others, self._check))

    def _reserve(self) -> Any:
        bundles = [{"CPU": self._threads}] * (self._size - 1)
        group = self._ray.util.placement_group(bundles, strategy="PACK")
        asked = f"{len(bundles)} actors with {self._threads} CPUs each (--threads)"
        logger.info("asking Ray for %s", asked)
        if not group.wait(STARTING):
            self._ray.util.remove_placement_group(group)
            raise ConfigError(
                f"Ray has no room for {asked}; it has {self._ray.cluster_resources()}"
            )
        return group

    def _actor(self, group: Any, place: int) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy = strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=place
        )
        made = self._ray.remote(RankActor)
        return made.options(num_cpus=self._threads, scheduling_strategy=strategy).remote()

    def _check(self) -> None:
        """RankError: an actor has ended before its rank came."""
        ended, _ = self._ray.wait(self._runs, timeout=0)
        if ended:
            rank = self._runs.index(ended[0]) + 1
            try:
                status = self._ray.get(ended[0])
            except Exception as error:
                raise RankError(f"rank {rank} could not be started by Ray: {error}") from error
            raise RankError(f"rank {rank} ended with status {status} before it connected")


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            'distributed_executor_backend "ray" needs Ray: pip install "quire-llm[ray]"'
        ) from error

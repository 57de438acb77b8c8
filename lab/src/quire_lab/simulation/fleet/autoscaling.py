"""The number of replicas, as with ``quire deploy --max-replicas``: its rule, on replicas' reports,
and Ray Serve's averages and delays around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from quire.core.errors import ConfigError
from quire_cluster.rules import ReplicaDemand, replicas_wanted

_LOOK_BACK = 15  # reports of a replica whose mean is looked at, one a second


@dataclass(frozen=True)
class Autoscaling:
    """fewest, most: replicas. For the others see ``DeployConfig``, whose fields they are."""

    fewest: int
    most: int
    target_wait: float = 1.0
    target_kv_usage: float = 0.8
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0

    def check(self, first: int) -> None:
        """``first``: replicas that there are when it begins."""
        if not self.fewest <= first <= self.most:
            raise ConfigError(
                f"replicas must be from min_replicas to max_replicas, {self.fewest} to "
                f"{self.most}; got {first}"
            )


class Autoscaler:
    """Reads all serving replicas' reports once a second, and sets how many there should be."""

    def __init__(self, settings: Autoscaling, target: int) -> None:
        self.target = target
        self._settings = settings
        self._told: dict[str, deque[ReplicaDemand]] = {}
        self._since: tuple[int, float] | None = None  # more (1) or less (-1) is wanted, and since

    def observe(self, now: float, demands: Mapping[str, ReplicaDemand]) -> None:
        """Take note of reports by replica. ``target`` may change."""
        for gone in self._told.keys() - demands.keys():
            del self._told[gone]
        for name, demand in demands.items():
            self._told.setdefault(name, deque(maxlen=_LOOK_BACK)).append(demand)
        wanted, settings = self._wanted(), self._settings
        sign = (wanted > self.target) - (wanted < self.target)
        if not sign:
            self._since = None
            return
        if self._since is None or self._since[0] != sign:
            self._since = sign, now
        delay = settings.upscale_delay if sign > 0 else settings.downscale_delay
        if now - self._since[1] >= delay:
            self.target, self._since = wanted, None

    def _wanted(self) -> int:
        means = [
            ReplicaDemand(
                sum(d.taken for d in told) / len(told), sum(d.wait for d in told) / len(told)
            )
            for told in self._told.values()
        ]
        settings, now = self._settings, len(means) or self.target
        wanted = replicas_wanted(means, now, settings.target_kv_usage, settings.target_wait)
        return min(max(wanted, settings.fewest), settings.most)

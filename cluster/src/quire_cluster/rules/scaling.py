"""How many replicas there should be, by what they say of their KV pools and their lines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from quire_cluster.rules.affinity import ReplicaReport


class ReplicaDemand(NamedTuple):
    """Of a replica: the share of its pool that is taken, and seconds until who comes is let in."""

    taken: float
    wait: float


def replicas_wanted(
    demands: Iterable[ReplicaDemand], now: int, target_usage: float, target_wait: float
) -> int:
    """How many would keep pools and waits at their targets, by the demand of ``now`` replicas.

    Pools are added up: what is taken in all of them must find room. Waits are not, since work that
    is in line at one replica is not taken to another: one more is wanted, for those to come. One
    less is, if the others would have room for all and nobody waits.
    """
    reports = list(demands)
    if not reports:
        return now
    taken = sum(report.taken for report in reports)
    wait = sum(report.wait for report in reports) / len(reports)
    wanted = math.ceil(taken / target_usage - 1e-9)
    if wait > target_wait:
        wanted = max(wanted, now + 1)
    if wanted < now:
        return now if wait > 0 else now - 1
    return wanted


def demand_of(report: ReplicaReport) -> ReplicaDemand:
    taken = 1 - report.free / report.capacity if report.capacity else 0.0
    return ReplicaDemand(taken, report.wait)


_TAKEN, _WAIT = "kv_usage", "predicted_wait"


def recorded(report: ReplicaReport) -> dict[str, float]:
    """What a replica records for this."""
    demand = demand_of(report)
    return {_TAKEN: demand.taken, _WAIT: demand.wait}


class Scaling:
    """What Ray Serve asks, with its ``AutoscalingContext``; bounds and delays are Ray's."""

    def __init__(self, target_usage: float, target_wait: float) -> None:
        self._targets = target_usage, target_wait

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        told = context.aggregated_metrics or {}
        taken, waits = told.get(_TAKEN, {}), told.get(_WAIT, {})
        demands = [ReplicaDemand(taken[each], waits[each]) for each in taken if each in waits]
        return replicas_wanted(demands, context.current_num_replicas, *self._targets), {}

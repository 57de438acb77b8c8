"""How many replicas there should be, by their KV pools and queues."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from quire_cluster.rules.affinity import ReplicaReport


class ReplicaDemand(NamedTuple):
    """The share of a replica's pool that is held, and seconds until a new request is admitted."""

    taken: float
    wait: float


def replicas_wanted(
    demands: Iterable[ReplicaDemand], now: int, target_usage: float, target_wait: float
) -> int:
    """The number that would keep pools and waits at their targets, by the demand of ``now``
    replicas.

    Pools are added up, since held tokens must fit somewhere. Waits are not, since queued work does
    not move to another replica: long waits call for one replica more, for new requests. One less is
    enough if the others have room for all and no request waits.
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
    """The figures that a replica records for it."""
    demand = demand_of(report)
    return {_TAKEN: demand.taken, _WAIT: demand.wait}


class Scaling:
    """The policy that Ray Serve calls with its ``AutoscalingContext``; Ray applies bounds and
    delays.
    """

    def __init__(self, target_usage: float, target_wait: float) -> None:
        self._targets = target_usage, target_wait

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        told = context.aggregated_metrics or {}
        taken, waits = told.get(_TAKEN, {}), told.get(_WAIT, {})
        demands = [ReplicaDemand(taken[each], waits[each]) for each in taken if each in waits]
        return replicas_wanted(demands, context.current_num_replicas, *self._targets), {}

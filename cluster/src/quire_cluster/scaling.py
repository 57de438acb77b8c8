"""How many replicas there should be, as Ray Serve asks."""

from __future__ import annotations

from typing import Any

from quire_cluster.rules import Demand, Report, demand_of, replicas_wanted

_TAKEN, _WAIT = "kv_usage", "predicted_wait"


def recorded(report: Report) -> dict[str, float]:
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
        demands = [Demand(taken[each], waits[each]) for each in taken if each in waits]
        return replicas_wanted(demands, context.current_num_replicas, *self._targets), {}

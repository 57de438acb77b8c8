"""How many replicas there should be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quire_cluster.rules import ReplicaDemand, ReplicaReport, replicas_wanted
from quire_cluster.rules.scaling import Scaling, recorded


@pytest.mark.parametrize(
    ("demands", "wanted"),
    [
        ([(0.5, 0.0), (0.5, 0.0)], 2),
        ([(0.8, 0.0), (0.8, 0.0)], 2),  # at the target
        ([(0.9, 0.0), (0.9, 0.0)], 3),
        ([(1.0, 0.0)] * 8, 10),
        ([(0.1, 3.0), (0.1, 0.0)], 3),  # a line that will not shorten by itself
        ([(0.1, 1.0), (0.1, 0.5)], 2),  # one that will: nobody is taken away meanwhile
        ([(0.3, 0.0), (0.4, 0.0)], 1),
        ([(0.0, 0.0)] * 5, 4),  # one at a time
        ([(0.0, 0.0)], 0),  # bounds are Ray's
        ([], 3),  # nothing told yet
    ],
)
def test_replicas_wanted(demands: list[tuple[float, float]], wanted: int) -> None:
    told = [ReplicaDemand(*each) for each in demands]
    assert replicas_wanted(told, len(told) or 3, target_usage=0.8, target_wait=1.0) == wanted


def test_as_ray_asks() -> None:
    scaling = Scaling(target_usage=0.8, target_wait=1.0)
    told = {"kv_usage": {"a": 0.95, "b": 0.9, "c": 1.0}, "predicted_wait": {"a": 0.0, "b": 0.0}}
    context = SimpleNamespace(aggregated_metrics=told, current_num_replicas=2)
    assert scaling(context) == (3, {})  # who has not told all does not count
    report = ReplicaReport(1, capacity=1000, free=250, wait=1.5)
    assert recorded(report) == {"kv_usage": 0.75, "predicted_wait": 1.5}
    context.aggregated_metrics = None
    assert scaling(context) == (2, {})

"""What pictures are made from: phases of requests, rows of the waterfall, owners of blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.engine.metrics import RequestMetrics
from quire_lab.reports.curves import Curve, Panel, _paint_panel, line_styles
from quire_lab.reports.fleet_load import binned
from quire_lab.reports.waterfall import choose_rows, phases
from quire_lab.simulation.fleet import Life
from quire_lab.simulation.result import Preempted, RequestRecord

METRICS = RequestMetrics(0.0, 3.0, 10.0, 5, 8, 0, 2, 1.0)


def record(number: int, *preemptions: Preempted, waited: float = 1.0) -> RequestRecord:
    metrics = replace(METRICS, arrival_time=float(number), first_token_time=number + 3.0)
    metrics = replace(metrics, finished_time=number + 10.0)
    return RequestRecord(str(number), metrics, number + waited, preemptions)


def test_phases_follow_each_other_without_gap_or_overlap() -> None:
    away = (Preempted("swap", 2.0, 2.5), Preempted("recompute", 5.0, 7.0))
    story = phases(record(0, *away))
    assert [tuple(phase) for phase in story] == [
        ("waiting", 0.0, 1.0), ("prefill", 1.0, 2.0), ("swapped out", 2.0, 2.5),
        ("prefill", 2.5, 3.0), ("decoding", 3.0, 5.0), ("to recompute", 5.0, 7.0),
        ("decoding", 7.0, 10.0),
    ]  # fmt: skip


def test_a_refused_request_has_no_phases() -> None:
    assert phases(RequestRecord("0", None, None, refused="too long")) == []


def test_the_waterfall_shows_where_most_were_preempted() -> None:
    records = [record(i, waited=2.0 if i < 10 else 1.0) for i in range(100)]
    assert choose_rows(records, 10) == records[:10]  # longest in line
    records[60] = record(60, Preempted("swap", 64.0, 65.0))
    rows = choose_rows(records, 10)
    assert records[60] in rows and len(rows) == 10
    assert [int(one.request_id) for one in rows] == list(
        range(int(rows[0].request_id), int(rows[0].request_id) + 10)
    )


def test_few_requests_are_all_shown_in_order_of_arrival() -> None:
    records = [record(2), record(0), record(1)]
    assert [one.request_id for one in choose_rows(records)] == ["0", "1", "2"]


def test_a_known_line_looks_alike_in_every_picture() -> None:
    many = Panel("", "", "", (Curve("a", ()), Curve("b", ()), Curve("c", ())))
    few = Panel("", "", "", (Curve("c", ()), Curve("new", ())))
    one, other = (line_styles([panel], ("c", "a")) for panel in (many, few))
    assert one["c"] == other["c"] and len(set(one.values())) == 3
    assert other["new"] not in (other["c"], other["a"])


def test_a_replicas_load_is_drawn_where_it_served() -> None:
    """Two requests for half of the time, of which it was in steps for half."""
    point = SimpleNamespace(start=0.0, seconds=0.5, running=1.5, waiting=0.5)
    series = (point, SimpleNamespace(**{**vars(point), "start": 1.0, "seconds": 1.0}))
    lives = (Life(0.0, 0.0, 2.0, failed=True), Life(2.0, None, 4.0, failed=False))
    one: Any = SimpleNamespace(lives=lives, result=SimpleNamespace(series=series))
    loads = binned(one, 0.0, 4.0)
    assert math.isclose(sum(loads[:60]) / 60, 1.0) and math.isclose(sum(loads[60:120]) / 60, 2.0)
    assert all(map(math.isnan, loads[120:]))


def test_a_distant_bound_is_named_and_leaves_the_lines_their_width() -> None:
    load = (Curve("p90", ((1.0, 0.1), (4.0, 0.5))),)
    panel = Panel("", "", "", load, limits=((5.0, "the pool ends it"), (400.0, "compute ends it")))
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    _paint_panel(axes, panel, line_styles([panel]))
    assert axes.get_xlim()[1] < 6
    named = axes.get_legend_handles_labels()[1]
    assert named == ["p90", "the pool ends it", "compute ends it at 400, far right"]

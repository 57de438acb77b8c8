"""A simulation as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

The Trace Event Format of Chromium: times in microseconds.
"""

from __future__ import annotations

import heapq
from typing import Any

from quire.memory import Usage
from quire.reports.waterfall import phases
from quire.simulation.result import RequestRecord, SimulationResult

_MEMORY, _REQUESTS, _DECISIONS = 1, 2, 3  # "processes" of the trace


def chrome_trace(result: SimulationResult) -> dict[str, Any]:
    """Counters of memory and batch, a bar for each phase of a request, a mark for each decision."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((_MEMORY, "KV memory and batch"), (_REQUESTS, "requests"),
                          (_DECISIONS, "decisions"))
    ]  # fmt: skip
    for point in result.series:
        for name, fields in (("KV slots", Usage._fields), ("batch", ("running", "waiting"))):
            values = {field: round(getattr(point, field), 3) for field in fields}
            events.append(
                {"ph": "C", "pid": _MEMORY, "ts": _micros(point.start), "name": name,
                 "args": values}
            )  # fmt: skip
    for kv_group, record in _kv_groups(result.records):
        events += _bars(kv_group, record)
    for time, decision in result.decisions:
        events.append(
            {"ph": "i", "s": "p", "pid": _DECISIONS, "tid": 1, "ts": _micros(time),
             "name": decision.what.value, "args": {"decision": str(decision)}}
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _bars(kv_group: int, record: RequestRecord) -> list[dict[str, Any]]:
    metrics = record.metrics
    assert metrics is not None
    facts = {
        "request": record.request_id,
        "prompt tokens": metrics.num_prompt_tokens,
        "output tokens": metrics.num_output_tokens,
        "cached tokens": metrics.cached_tokens,
        "peak blocks": metrics.peak_blocks,
    }
    whole = {"ph": "X", "pid": _REQUESTS, "tid": kv_group}
    start, end = _micros(metrics.arrival_time), _micros(metrics.finished_time)
    name = f"request {record.request_id}"
    bars: list[dict[str, Any]] = [
        {**whole, "name": name, "ts": start, "dur": round(end - start, 3), "args": facts}
    ]
    for phase in phases(record):
        begin = _micros(phase.start)
        bars.append(
            {**whole, "name": phase.name, "ts": begin,
             "dur": round(_micros(phase.end) - begin, 3)}
        )  # fmt: skip
    return bars


def _kv_groups(records: tuple[RequestRecord, ...]) -> list[tuple[int, RequestRecord]]:
    """Requests in as few KV groups as leave none overlapping another."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # until when, KV group
    placed = []
    served = [(r.metrics.arrival_time, r.metrics.finished_time, r) for r in records if r.metrics]
    for arrival, finished, record in sorted(served, key=lambda one: one[:2]):
        while busy and busy[0][0] <= arrival:
            heapq.heappush(free, heapq.heappop(busy)[1])
        kv_group = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (finished, kv_group))
        placed.append((kv_group, record))
    return placed


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)

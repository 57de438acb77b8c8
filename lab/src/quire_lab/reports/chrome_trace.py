"""A simulation as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

from typing import Any

from quire.core.memory import Usage
from quire.engine.tracing import TraceEvents, in_lines
from quire_lab.reports.waterfall import phases
from quire_lab.simulation.result import RequestRecord, SimulationResult

_MEMORY, _REQUESTS, _DECISIONS = 1, 2, 3  # "processes" of the trace


def chrome_trace(result: SimulationResult) -> dict[str, Any]:
    """Counters of memory and batch, a bar for each phase of a request, a mark for each decision."""
    names = {_MEMORY: "KV memory and batch", _REQUESTS: "requests", _DECISIONS: "decisions"}
    events = TraceEvents(names)
    for point in result.series:
        for name, fields in (("KV slots", Usage._fields), ("batch", ("running", "waiting"))):
            values = {field: round(getattr(point, field), 3) for field in fields}
            events.counter(_MEMORY, name, point.start, values)
    served = [
        (record.metrics.arrival_time, record.metrics.finished_time, record)
        for record in result.records
        if record.metrics is not None
    ]
    for line, record in in_lines(served):
        _bars(events, line, record)
    for time, decision in result.decisions:
        events.mark(_DECISIONS, decision.what.value, time, {"decision": str(decision)})
    return events.trace()


def _bars(events: TraceEvents, line: int, record: RequestRecord) -> None:
    metrics = record.metrics
    assert metrics is not None
    facts = {
        "request": record.request_id,
        "prompt tokens": metrics.num_prompt_tokens,
        "output tokens": metrics.num_output_tokens,
        "cached tokens": metrics.cached_tokens,
        "peak blocks": metrics.peak_blocks,
    }
    begin, end, name = metrics.arrival_time, metrics.finished_time, f"request {record.request_id}"
    events.bar(_REQUESTS, line, name, begin, end, facts)
    for phase in phases(record):
        events.bar(_REQUESTS, line, phase.name, phase.start, phase.end)

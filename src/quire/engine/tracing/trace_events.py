"""Traces for Perfetto (ui.perfetto.dev) or chrome://tracing.

The Trace Event Format of Chromium: times in microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


class TraceEvents:
    """Counters, bars and marks of several processes, a name for each."""

    def __init__(self, processes: Mapping[int, str]) -> None:
        self._events: list[dict[str, Any]] = [
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
            for pid, name in processes.items()
        ]

    def counter(self, pid: int, name: str, time: float, values: Mapping[str, float]) -> None:
        """The values of counters from then on. All times in seconds."""
        self._events.append(
            {"ph": "C", "pid": pid, "ts": micros(time), "name": name, "args": values}
        )

    def bar(
        self,
        pid: int,
        line: int,
        name: str,
        begin: float,
        end: float,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """A bar; one within another of its line is shown below it."""
        start = micros(begin)
        bar = {"ph": "X", "pid": pid, "tid": line, "name": name, "ts": start}
        args = {} if facts is None else {"args": facts}
        self._events.append({**bar, "dur": round(micros(end) - start, 3), **args})

    def mark(self, pid: int, name: str, time: float, facts: Mapping[str, Any]) -> None:
        self._events.append(
            {"ph": "i", "s": "p", "pid": pid, "tid": 1, "ts": micros(time), "name": name,
             "args": facts}
        )  # fmt: skip

    def trace(self) -> dict[str, Any]:
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}


def in_lines(given: Iterable[tuple[float, float, _T]]) -> list[tuple[int, _T]]:
    """What lasts from one time to another, in as few lines as leave nothing over another."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # until when, line
    placed = []
    for begin, end, what in sorted(given, key=lambda one: one[:2]):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        line = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end, line))
        placed.append((line, what))
    return placed


def micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)

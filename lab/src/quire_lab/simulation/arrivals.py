"""When requests come: at their own times, or when a user has had the answer to the last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Protocol

from quire.engine.traces.request import TraceRequest


class Arrivals(Protocol):
    """Requests in order of arrival. What comes next may depend on what has ended."""

    @property
    def next_time(self) -> float | None:
        """When the next request arrives; None: not before another one ends, or never."""
        ...

    def take(self) -> TraceRequest:
        """The next request."""
        ...

    def ended(self, now: float) -> None:
        """A request has ended, or was refused."""
        ...


class OpenLoop:
    """Requests that come whether or not others are done: a trace."""

    def __init__(self, workload: Iterable[TraceRequest]) -> None:
        self._coming: Iterator[TraceRequest] = iter(workload)
        self._next = next(self._coming, None)

    @property
    def next_time(self) -> float | None:
        return None if self._next is None else self._next.arrival

    def take(self) -> TraceRequest:
        taken = self._next
        assert taken is not None, "there is one if next_time says so"
        self._next = next(self._coming, None)
        return taken

    def ended(self, now: float) -> None:
        pass


class ClosedLoop:
    """``users`` who each send their next request after the answer to the last one.

    The workload gives the requests in turn; its times of arrival are not used.
    """

    def __init__(self, workload: Iterable[TraceRequest], users: int) -> None:
        self._coming = iter(workload)
        self._ready = [0.0] * users  # when each waiting user sends: a heap
        self._next = next(self._coming, None)

    @property
    def next_time(self) -> float | None:
        return self._ready[0] if self._ready and self._next is not None else None

    def take(self) -> TraceRequest:
        taken = self._next
        assert taken is not None, "there is one if next_time says so"
        self._next = next(self._coming, None)
        return replace(taken, arrival=heappop(self._ready))

    def ended(self, now: float) -> None:
        heappush(self._ready, now)

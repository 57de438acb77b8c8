"""One clock for all engines of a fleet, and for what happens to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from quire_lab.simulation.engine import ENDS, PLANS
from quire_lab.simulation.fleet.replica import NEVER, SimulatedReplica

Event = Callable[[float], None]
"""Called at its time, with that."""


class FleetClock:
    """Orders events. At one time steps end first, then things happen, then steps are planned.

    now: the time of the last event.
    """

    def __init__(self, begin: float) -> None:
        self.now = begin
        self._engines: list[tuple[float, int, int]] = []  # a heap: when whose slot goes on
        self._replicas: dict[int, SimulatedReplica] = {}  # that run, by slot
        self._events: list[tuple[float, int, Event]] = []  # likewise
        self._num_events = 0

    def at(self, time: float, event: Event) -> None:
        heappush(self._events, (time, self._num_events, event))
        self._num_events += 1

    def wake(self, replica: SimulatedReplica) -> None:
        """An idle replica has work now."""
        self._replicas[replica.slot] = replica
        replica.pause = self.now, PLANS
        heappush(self._engines, (*replica.pause, replica.slot))

    def reschedule(self, replica: SimulatedReplica) -> None:
        """A busy replica has got a request: it may have to continue earlier."""
        pause = replica.engine.due(replica.pause)
        if pause != replica.pause:
            replica.pause = pause
            heappush(self._engines, (*pause, replica.slot))

    def drop(self, replica: SimulatedReplica) -> None:
        """A replica does nothing any more."""
        if self._replicas.pop(replica.slot, None) is not None:
            self._engines = [one for one in self._engines if one[2] != replica.slot]
            heapify(self._engines)

    @property
    def next_event(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def happen(self) -> None:
        """The next event."""
        self.now, _, event = heappop(self._events)
        event(self.now)

    def run(self, until: float) -> bool:
        """The engine whose turn it is goes on; False: something happens at ``until`` before."""
        if not self._engines:
            return False
        time, phase, slot = self._engines[0]
        if time > until or (time == until and phase != ENDS):
            return False
        replica = self._replicas.get(slot)
        if replica is None or (time, phase) != replica.pause:
            heappop(self._engines)  # it was rescheduled
            return True
        self.now = time
        assert replica.running is not None, "else it is dropped"
        pause = next(replica.running, None)
        if pause is None:
            replica.running, replica.pause = None, NEVER
            del self._replicas[slot]
            heappop(self._engines)
        else:
            replica.pause = pause
            heapreplace(self._engines, (*pause, slot))
        return True

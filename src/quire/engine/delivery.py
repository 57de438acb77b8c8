"""From the engine's thread to the tasks of an event loop: what steps give, in few wake-ups."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from quire.core.errors import EngineError
from quire.engine.output_collector import OutputCollector
from quire.engine.outputs import Delta

GATHERED = 0.01  # seconds
_HANDED_OUT = 64  # deltas, by weight, for which tasks are woken in a turn of the event loop


class Delivery:
    """Hands deltas to the collectors of those who wait for them, by request id.

    A task is woken at once for the first token of an output and for its end, and otherwise once
    in ``GATHERED`` seconds at most: to wake it and to write to its client costs as much for one
    token as for several, and so does each time that the loop and the engine's thread pass
    Python's lock to each other. Where steps take longer than that, nothing waits.

    ``put`` is called in the engine's thread, all else in the event loop's.
    """

    def __init__(self) -> None:
        self.collectors: dict[str, OutputCollector] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: deque[list[Delta]] = deque()  # what they gave; the one thing both touch
        self._gathering = False  # a timer will look at what has come by then
        self._waiting: dict[OutputCollector, None] = {}  # to be woken by it
        self._due: deque[OutputCollector] = deque()  # to be woken now

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, deltas: list[Delta]) -> None:
        """What a step gave."""
        self._steps.append(deltas)
        if not self._gathering or any(delta.urgent for delta in deltas):
            self.call_soon(self._take)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the event loop call it; from any thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)

    def fail_all(self, failure: EngineError) -> None:
        """Nothing more will come, because of ``failure``."""
        self._take()
        for collector in self.collectors.values():
            collector.fail(failure)

    def _take(self) -> None:
        """Give all that has come to the collectors, and wake whoever need not wait."""
        if not (self._steps or self._waiting):
            return
        busy = bool(self._due)
        while self._steps:
            for delta in self._steps.popleft():
                self._give(delta)
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(GATHERED, self._gathered)
            self._due.extend(self._waiting)
            self._waiting.clear()
        if not busy:
            self._hand_out()

    def _give(self, delta: Delta) -> None:
        collector = self.collectors.get(delta.request_id)
        if collector is None or not collector.put(delta):  # its caller has left, or waits for more
            return
        if delta.urgent:
            self._waiting.pop(collector, None)
            self._due.append(collector)
        else:
            self._waiting[collector] = None

    def _gathered(self) -> None:
        self._gathering = False  # before it looks: what comes from now on calls for itself
        self._take()

    def _hand_out(self) -> None:
        """To some tasks, which have their turn before the next ones are woken; so do others."""
        room = _HANDED_OUT
        while self._due and room > 0:
            collector = self._due.popleft()
            room -= collector.weight
            collector.wake()
        if self._due:
            asyncio.get_running_loop().call_soon(self._hand_out)

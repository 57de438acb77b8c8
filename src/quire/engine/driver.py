"""Steps an engine from one thread, for several who wait for what it gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from quire.engine.engine import Engine
from quire.engine.outputs import Delta


class Driver:
    """Hands each delta to the stream that waits for it, whoever makes the engine step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._collectors: dict[str, deque[Delta]] = {}

    def step(self) -> list[Delta]:
        """One step of the engine; the deltas that no stream waits for."""
        others: list[Delta] = []
        for delta in self.engine.step():
            collector = self._collectors.get(delta.request_id)
            if collector is None:
                others.append(delta)
            else:
                collector.append(delta)
        return others

    def stream(self, request_id: str) -> Iterator[Delta]:
        """What a queued request gives, to its end. Closed before that, it aborts the request."""
        collector: deque[Delta] = deque()
        self._collectors[request_id] = collector
        finished = False
        try:
            while not finished:
                while not collector:
                    self.step()
                delta = collector.popleft()
                finished = delta.final is not None
                if delta.failure is not None:
                    raise delta.failure
                yield delta
        finally:
            del self._collectors[request_id]
            if not finished:
                self.engine.abort(request_id)

"""Where an event loop leaves what the engine gave, for the task that waits for it."""

from __future__ import annotations

import asyncio

from quire.engine.outputs import Delta
from quire.errors import EngineError


class OutputCollector:
    """The deltas of one or several requests. The task is woken once for all that came together."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._failure: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None  # an Event would cost twice as much

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self._wake()

    def fail(self, failure: EngineError) -> None:
        """Nothing more will come, because of ``failure``."""
        self._failure = failure
        self._wake()

    async def take(self) -> list[Delta]:
        """All that has come since the last time; waits for it. Raises the failure after that."""
        if not self._deltas and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        deltas, self._deltas = self._deltas, []
        if not deltas and self._failure is not None:
            raise self._failure
        return deltas

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
        self._filled = asyncio.Event()

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self._filled.set()

    def fail(self, failure: EngineError) -> None:
        """Nothing more will come, because of ``failure``."""
        self._failure = failure
        self._filled.set()

    async def take(self) -> list[Delta]:
        """All that has come since the last time; waits for it. Raises the failure after that."""
        await self._filled.wait()
        deltas, self._deltas = self._deltas, []
        if not deltas and self._failure is not None:
            raise self._failure
        if self._failure is None:
            self._filled.clear()
        return deltas

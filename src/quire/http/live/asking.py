"""Questions to an engine, which together take a bounded share of its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable

from quire.engine.async_engine import AsyncEngine
from quire.http.answers.rendering import encode

_SHARE = 1 / 50
"""Of the engine's time, for those who ask."""


class Queries:
    """Asks an engine one question after the other; for one event loop.

    A question that waits already is not put twice: both who ask it get its answer.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._asked: dict[Hashable, asyncio.Task[bytes]] = {}
        self._next = 0.0  # when the next question may be put

    async def ask(self, question: Hashable, read: Callable[[], object]) -> bytes:
        """What ``read`` returns between two steps, as JSON, or raises. question: names it."""
        task = self._asked.get(question)
        if task is None:
            task = self._asked[question] = asyncio.create_task(self._ask(question, read))
            task.add_done_callback(_look_at)
        return await asyncio.shield(task)  # one who leaves takes no other's answer along

    async def _ask(self, question: Hashable, read: Callable[[], object]) -> bytes:
        took = 0.0

        def timed() -> object:
            nonlocal took
            begun = time.perf_counter()
            try:
                return read()
            finally:
                took = time.perf_counter() - begun

        async with self._turn:
            await asyncio.sleep(max(0.0, self._next - time.monotonic()))
            del self._asked[question]
            try:
                answer = await self._engine.call(timed)
            finally:
                self._next = time.monotonic() + took * (1 / _SHARE - 1)
        return encode(answer)


def _look_at(task: asyncio.Task[bytes]) -> None:
    """Even if nobody waits for it any more."""
    if not task.cancelled():
        task.exception()
